"""Mixture of experts: how tokens were routed, what that cost, and what perfect balance would save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.moe.combine import CombineCheck, Verdict, check_combine
from traceflow.analyzers.moe.findings import findings_of
from traceflow.analyzers.moe.result import HostWait, Moe, RoutedLayer, routed_layer
from traceflow.analyzers.moe.rows import Rows, complete_calls, count_rows
from traceflow.analyzers.moe.stages import STAGES, Staged, StageTime, host_waits, stage_times, staged
from traceflow.analyzers.window import in_window
from traceflow.graph import DependencyGraph
from traceflow.result import Note, Skipped
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    from traceflow.analyzers.moe.agreement import Agreement
    from traceflow.analyzers.moe.balance import Balance
    from traceflow.intent.routing import LayerRouting, Routing
    from traceflow.program.module import Programs

__all__ = ["CombineCheck", "Moe", "RoutedLayer", "StageTime", "Verdict", "check_combine", "moe", "routed_layers"]

_NO_RECORD = "the capture holds no record of the routing of tokens: call traceflow.moe in the layer"
_NO_STAGES = "no annotation or scope names a stage, such as dispatch, experts or combine"


def moe(
    trace: Trace, routing: Routing | None, found: Dependencies, programs: Programs, *, step: int | None = None
) -> Moe:
    """Say how tokens were routed, where the time of the stages went, and what perfect balance would save.

    Args:
        trace: The evidence.
        routing: The routing record of the capture.
        found: Dependencies of the trace.
        programs: Compiled modules, whose scopes name stages.
        step: Which step; all recorded ones within the trace where None.

    Raises:
        TraceflowError: TF104 when the trace holds no work, TF111 when it has no such step.
    """
    window, graph = in_window(trace, found, step)
    steps = [step] if step is not None else sorted(set(trace.marks.step.tolist()))
    recorded = routing.layers if routing else ()
    counted = [(layer, _counted(layer)) for layer in recorded]
    layers, calls = _summed(counted, steps or None)
    of = staged(trace, found, programs)
    stages = stage_times(trace, of, graph)
    replayed, agreed = _timed(trace, graph, of, recorded, [rows for _, rows in counted], steps)
    if replayed is not None:
        layers = _with_savings(layers, recorded, replayed)
    waits = _host_waits(trace, of, graph)
    combines = tuple(check_combine(values) for values in routing.combines) if routing else ()
    result = Moe(
        window=window,
        layers=layers,
        calls=calls,
        stages=stages,
        synchronisations=waits,
        balance=replayed,
        agreement=agreed,
        combines=combines,
        skipped=tuple(_skipped(routing, layers, stages, waits=waits, replayed=replayed, agreed=agreed)),
        notes=(*found.notes, *(_notes(routing, steps or None) if routing else ())),
    )
    return replace(result, findings=tuple(findings_of(result)))


def routed_layers(routing: Routing, steps: Sequence[int] | None = None) -> tuple[RoutedLayer, ...]:
    """The layers of a record summed up over steps; what the record of a part of the ranks does not tell is left out.

    Args:
        routing: The record.
        steps: Which steps; None for all.
    """
    return _summed([(layer, _counted(layer)) for layer in routing.layers], steps)[0]


def _counted(layer: LayerRouting) -> Rows | None:
    """Rows of the complete calls of a layer; None where there is none, or experts cannot be spread evenly."""
    calls = complete_calls(layer)
    processes = {len(group) for group in layer.ep_groups}
    fits = len(processes) == 1 and layer.shape.experts % min(processes) == 0
    return count_rows(layer, calls) if len(calls) and fits else None


def _summed(
    counted: Sequence[tuple[LayerRouting, Rows | None]], steps: Sequence[int] | None
) -> tuple[tuple[RoutedLayer, ...], tuple[RoutedLayer, ...]]:
    """Each layer over all chosen steps, and each of its calls."""
    layers, calls = [], []
    for layer, rows in counted:
        complete = complete_calls(layer)
        chosen = [i for i, call in enumerate(complete.tolist()) if steps is None or layer.step[call] in steps]
        if rows is None or not chosen:
            continue
        layers.append(routed_layer(layer, rows, chosen))
        for i in chosen:
            when = int(layer.step[complete[i]]), int(layer.occurrence[complete[i]])
            calls.append(routed_layer(layer, rows, [i], when=when))
    return tuple(layers), tuple(calls)


def _timed(
    trace: Trace,
    graph: DependencyGraph,
    of: Staged,
    layers: Sequence[LayerRouting],
    rows: Sequence[Rows | None],
    steps: Sequence[int],
) -> tuple[Balance | None, Agreement | None]:
    """The replay in balance, and the comparison with what the trace exchanged."""
    if not layers:
        return None, None
    from traceflow.analyzers.moe.agreement import agreement
    from traceflow.analyzers.moe.balance import balance
    from traceflow.analyzers.moe.calls import Calls

    calls = Calls(trace, of, layers)
    agreed = agreement(trace, calls, layers, rows, steps or None)
    return balance(trace, graph, calls, layers, rows), agreed if agreed.compared else None


def _with_savings(
    shown: Sequence[RoutedLayer], layers: Sequence[LayerRouting], replayed: Balance
) -> tuple[RoutedLayer, ...]:
    saved = {(layer.layer, layer.shape.topk): ns for layer, ns in zip(layers, replayed.by_layer_ns, strict=True)}
    return tuple(replace(one, balance_saved_ns=saved.get((one.layer, one.topk))) for one in shown)


def _host_waits(trace: Trace, of: Staged, graph: DependencyGraph) -> tuple[HostWait, ...] | None:
    """Blocking calls around the exchange; None where no stage is named on a host with devices."""
    e = trace.events
    if not (trace.lanes.device >= 0).any() or not (of.annotation >= 0).any():
        return None
    by_call: dict[tuple[int, str, str, str], list[int]] = {}
    for row in np.flatnonzero(host_waits(trace, of, graph)).tolist():
        rank, name = int(trace.lanes.rank[e.lane[row]]), trace.strings[e.name[row]]
        key = rank, STAGES[of.stage[row]], "backward" if of.backward[row] else "forward", name
        by_call.setdefault(key, []).append(int(e.end_ns[row] - e.start_ns[row]))
    waits = [HostWait(*key, len(took), sum(took)) for key, took in by_call.items()]
    return tuple(sorted(waits, key=lambda wait: -wait.duration_ns))


def _skipped(
    routing: Routing | None,
    layers: Sequence[RoutedLayer],
    stages: Sequence[StageTime],
    *,
    waits: object,
    replayed: Balance | None,
    agreed: Agreement | None,
) -> Iterator[Skipped]:
    without = _NO_RECORD if routing is None or not routing.layers else None
    unmatched = "the stages do not occur as often as calls were recorded" if stages else _NO_STAGES
    gaps = (
        ("layers", not layers, without or "no call was recorded by all ranks that exchange tokens"),
        ("stages", not stages, _NO_STAGES),
        ("synchronisations", waits is None, "no stage is annotated on the host of a device"),
        ("balance", replayed is None, without or unmatched),
        ("agreement", agreed is None, without or "no exchange in a named stage tells its splits"),
    )
    yield from (Skipped(f"/result/{name}", reason) for name, absent, reason in gaps if absent)
    saved = replayed is not None
    for name, reason in _WHY_ABSENT.items():
        if (name != "balance_saved_ns" or saved) and any(getattr(layer, name) is None for layer in layers):
            yield Skipped(f"/result/layers/*/{name}", reason)


_WHY_ABSENT = {
    "balance_saved_ns": "only the layers with most to gain were replayed alone",
    "executed_flops": "the record does not tell the widths of the experts",
    "wasted_flops": "the record does not tell the widths of the experts",
    "dispatch_bytes": "the record does not tell the width of a row and of its numbers",
    "combine_bytes": "the record does not tell the width of a row and of its numbers",
    "remote_bytes": "the record does not tell the width of a row and of its numbers",
    "useful_bytes": "counts do not tell which processes each token is for, or how wide a row is",
    "tokens": "assignments are no multiple of the choices of a token",
}


def _notes(routing: Routing, steps: Sequence[int] | None) -> Iterator[Note]:
    """What the record lacks."""
    if routing.overwritten:
        text = f"{routing.overwritten} earlier calls of the routing record were overwritten: record fewer steps"
        yield Note("TF317", text, ("/result/layers",))
    lost = 0
    for layer in routing.layers:
        mine = np.isin(layer.step, steps) if steps is not None else np.ones(len(layer.step), bool)
        lost += int(mine.sum()) - int(mine[complete_calls(layer)].sum())
    if lost:
        text = f"{lost} calls were not recorded by all ranks that exchange tokens, and are left out"
        yield Note("TF317", text, ("/result/layers",))
