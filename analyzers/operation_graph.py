"""The dependency graph of an operation table, from the semantics of pipeline and data parallel training.

Nothing in such a table says what waited for what, but the schedule does: compute of a worker is in program order; a
micro-batch is computed after it was received and sent after it was computed; gradients and parameters meet across
the data parallel ranks of a stage, shared embeddings across the first and the last stage, and the norm of the
gradients across everybody. Every other type is work in program order. A step begins after the one before has ended.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.graph import NO_EVENT, NO_LANE, DependencyGraph, EdgeKind, Edges, SliceKind, Slices, dependency_graph
from traceflow.result import Note
from traceflow.trace.model import Bool, Int32, Int64, Rows
from traceflow.trace.operation_trace import in_order, lanes_of
from traceflow.trace.operation_types import (
    BACKWARD,
    COMMUNICATION,
    EVERYBODY,
    FORWARD,
    GRADIENTS,
    LATE_GRADIENTS,
    PARAMETERS,
    RECEIVES,
    SENDS,
    UNSPLIT,
    WITHIN_PIPELINE,
    WITHIN_STAGE,
)
from traceflow.trace.operations import OperationTable

CLOCK_ERROR_NS = 10_000_000
"""How much earlier than its cause an effect may be said to be, on the clocks of two hosts."""


@dataclass(frozen=True, slots=True)
class OperationGraph:
    """A table with its graph, whose slices are those of the events of its trace.

    `work` is the slice in which an operation works: a transfer begins at its last arrival.
    """

    table: OperationTable
    graph: DependencyGraph
    work: Int32  # slice, shape (operations,)
    work_ns: Int64  # of each operation, shape (operations,)
    meeting: Int64  # equal on the operations that meet, -1 on those that meet nobody, shape (operations,)
    alone: Bool  # a participant of its meeting is not in the table, shape (operations,)
    step: Int64  # row of `steps`, shape (operations,)
    steps: Int64
    measured_ns: Int64  # from the earliest start to the latest end of each step
    notes: tuple[Note, ...]

    def replay_ns(self, work_ns: Int64) -> Int64:
        """Length of every step without a lag, in ns, when each operation takes as long as given.

        Args:
            work_ns: Shape (operations,).
        """
        of_slice = np.zeros(len(self.graph.slices), np.int64)
        of_slice[self.work] = work_ns
        # Without lags the clocks no longer matter: nothing starts before its cause has ended.
        timeless = replace(self.graph, advance_ns=np.zeros_like(self.graph.advance_ns))
        times = timeless.replay(work_ns=of_slice, lag_ns=np.zeros(self.graph.vertices, np.int64))
        starts = times[2 * (len(self.graph.slices) - len(self.steps) + np.arange(len(self.steps)))]
        ends = starts.copy()
        np.maximum.at(ends, self.step, times[2 * self.work + 1])
        return ends - starts


def operation_graph(table: OperationTable) -> OperationGraph:
    """Build the graph of all steps of a table.

    The transfer of an operation that meets others runs from the latest start among them to its own end.

    Args:
        table: As the reader gives it.

    Raises:
        TraceflowError: TF107 if data is passed on between stages and the table does not tell the stage.
    """
    place = _placed(table)
    group, alone = _groups(place)
    steps, step = np.unique(table.step, return_inverse=True)
    start_ns, end_ns = _least(table.start_ns, step, len(steps)), -_least(-table.end_ns, step, len(steps))
    slices, first, last, arrivals_ns = _slices(place, group)
    slices = _with_joins(slices, np.concatenate((arrivals_ns, start_ns)))
    origins = len(slices) - len(steps) + step
    earlier = step < len(steps) - 1
    graph = dependency_graph(
        slices,
        [
            *_between(place, first, last),
            *_meeting(place, group, first, len(slices) - len(steps) - len(arrivals_ns)),
            _edges(2 * origins + 1, 2 * first, EdgeKind.DATA),
            _edges(2 * last[earlier] + 1, 2 * (origins[earlier] + 1), EdgeKind.PROGRAM_ORDER),
        ],
        resolution_ns=CLOCK_ERROR_NS,
    )
    notes = _notes(sum(graph.contradicted.values()), int(alone.sum()))
    return OperationGraph(table, graph, last, slices.work_ns[last], group, alone, step, steps, end_ns - start_ns, notes)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where each operation stands in the schedule."""

    table: OperationTable
    worker: Int64  # one per rank and step
    dp_rank: Int32
    stage: Int32
    stages: int
    by_type: Int64  # one per worker and type
    index: Int64  # how many of its type came before it on its worker
    in_chunk: Int64  # how many of its type and model chunk did
    compute: Int64  # row of the computation that a transfer brings to or takes from; -1 without one
    overlapped: bool  # gradients are reduced while others are still computed

    def of(self, names: Collection[str]) -> Bool:
        """Which operations are of these types."""
        return self.table.of(names)


def _placed(table: OperationTable) -> _Place:
    """Places in the schedule; a table without stages has one, and each of its ranks is a data parallel rank."""
    if (table.of((*SENDS, *RECEIVES)) & (table.stage < 0)).any():
        why = "it has transfers between stages and does not tell the stage of every rank"
        raise TraceflowError("TF107", "cannot follow the schedule of the table", why, "add the column stage")
    worker = np.unique(np.column_stack((table.step, table.rank)), axis=0, return_inverse=True)[1].ravel()
    stage = np.maximum(table.stage, 0)
    by_type = worker * len(table.types) + table.type
    index = np.where(table.sequence >= 0, table.sequence, _position(by_type))
    chunks = int(table.chunk.max()) + 2
    place = _Place(
        table,
        worker,
        np.where(table.dp_rank >= 0, table.dp_rank, table.rank),
        stage,
        int(stage.max()) + 1,
        by_type,
        index,
        index if chunks <= 2 else _position(by_type * chunks + table.chunk),
        np.full(len(table), -1, np.int64),
        LATE_GRADIENTS in table.types,
    )
    return replace(place, compute=_computed(place))


def _position(key: Int64) -> Int64:
    """How many earlier rows have the same key."""
    order = np.argsort(key, kind="stable")
    start = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    position = np.empty(len(key), np.int64)
    position[order] = np.arange(len(key)) - np.repeat(start, np.diff(np.append(start, len(key))))
    return position


def _computed(place: _Place) -> Int64:
    """The computation of every transfer: the k-th of its direction on the same worker for the k-th transfer.

    The first stage of a pipeline with several chunks may leave out its first receive, which brings nothing.
    """
    found = np.full(len(place.table), -1, np.int64)
    for name, computed in (*SENDS.items(), *RECEIVES.items()):
        mine, theirs = place.of((name,)), place.of((computed,))
        index = place.index[mine]
        if name in RECEIVES and place.table.chunk.max() > 0:
            index = index + _left_out(place, mine, theirs)
        found[mine] = _where(place, np.flatnonzero(theirs), place.worker[mine], index)
    return found


def _left_out(place: _Place, receives: Bool, computed: Bool) -> Int64:
    """How many receives the worker of each receive left out, on the first stage."""
    last = np.full((2, int(place.worker.max()) + 1), -1, np.int64)
    for row, rows in enumerate((computed, receives)):
        np.maximum.at(last[row], place.worker[rows], place.index[rows])
    missing = np.maximum(last[0] - last[1], 0)[place.worker[receives]]
    return np.where(place.stage[receives] == 0, missing, 0)


def _where(place: _Place, rows: Rows, worker: Int64, index: Int64) -> Int64:
    """Of the given rows, the one on a worker with an index, -1 without."""
    if not len(rows):
        return np.full(len(worker), -1, np.int64)
    width = int(max(place.index.max(), index.max(initial=0))) + 2
    keys = place.worker[rows] * width + place.index[rows]
    order = np.argsort(keys, kind="stable")
    wanted = worker * width + index
    at = np.minimum(np.searchsorted(keys[order], wanted), len(rows) - 1)
    return np.where((index >= 0) & (keys[order][at] == wanted), rows[order][at], -1)


def _groups(place: _Place) -> tuple[Int64, Bool]:
    """The meeting of each operation, -1 where it meets nobody; and which could not be matched."""
    table = place.table
    keys = np.full((len(table), 5), -1, np.int64)
    keys[:, 0], keys[:, 1], keys[:, 2] = table.step, table.type, place.index
    stage, pipeline = place.of(WITHIN_STAGE), place.of(WITHIN_PIPELINE)
    keys[stage, 3] = place.stage[stage]
    keys[pipeline, 4] = place.dp_rank[pipeline]
    passed = place.of((*SENDS, *RECEIVES)) & (place.compute >= 0)
    keys[passed] = _boundaries(place, np.flatnonzero(passed))
    meets = stage | pipeline | place.of(EVERYBODY) | passed
    meeting = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    expected = np.where(meets, _expected(place, passed), 1)
    complete = (expected > 1) & (np.bincount(meeting)[meeting] == expected)
    group = np.full(len(table), -1, np.int64)
    group[complete] = np.unique(meeting[complete], return_inverse=True)[1]
    return group, (expected > 1) & ~complete


def _boundaries(place: _Place, rows: Rows) -> Int64:
    """What identifies a transfer at both of its ends: direction, micro-batch, and the chunks that it leads between."""
    table, computed = place.table, place.compute[rows]
    chunk = np.maximum(table.chunk[computed], 0) * place.stages + place.stage[computed]
    forward = place.of([n for n, c in (*SENDS.items(), *RECEIVES.items()) if c == FORWARD])[rows]
    sent = place.of(SENDS)[rows]
    batch = np.where(table.micro_batch >= 0, table.micro_batch, place.in_chunk)[computed]
    # Forward, a chunk sends to the next and receives from the one before; backward it is the other way round.
    lower = np.where(forward == sent, chunk, chunk - 1)
    direction = np.where(forward, -2, -3)
    return np.column_stack((table.step[rows], direction, batch, lower, place.dp_rank[rows])).astype(np.int64)


def _expected(place: _Place, passed: Bool) -> Int64:
    """How many should meet, shape (operations,)."""
    table, expected = place.table, np.ones(len(place.table), np.int64)
    for names, columns in (
        (WITHIN_STAGE, (table.step, place.stage)),
        (WITHIN_PIPELINE, (table.step, place.dp_rank)),
        (EVERYBODY, (table.step,)),
    ):
        where = np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1].ravel()
        workers = np.unique(np.column_stack((where, place.worker)), axis=0)[:, 0]
        expected = np.where(place.of(names), np.bincount(workers)[where], expected)
    pipeline = place.of(WITHIN_PIPELINE)
    expected[pipeline] = np.minimum(expected[pipeline], 2)  # the first and the last stage hold the embeddings
    chunks = (int(max(table.chunk.max(), 0)) + 1) * place.stages
    rows = np.flatnonzero(passed)
    lower = _boundaries(place, rows)[:, 3]
    expected[rows] = np.where((lower >= 0) & (lower < chunks - 1), 2, 1)
    return expected


def _least(value: Int64, group: Int64, groups: int) -> Int64:
    least = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(least, group, value)
    return least


def _slices(place: _Place, group: Int64) -> tuple[Slices, Int32, Int32, Int64]:
    """Slices in order of lanes, the first and the last of every operation, and when the last of each meeting arrived."""
    table, met, order = place.table, group >= 0, in_order(place.table)
    arrivals_ns = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(arrivals_ns, group[met], table.start_ns[met])
    pieces = np.where(met, 2, 1)[order]
    event, row = np.repeat(np.arange(len(table), dtype=np.int32), pieces), np.repeat(order, pieces)
    last = np.empty(len(table), np.int32)
    last[order] = np.cumsum(pieces) - 1
    first = (last - met).astype(np.int32)
    kind = np.where(place.of(COMMUNICATION), SliceKind.COMMUNICATION, SliceKind.COMPUTE).astype(np.int8)[row]
    start_ns, end_ns = table.start_ns[row], table.end_ns[row]
    middle_ns = np.clip(arrivals_ns[group[met]], table.start_ns[met], table.end_ns[met])
    end_ns[first[met]], start_ns[last[met]] = middle_ns, middle_ns
    kind[first[met]], kind[last[met]] = SliceKind.ARRIVED, SliceKind.TRANSFER
    return Slices.between(start_ns, end_ns, lanes_of(table)[row], event, kind), first, last, arrivals_ns


def _with_joins(slices: Slices, times_ns: Int64) -> Slices:
    """The slices, followed by points in time that belong to nobody."""
    more = len(times_ns)
    return Slices.between(
        np.concatenate((slices.start_ns, times_ns)),
        np.concatenate((slices.end_ns, times_ns)),
        np.concatenate((slices.lane, np.full(more, NO_LANE, np.int32))),
        np.concatenate((slices.event, np.full(more, NO_EVENT, np.int32))),
        np.concatenate((slices.kind, np.full(more, SliceKind.JOIN, np.int8))),
    )


def _edges(source: Rows, target: Rows, kind: EdgeKind) -> Edges:
    return Edges(np.asarray(source, np.int64), np.asarray(target, np.int64), kind)


def _meeting(place: _Place, group: Int64, first: Int32, joins: int) -> list[Edges]:
    """Every arrival binds the join of its meeting, the join every end of waiting, and that the transfer."""
    met = group >= 0
    passed = place.of((*SENDS, *RECEIVES))
    edges = [_edges(2 * first[met] + 1, 2 * first[met] + 2, EdgeKind.PROGRAM_ORDER)]
    for rows, kind in ((met & passed, EdgeKind.SEND_RECEIVE), (met & ~passed, EdgeKind.RENDEZVOUS)):
        arrival, join = 2 * first[rows], 2 * (joins + group[rows])
        edges += [_edges(arrival, join, kind), _edges(join + 1, arrival + 1, kind)]
    return edges


def _between(place: _Place, first: Int32, last: Int32) -> list[Edges]:
    """What binds the operations of one worker."""
    beside = place.of((*SENDS, *RECEIVES, PARAMETERS, *((GRADIENTS,) if place.overlapped else ())))
    pairs = [
        (*_chain(np.flatnonzero(~beside), place.worker), EdgeKind.PROGRAM_ORDER),
        (*_chain(np.flatnonzero(beside), place.by_type), EdgeKind.STREAM_ORDER),
        *_data(place),
    ]
    return [_edges(2 * last[source] + 1, 2 * first[target], kind) for source, target, kind in pairs]


def _chain(rows: Rows, key: Int64) -> tuple[Rows, Rows]:
    """Each of the rows, which are in order of time, and the next one of the same key."""
    order = rows[np.argsort(key[rows], kind="stable")]
    same = key[order][1:] == key[order][:-1]
    return order[:-1][same], order[1:][same]


def _data(place: _Place) -> list[tuple[Rows, Rows, EdgeKind]]:
    """A micro-batch is received, computed, sent; the next of its direction is received when it is computed."""
    known = place.compute >= 0
    sends, receives = (np.flatnonzero(place.of(names) & known) for names in (SENDS, RECEIVES))
    earlier = np.full(len(place.table), -1, np.int64)
    source, target = _chain(np.flatnonzero(place.of((FORWARD, BACKWARD))), place.by_type)
    earlier[target] = source
    before = earlier[place.compute[receives]]
    first, parameters = _of_chunk(place, PARAMETERS, FORWARD, latest=False)
    last, gradients = _of_chunk(place, GRADIENTS, BACKWARD, latest=True)
    return [
        (place.compute[sends], sends, EdgeKind.DATA),
        (receives, place.compute[receives], EdgeKind.DATA),
        (before[before >= 0], receives[before >= 0], EdgeKind.PROGRAM_ORDER),
        (parameters, first, EdgeKind.DATA),
        (last, gradients, EdgeKind.DATA),
        *_reduced(place),
    ]


def _of_chunk(place: _Place, collective: str, compute: str, *, latest: bool) -> tuple[Rows, Rows]:
    """The first or latest computation of a chunk, for each collective of the chunk."""
    key = place.worker * (int(place.table.chunk.max()) + 2) + place.table.chunk + 1
    rows, computed = np.flatnonzero(place.of((collective,))), np.flatnonzero(place.of((compute,)))
    if not len(computed):
        return computed, computed
    at = computed[np.argsort(key[computed], kind="stable")]
    side = np.searchsorted(key[at], key[rows], side="right" if latest else "left") - int(latest)
    found = at[np.clip(side, 0, len(at) - 1)]
    same = key[found] == key[rows]
    return found[same], rows[same]


def _reduced(place: _Place) -> list[tuple[Rows, Rows, EdgeKind]]:
    """What is reduced beside the computation is there before what follows the last of it."""
    if not place.overlapped:
        return []
    chained = np.flatnonzero(place.of((GRADIENTS, *UNSPLIT)))
    source, target = _chain(chained, place.worker)
    across = place.of(UNSPLIT)[target] & place.of((GRADIENTS,))[source]
    return [(source[across], target[across], EdgeKind.DATA)]


def _notes(contradicted: int, absent: int) -> tuple[Note, ...]:
    notes = []
    if contradicted:
        text = f"{contradicted} dependencies of the schedule are contradicted by the clock and left out"
        notes.append(Note("TF304", text, ("/result",)))
    if absent:
        text = f"{absent} communication operations lack a participant and are not split into wait and transfer"
        notes.append(Note("TF305", text, ("/result",)))
    return tuple(notes)
