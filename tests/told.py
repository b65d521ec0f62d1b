"""Results in the few words that tests compare."""

from __future__ import annotations

from traceflow.analyzers.critical_path import Segments
from traceflow.graph import NO_EVENT, EdgeKind
from traceflow.run import Run


def told(segments: Segments) -> list[tuple[str, int, str, int]]:
    """A path as (kind, rank, name, ns); kernels of NCCL by their operation alone."""
    columns = zip(segments.kind, segments.rank.tolist(), segments.name, segments.duration_ns.tolist(), strict=True)
    return [(kind, rank, short(name), ns) for kind, rank, name, ns in columns]


def short(name: str) -> str:
    """The operation of an NCCL kernel; any other name as it is."""
    return name.removeprefix("ncclDevKernel_").partition("(nccl")[0]


def bindings(run: Run, kind: EdgeKind) -> set[tuple[str, str]]:
    """Edges of a kind, such as ("matmul ends", "softmax starts")."""
    graph = run.dependencies.graph
    target = graph.offsets.searchsorted(range(len(graph.source)), side="right") - 1
    return {
        (_moment(run, u), _moment(run, v))
        for u, v, of in zip(graph.source.tolist(), target.tolist(), graph.kind.tolist(), strict=True)
        if of == kind
    }


def _moment(run: Run, vertex: int) -> str:
    event = run.dependencies.graph.slices.event[vertex >> 1]
    name = "all" if event == NO_EVENT else short(run.trace.strings[run.trace.events.name[event]])
    return f"{name} {'ends' if vertex & 1 else 'starts'}"
