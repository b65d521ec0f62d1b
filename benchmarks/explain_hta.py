"""The same questions put to HTA, in an environment of its own; print CPU seconds and peak memory as JSON."""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from pathlib import Path


def main(path: str) -> None:
    """Load the trace, or the folder of traces, at `path`; overlap of communication, critical path of one step."""
    logging.disable(logging.WARNING)
    from hta.trace_analysis import TraceAnalysis

    seconds: dict[str, float] = {"start": time.process_time()}

    def took(stage: str) -> None:
        seconds[stage] = time.process_time() - sum(seconds.values())

    folder = Path(path).is_dir()
    analysis = TraceAnalysis(trace_dir=path) if folder else TraceAnalysis(trace_files={0: path}, trace_dir="")
    took("load")
    analysis.get_comm_comp_overlap(visualize=False)
    took("communication")
    analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
    took("critical path")
    events = len(analysis.t.get_trace(0))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"events": events, "cpu_s": seconds, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main(sys.argv[1])
