"""The routing record: how many tokens each call of a mixture-of-experts layer sent to which expert.

A trace does not tell it. Where capacity pads each exchange it shows perfect balance, and nowhere does it show what was
dropped. So programs count on the device what their routers choose, and `traceflow.moe` keeps it: one file per process,
`rankNNNNN.routing.npz`, with a row per call, in order of the calls. Columns [calls] are `step`, `layer`, `occurrence`
(which call of the layer in the step, from 0), which `sources` of tokens it has of `all_sources`, and the fields of `Shape`; `name` with `name_ends` holds lists of unequal
length, those of call i up to `name_ends[i]`.

Whether results are combined as they should be, counts do not tell. Values of a call can be attached for that,
`recorder.attach("combine.npz", ...)`, with the fields of `CombineValues` but the rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.array_file import arrays_in
from traceflow.errors import TraceflowError
from traceflow.trace.model import ABSENT, Int32, Int64

Float64: TypeAlias = NDArray[np.float64]
Dispatcher: TypeAlias = Literal["all-to-all", "all-gather", "none"]

NAME = "routing.npz"
DISPATCHERS: tuple[Dispatcher, ...] = ("all-to-all", "all-gather", "none")
LISTS = ("tokens_per_expert", "dropped", "expert_rows", "sent", "received", "ep_group", "etp_group")
_FILE = re.compile(r"rank(\d+)\.routing\.npz")
_COMBINE = re.compile(r"rank(\d+)\.combine.*\.npz")


@dataclass(frozen=True, slots=True)
class Shape:
    """What does not change from call to call of a layer; ABSENT for what was not told."""

    experts: int  # E, of all ranks
    topk: int  # k, experts per token
    capacity: int = ABSENT  # rows that each source reserves for each expert
    padded: int = 1  # with a capacity: whether empty rows are sent and multiplied
    align: int = ABSENT  # rows of each expert are filled up to a multiple of this
    hidden: int = ABSENT  # h, width of a row that travels
    itemsize: int = ABSENT  # bytes of each of its numbers on the way there
    combine_itemsize: int = ABSENT  # and on the way back
    ffn_hidden: int = ABSENT  # f, width inside an expert
    matrices: int = 3  # per expert, each [h, f]: 3 with a gate, 2 without
    weighted: int = ABSENT  # whether rows come back with their gate applied
    dispatcher: int = 0  # place in `DISPATCHERS`


_COLUMNS = (
    "step",
    "layer",
    "occurrence",
    "sources",
    "first_source",
    "all_sources",
    *(field.name for field in fields(Shape)),
)
_MOST_SOURCES = 1 << 20
_VERSION = 1


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """All calls of one layer by all sources of tokens. C calls, S sources, E experts, p processes of EP.

    A source is a rank, or a device where one process has several. Where a source did not record a call its counts are
    ABSENT; lists that nobody recorded are None.
    """

    layer: int
    shape: Shape
    step: Int64  # [C]
    occurrence: Int64  # [C], within the step
    rank: Int64  # [S]
    device: Int64  # [S], ABSENT where the process is one source
    order: Int64  # [C, S], which call of its step it is, counted over all layers
    assigned: Int32  # [C, S, E], as the router chose, the dropped ones included
    dropped: Int32 | None  # [C, S, E]
    expert_rows: Int32 | None  # [C, S, E/p], rows that its own experts multiplied
    sent: Int32 | None  # [C, S, p], rows for each process of EP
    received: Int32 | None  # [C, S, p]
    ep_groups: tuple[tuple[int, ...], ...]  # [S], rows of the sources that exchange tokens, in order of their experts
    etp_groups: tuple[tuple[int, ...], ...]  # [S], of those that share the matrices of an expert

    @property
    def dispatcher(self) -> Dispatcher:
        """Who takes tokens to their experts."""
        return DISPATCHERS[self.shape.dispatcher]


@dataclass(frozen=True, slots=True)
class CombineValues:
    """Values of one combination of results, to be checked: n tokens of k choices, m rows that came back."""

    rank: int
    layer: int
    returned: Float64  # [m, h], in any order
    token: Int64  # [m], whose each row is
    choice: Int64  # [m], which of the token's choices
    gates: Float64  # [n, k]
    combined: Float64  # [n, h], what the layer made of them
    weighted: bool  # whether the rows came back with their gate applied


@dataclass(frozen=True, slots=True)
class Routing:
    """What a capture says of routing; `overwritten` calls did not fit in the memory set aside for them."""

    layers: tuple[LayerRouting, ...] = ()
    overwritten: int = 0
    combines: tuple[CombineValues, ...] = ()


@dataclass(frozen=True, slots=True)
class _Process:
    """The record of one process, read."""

    rank: int
    columns: Mapping[str, Int64]
    lists: Mapping[str, tuple[Int64, Int64]]  # values, and where those of each call end
    overwritten: int

    def of(self, name: str, call: int) -> Int64:
        """The list of a call; empty where it was not recorded."""
        values, ends = self.lists[name]
        return values[ends[call - 1] if call else 0 : ends[call]]


def packed(calls: Sequence[tuple[Mapping[str, int], Mapping[str, Any]]], *, overwritten: int) -> dict[str, Any]:
    """The arrays of a record, to be attached to a recording.

    Args:
        calls: For each, its columns and its lists, of any shape.
        overwritten: How many earlier calls are lost.
    """
    arrays: dict[str, Any] = {name: np.array([columns[name] for columns, _ in calls], np.int64) for name in _COLUMNS}
    for name in LISTS:
        parts = [np.asarray(lists.get(name, ()), np.int64).ravel() for _, lists in calls]
        arrays[name] = np.concatenate([np.empty(0, np.int64), *parts])
        arrays[f"{name}_ends"] = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return {**arrays, "overwritten": np.array(overwritten), "version": np.array(_VERSION)}


def read_routing(files: Iterable[Path]) -> Routing | None:
    """The routing records among the files of a capture, as one; None where there is none.

    What a program attached under the same name is none, and is passed over.

    Raises:
        TraceflowError: TF103 when one is damaged, TF107 when it is of a later version.
    """
    files = tuple(files)
    records = [_read(file, int(found[1])) for file in files if (found := _FILE.fullmatch(file.name))]
    checked = [_combine(file, int(found[1])) for file in files if (found := _COMBINE.fullmatch(file.name))]
    processes, combines = [one for one in records if one], tuple(one for one in checked if one)
    if not processes:
        return Routing(combines=combines) if combines else None
    return replace(joined(sorted(processes, key=lambda process: process.rank)), combines=combines)


def _integers(values: NDArray[Any]) -> Int64:
    """Numbers as they are: no fractions, and none of the numbers that are not any.

    Raises:
        TypeError: where they are no integers.
    """
    return values.astype(np.int64, casting="same_kind")


def _combine(file: Path, rank: int) -> CombineValues | None:
    with arrays_in(file) as arrays:
        if "returned" not in arrays:
            return None
        returned, gates, combined = (arrays[name].astype(np.float64) for name in ("returned", "gates", "combined"))
        token, choice = (_integers(arrays[name]) for name in ("token", "choice"))
        layer, weighted = int(arrays["layer"]), bool(arrays["weighted"])
        found = CombineValues(rank, layer, returned, token, choice, gates, combined, weighted)
        tokens, choices = found.gates.shape
        fits = len(found.returned) == len(found.token) == len(found.choice) and len(found.combined) == tokens
        if not fits or ((found.token >= tokens) | (found.choice >= choices) | (found.token < 0)).any():
            raise ValueError("its arrays do not belong together")
        return found


def _read(file: Path, rank: int) -> _Process | None:
    with arrays_in(file) as arrays:
        if "version" not in arrays:
            return None
        if arrays["version"] > _VERSION:
            raise TraceflowError("TF107", f"cannot read {file}", "a later traceflow wrote it", "update traceflow")
        columns = {name: _integers(arrays[name]) for name in _COLUMNS}
        lists = {name: (_integers(arrays[name]), _integers(arrays[f"{name}_ends"])) for name in LISTS}
        process = _Process(rank, columns, lists, int(arrays["overwritten"]))
        _check(process)
        return process


def _check(process: _Process) -> None:
    """See that columns and lists belong together.

    Raises:
        ValueError: when they do not.
    """
    columns, count = process.columns, len(process.columns["step"])
    if any(column.shape != (count,) for column in (*columns.values(), *(ends for _, ends in process.lists.values()))):
        raise ValueError("its columns have different lengths")
    for values, ends in process.lists.values():
        if (np.diff(ends, prepend=0) < 0).any() or values.shape != ((ends[-1] if count else 0),):
            raise ValueError("its lists do not end where it says")
    if not np.array_equal(
        np.diff(process.lists["tokens_per_expert"][1], prepend=0), columns["sources"] * columns["experts"]
    ):
        raise ValueError("its counts do not have one number per expert")
    members = np.concatenate([process.lists[name][0] for name in LISTS[5:]])
    last = np.concatenate((columns["first_source"] + columns["sources"], columns["all_sources"], members, [0]))
    if (columns["sources"] < 1).any() or (columns["experts"] < 1).any() or columns["first_source"].min(initial=0) < 0:
        raise ValueError("it has calls without sources or experts")
    if last.max() > _MOST_SOURCES or members.min(initial=0) < 0:
        raise ValueError("it names ranks that cannot be")
    if ((columns["dispatcher"] < 0) | (columns["dispatcher"] >= len(DISPATCHERS))).any():
        raise ValueError("it has an unknown dispatcher")


def joined(processes: Sequence[_Process]) -> Routing:
    """The records of processes, by layer."""
    sources = _sources(processes)
    keys: dict[tuple[int, Shape], list[tuple[int, int]]] = {}  # which call of which process
    for place, process in enumerate(processes):
        for call in range(len(process.columns["step"])):
            shape = Shape(*(int(process.columns[field.name][call]) for field in fields(Shape)))
            keys.setdefault((int(process.columns["layer"][call]), shape), []).append((place, call))
    orders = [_order(process) for process in processes]
    layers = [_layer(*key, processes, calls, sources, orders) for key, calls in keys.items()]
    return Routing(tuple(sorted(layers, key=lambda one: one.layer)), sum(p.overwritten for p in processes))


def _sources(processes: Sequence[_Process]) -> dict[int, tuple[int, int]]:
    """Rank and device of each source, by its number; members of groups that left no record are among them."""
    found: dict[int, tuple[int, int]] = {}
    for process in processes:
        counts, firsts = process.columns["sources"], process.columns["first_source"]
        for first, count in set(zip(firsts.tolist(), counts.tolist(), strict=True)):
            alone = count == 1 and first == process.rank
            found |= {first + i: (process.rank, ABSENT if alone else first + i) for i in range(count)}
    named = {int(m) for process in processes for name in LISTS[5:] for m in process.lists[name][0]}
    named.update(range(max((int(process.columns["all_sources"].max(initial=0)) for process in processes), default=0)))
    return dict(sorted({**{member: (member, ABSENT) for member in named}, **found}.items()))


def _order(process: _Process) -> Int64:
    """Which call of its step each is."""
    step = process.columns["step"]
    first = {number: at for at, number in reversed(list(enumerate(step.tolist())))}
    return np.array([at - first[number] for at, number in enumerate(step.tolist())], np.int64)


def _layer(
    layer: int,
    shape: Shape,
    processes: Sequence[_Process],
    calls: Sequence[tuple[int, int]],
    sources: Mapping[int, tuple[int, int]],
    orders: Sequence[Int64],
) -> LayerRouting:
    """The calls of one layer: those of all processes with one step and occurrence are one."""
    moments = sorted({_when(processes[place], call) for place, call in calls})
    at, row = {moment: i for i, moment in enumerate(moments)}, {number: i for i, number in enumerate(sources)}
    order, counts = np.full((len(moments), len(row)), ABSENT, np.int64), _Counts((len(moments), len(row)))
    ep_groups: dict[int, tuple[int, ...]] = {}
    etp_groups: dict[int, tuple[int, ...]] = {}
    for place, call in calls:
        process, moment = processes[place], at[_when(processes[place], call)]
        first, count = (int(process.columns[name][call]) for name in ("first_source", "sources"))
        rows = [row[first + i] for i in range(count)]
        order[moment, rows] = orders[place][call]
        for name in LISTS[:5]:
            counts.put(name, moment, rows, process.of(name, call))
        for name, groups in (("ep_group", ep_groups), ("etp_group", etp_groups)):
            groups.update(dict.fromkeys(rows, tuple(row[member] for member in process.of(name, call).tolist())))
    everybody = tuple(range(len(row)))
    rank, device = (np.array(column, np.int64) for column in zip(*sources.values(), strict=True))
    return LayerRouting(
        layer=layer,
        shape=shape,
        step=np.array([step for step, _ in moments], np.int64),
        occurrence=np.array([occurrence for _, occurrence in moments], np.int64),
        rank=rank,
        device=device,
        order=order,
        assigned=counts.tables["tokens_per_expert"],
        dropped=counts.tables.get("dropped"),
        expert_rows=counts.tables.get("expert_rows"),
        sent=counts.tables.get("sent"),
        received=counts.tables.get("received"),
        ep_groups=tuple(ep_groups.get(s) or everybody for s in everybody),
        etp_groups=tuple(etp_groups.get(s) or (s,) for s in everybody),
    )


class _Counts:
    """Tables [calls, sources, length of a list], made when their first list comes."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self.tables: dict[str, Int32] = {}

    def put(self, name: str, moment: int, rows: Sequence[int], values: Int64) -> None:
        """Fill in a list of some sources; one of another length than the first is left out."""
        if not len(values) or len(values) % len(rows):
            return
        per_source = values.reshape(len(rows), -1)
        table = self.tables.setdefault(name, np.full((*self._shape, per_source.shape[1]), ABSENT, np.int32))
        if table.shape[2] == per_source.shape[1]:
            table[moment, rows] = per_source


def _when(process: _Process, call: int) -> tuple[int, int]:
    return int(process.columns["step"][call]), int(process.columns["occurrence"][call])
