"""HTA's critical path beside traceflow's, on traces that both explain: a table in Markdown.

HTA needs pandas 2 and an environment of its own: --hta PYTHON names its interpreter, and without it its column is empty.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HEAD = (
    "| trace | window, ms | traceflow: compute, copy, host, launch, idle, ms | events on it "
    "| HTA: kernels and copies, host, launch and gaps, ms | events on it | on both |\n|---|--:|--:|--:|--:|--:|--:|"
)


def main() -> None:
    """Write one row per trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--difference", action="store_true", help="also list what is on one path only")
    options = parser.parse_args()
    print(HEAD)
    for path in options.traces:
        ours = traceflow_path(path)
        theirs = asked_elsewhere(options.hta, path) if options.hta else None
        print(row(path.name.partition(".")[0], ours, theirs))
        if options.difference and theirs:
            difference(ours, theirs)


def traceflow_path(path: Path) -> dict[str, Any]:
    """Events on traceflow's path as (name, start in us from the first event), and its time by kind."""
    import traceflow

    run = traceflow.open(path)
    graph, events = run.graph(), run.trace.events
    on_path = {int(row) for row in graph.slices.event[graph.path() >> 1] if row >= 0}
    first_ns = int(events.start_ns.min())
    found = run.critical_path()
    names = [(run.trace.strings[events.name[row]], (int(events.start_ns[row]) - first_ns) // 1000) for row in on_path]
    return {
        "events": sorted(names),
        "us": {kind: ns / 1000 for kind, ns in found.by_kind_ns.items()},
        "window_us": found.makespan_ns / 1000,
    }


def hta_path(path: str) -> dict[str, Any]:
    """The same of HTA's path; its edges carry the time."""
    logging.disable(logging.ERROR)
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="")
    graph, _ = analysis.critical_path_analysis(rank=0, annotation="", instance_id=0)
    table, symbols = analysis.t.get_trace(0), analysis.t.symbol_table.sym_table
    rows = [table.loc[event] for event in graph.critical_path_events_set if event in table.index]
    us: Counter[str] = Counter()
    for edge in graph.critical_path_edges_set:
        event = graph.edge_to_event_map.get((edge.begin, edge.end))
        on_device = event in table.index and table.loc[event, "stream"] >= 0
        kind = "kernel" if on_device else "operator"
        us[edge.type.name if edge.type.name != "OPERATOR_KERNEL" else kind] += float(edge.weight)
    return {"events": sorted((symbols[int(row["name"])], int(row["ts"])) for row in rows), "us": us}


def asked_elsewhere(interpreter: str, path: Path) -> dict[str, Any]:
    """What HTA says, in its own environment."""
    command = [interpreter, "-W", "ignore", __file__, "hta", str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    found["events"] = [tuple(event) for event in found["events"]]
    return found


def row(name: str, ours: dict[str, Any], theirs: dict[str, Any] | None) -> str:
    """A row of the table."""
    kinds = ", ".join(
        f"{ours['us'].get(kind, 0) / 1000:,.3f}" for kind in ("compute", "copy", "host", "launch", "idle")
    )
    mine = f"| {name} | {ours['window_us'] / 1000:,.3f} | {kinds} | {len(ours['events'])} "
    if theirs is None:
        return f"{mine}| | | |"
    us = theirs["us"]
    gaps = sum(us.get(kind, 0) for kind in ("KERNEL_LAUNCH_DELAY", "KERNEL_KERNEL_DELAY"))
    sums = ", ".join(f"{value / 1000:,.3f}" for value in (us.get("kernel", 0), us.get("operator", 0), gaps))
    shared = sum((Counter(ours["events"]) & Counter(theirs["events"])).values())
    return f"{mine}| {sums} | {len(theirs['events'])} | {shared} |"


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """What is on one of the paths only, by name."""
    one, other = Counter(ours["events"]), Counter(theirs["events"])
    for who, only in (("traceflow", one - other), ("HTA", other - one)):
        names = Counter(name for name, _ in only.elements())
        print(f"  only on the path of {who}: {names.most_common(12)}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["hta"]:
        print(json.dumps(hta_path(sys.argv[2])))
    else:
        main()
