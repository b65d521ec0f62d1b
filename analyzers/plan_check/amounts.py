"""Whether collectives carry what the plan says, and come as often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, TypeAlias

from traceflow.analyzers.attribution import Attributed, Phase, Purpose
from traceflow.analyzers.attribution.expectations import OPERATIONS
from traceflow.analyzers.plan_check.result import Row, Subject

if TYPE_CHECKING:
    from traceflow.intent.plan import Payload, Plan
    from traceflow.result import Json

Steps: TypeAlias = frozenset[tuple[int, int]]

_ONCE = "layer and step"
_BOUNDARY = "micro-batch"
_BALANCED = 0.05  # how far the mean payload of a router may be from a balanced one's, and still agree
_FAR = 1.5  # and by which factor it differs for certain
_BESIDES = 0.01  # of a bucket of gradients, what else may travel in it
_NO_MARKS = "the trace marks no steps"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What has to be alike for a call to be one of an operation of the plan."""

    purpose: Purpose
    collective: str
    direction: str


def amounts(calls: Sequence[Attributed], plan: Plan, steps: Steps) -> Iterator[Row]:
    """Payload and count of each operation of the plan, and of collectives that the plan does not have."""
    planned: dict[_Kind, list[Payload]] = defaultdict(list)
    for row in plan.payload:
        if row.operation in OPERATIONS:
            planned[_Kind(OPERATIONS[row.operation], row.collective, row.direction)].append(row)
    seen: dict[_Kind, list[Attributed]] = defaultdict(list)
    for call in calls:
        kind = _kind(call)
        if kind.purpose not in {Purpose.UNKNOWN, Purpose.SCALARS}:
            seen[kind if call.phase else _either_way(kind, planned)].append(call)
    silent = {call.call.kind.value for call in calls if call.purpose is Purpose.UNKNOWN}
    for kind, rows in planned.items():
        for row, own in zip(rows, _divided(seen.get(kind, []), rows), strict=True):
            yield from _compared(row, own, plan, steps, may_be_hidden=kind.collective in silent)
    for kind in seen.keys() - planned.keys() if planned else ():
        text = f"{kind.purpose}, {kind.collective}"
        count = _counts(seen[kind], steps)
        yield Row(Subject.COUNT, text, kind.direction, seen[kind][0].dimension, 0, count, False)


def _kind(call: Attributed) -> _Kind:
    late = call.phase in {Phase.BACKWARD, Phase.UPDATE}
    if call.phase is Phase.UPDATE and call.purpose is Purpose.PARAMETER_GATHER:
        late = False  # for the next step, be it at the end of one
    return _Kind(call.purpose, call.call.kind.value, (Phase.BACKWARD if late else Phase.FORWARD).value)


def _either_way(kind: _Kind, planned: Iterable[_Kind]) -> _Kind:
    """The direction that the plan has, where nothing tells that of a call."""
    other = _Kind(kind.purpose, kind.collective, Phase.BACKWARD.value)
    return other if kind not in planned and other in planned else kind


def _divided(calls: Sequence[Attributed], rows: Sequence[Payload]) -> list[list[Attributed]]:
    """The calls of each operation, where several are alike but for what they carry: to each the nearest."""
    parts: list[list[Attributed]] = [[] for _ in rows]
    for call in calls:
        size = call.call.payload_bytes
        sized = [place for place, row in enumerate(rows) if row.bytes]
        if len(rows) == 1 or not size or not sized:
            parts[0].append(call)
            continue
        parts[min(sized, key=lambda place: abs(log((rows[place].bytes or 1) / size)))].append(call)
    return parts


def _compared(
    row: Payload, calls: Sequence[Attributed], plan: Plan, steps: Steps, *, may_be_hidden: bool
) -> Iterator[Row]:
    if not calls:
        reason = "some collectives of this kind have no known purpose" if may_be_hidden else ""
        verdict = None if may_be_hidden else False
        yield Row(Subject.COUNT, row.operation, row.direction, row.group, _times(row, plan), 0, verdict, reason)
        return
    yield _payload(row, calls, plan, steps)
    if row.per != _ONCE:  # gradients travel in buckets of any number of layers
        yield _count(row, calls, plan, steps)


def _payload(row: Payload, calls: Sequence[Attributed], plan: Plan, steps: Steps) -> Row:
    sizes = [call.call.payload_bytes for call in calls if call.call.payload_bytes is not None]
    named = (Subject.PAYLOAD, row.operation, row.direction, row.group)
    if row.bytes is None or not sizes:
        reason = "the plan does not tell the size" if row.bytes is None else "the trace does not tell the sizes"
        return Row(*named, row.bytes, [*sorted(set(sizes))] or None, None, reason)
    if row.per == _ONCE:
        return _bucket(row, calls, plan, steps)
    if not row.expected:
        return Row(*named, row.bytes, [*sorted(set(sizes))], set(sizes) == {row.bytes})
    mean = sum(sizes) / len(sizes)
    ratio = max(mean, 1) / max(row.bytes, 1)
    verdict = True if abs(ratio - 1) <= _BALANCED else False if not 1 / _FAR < ratio < _FAR else None
    reason = "" if verdict is not None else "rows depend on the router, and on padding"
    return Row(*named, row.bytes, round(mean), verdict, reason)


def _bucket(row: Payload, calls: Sequence[Attributed], plan: Plan, steps: Steps) -> Row:
    """All that is reduced or gathered in a step, against the parameters of all layers of a stage."""
    named = (Subject.PAYLOAD, row.operation, row.direction, row.group)
    layers = _layers(plan)
    if not steps or layers is None or row.bytes is None:
        reason = "the layers do not divide into stages" if steps else _NO_MARKS
        return Row(*named, row.bytes, None, None, reason)
    totals: Counter[tuple[int, int, int]] = Counter()
    for call in calls:
        totals[*call.call.participant, call.call.step] += call.call.payload_bytes or 0
    planned = row.bytes * layers
    fits = all(planned <= total <= planned * (1 + _BESIDES) for total in totals.values())
    return Row(*named, planned, [*sorted(set(totals.values()))], fits)


def _count(row: Payload, calls: Sequence[Attributed], plan: Plan, steps: Steps) -> Row:
    named = (Subject.COUNT, row.operation, row.direction, row.group)
    planned, observed = _times(row, plan), _counts(calls, steps)
    if planned is None or observed is None:
        reason = _NO_MARKS if observed is None else "layers and micro-batches of the plan are not known"
        return Row(*named, planned, observed, None, reason)
    return Row(*named, planned, observed, observed == [planned])


def _times(row: Payload, plan: Plan) -> int | None:
    """How often a rank takes part in a step."""
    layers, micro_batches = _layers(plan), plan.micro_batches
    if micro_batches is None:
        return None
    if row.per == _BOUNDARY:
        return micro_batches * plan.parallel.vpp
    return None if layers is None else layers * micro_batches


def _layers(plan: Plan) -> int | None:
    """Layers of a stage, None where stages have different numbers of them."""
    if plan.model is None:
        return None
    layers = plan.model.layers + plan.model.mtp_layers
    return None if layers % plan.parallel.pp else layers // plan.parallel.pp


def _counts(calls: Sequence[Attributed], steps: Steps) -> list[Json] | None:
    """How many calls each rank makes in a step, every number once; None without marks of steps."""
    if not steps:
        return None
    made = Counter((*call.call.participant, call.call.step) for call in calls)
    ranks = {(rank, step) for rank, _, step in made}
    return [*sorted({*made.values(), *({0} if steps - ranks else ())})]
