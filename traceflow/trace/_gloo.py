"""Which collective an execution by gloo is, and which transfer.

A process group executes what it is given in order, on threads of its own that it starts when it is made. So the
threads, in the order of their numbers, belong to one group after another, and on the threads of a group the k-th
execution of a name and size is the k-th that was issued.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias, TypeVar

from traceflow.trace.model import ABSENT, Group

Label: TypeAlias = tuple[str, int | None]
"""What an execution has in common with the record of its collective: a name, and how many numbers go in."""

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")

_SEND, _RECEIVE = "gloo:send", "gloo:recv"
_PEER, _TAG = 2, 3  # places of arguments
_ROOT = {"c10d::broadcast_": 2, "c10d::reduce_": 3, "c10d::gather_": 3, "c10d::scatter_": 3}
_SPLITS = {"c10d::alltoall_base_": (4, 3)}  # in and out


@dataclass(frozen=True, slots=True)
class Call:
    """An execution by gloo, or an operator that issues something to be executed."""

    event: int
    name: str
    thread: int
    start_ns: int  # since 1970
    end_ns: int
    elements: int | None  # how many numbers go in
    arguments: tuple[str, ...]  # those that are no tensors, by place


@dataclass(frozen=True, slots=True)
class Record:
    """A collective, as the recorder noted it when it was issued."""

    group: int  # row of the groups
    name: str
    sequence: int
    position: int  # among all that its group was given, transfers included
    created_ns: int  # since 1970
    elements: int | None
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one execution."""

    event: int
    group: int
    key: int = 0
    sequence: int = ABSENT
    payload_bytes: int = ABSENT
    source: int = ABSENT
    destination: int = ABSENT
    in_splits: str | None = None
    out_splits: str | None = None
    operator: int | None = None  # the event that issued it, on another thread
    posted_ns: int | None = None  # when it began, where its own event starts too late


class Operators:
    """The operators that issue collectives and transfers, by thread and time."""

    def __init__(self, operators: Sequence[Call]) -> None:
        self._on: dict[int, list[Call]] = defaultdict(list)
        for operator in sorted(operators, key=attrgetter("start_ns")):
            self._on[operator.thread].append(operator)

    def at(self, moment_ns: int, thread: int | None = None) -> Call | None:
        """The operator around a moment, on any thread unless one is named; of several, the last to start."""
        found = (self._at(moment_ns, which) for which in (tuple(self._on) if thread is None else (thread,)))
        return max(filter(None, found), key=attrgetter("start_ns"), default=None)

    def _at(self, moment_ns: int, thread: int) -> Call | None:
        place = bisect_right(self._on[thread], moment_ns, key=attrgetter("start_ns")) - 1
        operator = self._on[thread][place] if place >= 0 else None
        return operator if operator is not None and moment_ns <= operator.end_ns else None


def find_collectives(
    executions: Sequence[Call],
    operators: Operators,
    records: Sequence[Record],
    groups: Sequence[Group],
    begin_ns: int,
) -> Iterator[Found]:
    """Find the record of each collective that was executed, and the operator that issued it.

    Args:
        executions: In order of their start.
        operators: Of the same trace.
        records: In the order in which the recorder made them.
        groups: In the order in which this process made them.
        begin_ns: When the trace began. What was issued before may also have been executed before.
    """
    executed = [call for call in executions if call.name not in {_SEND, _RECEIVE}]
    sized = all(call.elements is not None for call in executed)
    made = _by(lambda call: call.thread, executed)
    asked = _by(lambda record: record.group, records)
    wanted = [_labels((r for r in asked[g] if r.created_ns >= begin_ns), sized=sized) for g in range(len(groups))]
    threads = sorted(made)
    owners = _divided([_labels(made[thread], sized=sized) for thread in threads], wanted)
    owner = dict(zip(threads, owners, strict=True))
    for (group, label), calls in _by(lambda call: (owner[call.thread], _label(call, sized=sized)), executed).items():
        issued = [record for record in asked[group] if _label(record, sized=sized) == label]
        for record, call in _in_order(issued, calls, begin_ns):
            yield _found(call, record, operators.at(record.created_ns), groups[group])


def _by(key: Callable[[_Item], _Key], items: Iterable[_Item]) -> dict[_Key, list[_Item]]:
    """Items by key, in their order."""
    found: dict[_Key, list[_Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def _label(item: Call | Record, *, sized: bool) -> Label:
    return item.name, item.elements if sized else None


def _labels(items: Iterable[Call | Record], *, sized: bool) -> Counter[Label]:
    return Counter(_label(item, sized=sized) for item in items)


def _divided(made: Sequence[Counter[Label]], asked: Sequence[Counter[Label]]) -> list[int]:
    """The group of each thread: to each group the next few, so that all made what they were asked, as nearly as can be.

    Args:
        made: What each thread executed.
        asked: What each group was asked to execute.

    Example:
        >>> reduce, gather = ("all_reduce", 4), ("all_gather", 4)
        >>> _divided([Counter({reduce: 2}), Counter({reduce: 1, gather: 1})], [Counter({reduce: 2}), Counter([reduce, gather])])
        [0, 1]
    """
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}  # threads given away -> difference so far, their groups
    for group, wanted in enumerate(asked):
        extended: dict[int, tuple[int, list[int]]] = {}
        for first, (difference, owners) in best.items():
            total: Counter[Label] = Counter()
            for stop in range(first, len(made) + 1):
                total += made[stop - 1] if stop > first else Counter()
                now = difference + ((total - wanted) + (wanted - total)).total()
                if stop not in extended or now < extended[stop][0]:
                    extended[stop] = now, [*owners, *[group] * (stop - first)]
        best = extended
    return best[len(made)][1] if asked else [ABSENT] * len(made)


def _in_order(issued: Sequence[Record], calls: Sequence[Call], begin_ns: int) -> Sequence[tuple[Record, Call]]:
    """Pair what was issued with what was executed, first in, first out; nothing where the times contradict that.

    What was issued last may not have been executed yet. More executions than were issued in the trace means that
    some were issued before it.
    """
    before = sum(record.created_ns < begin_ns for record in issued)
    surplus = len(calls) - len(issued)  # what the recorder has forgotten
    pairs = list(zip(issued[max(0, min(before, -surplus)) :], calls[max(0, surplus) :], strict=False))
    return pairs if all(record.created_ns <= call.start_ns for record, call in pairs) else []


def _found(call: Call, record: Record, operator: Call | None, group: Group) -> Found:
    """What a record and the operator around it say of an execution."""
    given = operator.arguments if operator is not None else ()
    name = operator.name if operator is not None else ""
    root = _integer(given, _ROOT.get(name))
    in_splits, out_splits = (_splits(given, place) for place in _SPLITS.get(name, (None, None)))
    return Found(
        event=call.event,
        group=record.group,
        sequence=record.sequence,
        payload_bytes=record.payload_bytes,
        source=group.members[root] if 0 <= root < len(group.members) else ABSENT,
        in_splits=in_splits,
        out_splits=out_splits,
        operator=operator.event if operator is not None else None,
    )


def _integer(arguments: tuple[str, ...], place: int | None) -> int:
    text = arguments[place] if place is not None and place < len(arguments) else ""
    return int(text) if text.isdigit() else ABSENT


def _splits(arguments: tuple[str, ...], place: int | None) -> str | None:
    """A list of splits; none where it is empty, which stands for equal parts."""
    text = arguments[place] if place is not None and place < len(arguments) else ""
    return text if text not in {"", "[]"} else None


def find_transfers(
    executions: Sequence[Call], operators: Operators, records: Sequence[Record], groups: Sequence[Group], rank: int
) -> Iterator[Found]:
    """Find the ends of each transfer from one process to another, where its group is certain.

    The recorder does not note transfers of gloo, but counts them: between two collectives of a group it was given as
    many as their positions leave out. That excludes a group, or proves it where no more were started meanwhile.
    """
    transfers = [call for call in executions if call.name in {_SEND, _RECEIVE}]
    asked = _by(lambda record: record.group, records)
    possible = _groups_at([call.start_ns for call in transfers], [asked[group] for group in range(len(groups))])
    for call, some in zip(transfers, possible, strict=True):
        operator, group = operators.at(call.start_ns, call.thread), min(some, default=ABSENT)
        peer = ABSENT if operator is None else _integer(operator.arguments, _PEER)
        if operator is None or len(some) != 1 or not 0 <= peer < len(groups[group].members):
            continue
        ends = rank, groups[group].members[peer]
        source, destination = ends if call.name == _SEND else reversed(ends)
        yield Found(
            event=call.event,
            group=group,
            key=_integer(operator.arguments, _TAG),
            source=source,
            destination=destination,
            posted_ns=operator.start_ns,
        )


def _groups_at(moments_ns: Sequence[int], asked: Sequence[Sequence[Record]]) -> list[set[int]]:
    """The groups that each of the transfers at these moments may have been given to.

    Args:
        moments_ns: When they were started, in order.
        asked: The collectives of each group, in order.
    """
    possible = [set(range(len(asked))) for _ in moments_ns]
    certain: dict[int, int] = {}
    for group, records in enumerate(asked):
        for one, other in pairwise(records):
            room = other.position - one.position - 1
            inside = range(bisect_left(moments_ns, one.created_ns), bisect_left(moments_ns, other.created_ns))
            if room == 0:
                for transfer in inside:
                    possible[transfer].discard(group)
            elif room == len(inside):
                certain.update(dict.fromkeys(inside, group))
    return [{certain[i]} if i in certain else some for i, some in enumerate(possible)]
