"""`moe`: tell the recording how a mixture-of-experts layer routed its tokens, without waiting for the device."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from traceflow.intent.routing import DISPATCHERS, LISTS, NAME, Dispatcher, packed
from traceflow.recording import Recording, recording_around
from traceflow.trace.model import ABSENT

CALLS = 4096
"""How many calls are kept on the device; the last ones are."""


def moe(
    *,
    layer: int,
    tokens_per_expert: Any,
    topk: int,
    dropped: Any = None,
    expert_rows: Any = None,
    sent: Any = None,
    received: Any = None,
    capacity: int | None = None,
    padded: bool = True,
    align: int | None = None,
    hidden: int | None = None,
    itemsize: int | None = None,
    combine_itemsize: int | None = None,
    ffn_hidden: int | None = None,
    matrices: int = 3,
    weighted: bool | None = None,
    dispatcher: Dispatcher = "all-to-all",
    ep_group: Any = None,
    etp_group: Any = None,
) -> None:
    """Keep how one call of a layer routed its tokens; to be called in each forward pass of each layer, on each rank.

    Outside a recording this returns at once, and so it does while the backward pass computes a layer again. Inside, what
    lies on a device stays there, in memory set aside at the first call, and is copied once, when the recording ends.
    A failure is named in the manifest (`missing`), and never reaches the program. Inside `jax.jit` there are no values
    to keep: return the counts from the function, and call this outside, in the same step. What JAX computed must not be
    donated afterwards. Of code that `torch.compile` compiles, call this outside.

    Args:
        layer: Number of the layer.
        tokens_per_expert: How many of the source's assignments go to each expert of all ranks, [E], the dropped ones
            included; [N, E] for the N devices of one process.
        topk: Experts per token.
        dropped: How many of those were dropped, of the same shape. None: none without a capacity, else what exceeds it.
        expert_rows: Rows that each expert held here multiplied, [E / EP], padding included; None derives it.
        sent: Rows sent to each process of EP, in order of their experts; None derives it.
        received: Rows received from each; None derives it.
        capacity: Rows that a source reserves for each expert.
        padded: Whether it sends the empty ones, too.
        align: The rows of each expert are filled up to a multiple of this, for grouped products.
        hidden: Width of the rows that travel.
        itemsize: Bytes per number on the way to the experts.
        combine_itemsize: Bytes on the way back; None for the same.
        ffn_hidden: Width inside an expert, over all of ETP.
        matrices: Matrices of an expert, 3 with a gate and 2 without.
        weighted: Whether rows come back with their gate applied.
        dispatcher: How tokens travel. "none" where experts do, or nothing.
        ep_group: The ranks among which tokens are exchanged, as a process group or in order of their experts, of which
            each has an equal share. None for all.
        etp_group: The ranks that share the matrices of the same experts; None for this one alone.

    Example:
        >>> moe(layer=0, tokens_per_expert=[3, 1], topk=2)  # no recording here
    """
    recording = recording_around()
    if recording is None or _computes_again():
        return
    told = {
        "topk": topk,
        "capacity": capacity,
        "padded": padded,
        "align": align,
        "hidden": hidden,
        "itemsize": itemsize,
        "combine_itemsize": combine_itemsize or itemsize,
        "ffn_hidden": ffn_hidden,
        "matrices": matrices,
        "weighted": weighted,
    }
    columns = {name: ABSENT if value is None else int(value) for name, value in told.items()}
    given = (tokens_per_expert, dropped, expert_rows, sent, received, ep_group, etp_group)
    lists = {name: value for name, value in zip(LISTS, given, strict=True) if value is not None}
    with recording.forgoing(NAME):
        columns |= {"layer": int(layer), "dispatcher": DISPATCHERS.index(dispatcher)}
        _log_of(recording).add(recording.step_number, columns, lists)


_logs: WeakKeyDictionary[Recording, RoutingLog] = WeakKeyDictionary()


def _log_of(recording: Recording) -> RoutingLog:
    if recording not in _logs:
        _logs[recording] = RoutingLog()
        recording.attach_at_end(NAME, _logs[recording].arrays)
    return _logs[recording]


class RoutingLog:
    """The last calls of a recording, on the device until they are asked for."""

    def __init__(self, calls: int = CALLS) -> None:
        self._calls: deque[tuple[dict[str, int], dict[str, Any]]] = deque(maxlen=calls)
        self._count = 0
        self._step, self._occurrences = ABSENT, Counter[int]()
        self._rings: dict[tuple[str, int, Any], _Ring] = {}

    def add(self, step: int, columns: Mapping[str, int], lists: Mapping[str, Any]) -> None:
        """Keep a call.

        Raises:
            ValueError: where JAX traces it, so that there are no values.
        """
        if step != self._step:
            self._step, self._occurrences = step, Counter()
        occurrence = self._occurrences[columns["layer"]]
        kept = {name: self._kept(name, value) for name, value in lists.items()}
        self._occurrences[columns["layer"]] += 1
        self._calls.append(({**columns, "step": step, "occurrence": occurrence}, kept))
        self._count += 1

    def _kept(self, name: str, value: Any) -> Any:
        """What can be read later, whatever the program does to `value`."""
        if _is_of("torch", "Tensor", value):
            return self._ring(name, value).put(value)
        if _is_of("jax", "Array", value):
            if _is_of("jax.core", "Tracer", value):
                raise ValueError(
                    "JAX traces this call; return the counts from the compiled function, and tell them outside"
                )
            return value  # it cannot change
        return _ranks(value) if name.endswith("_group") else np.array(value, np.int64)

    def _ring(self, name: str, like: Any) -> _Ring:
        key = name, like.numel(), like.device
        if key not in self._rings:
            self._rings[key] = _Ring(like, self._calls.maxlen or CALLS)
        return self._rings[key]

    def arrays(self, rank: int) -> dict[str, Any]:
        """What was kept, for the file of this process."""
        rings = {id(ring): ring.host() for ring in self._rings.values()}
        calls = [
            (columns, {name: _read(value, rings) for name, value in lists.items()}) for columns, lists in self._calls
        ]
        return packed([_counted(*call, rank) for call in calls], overwritten=self._count - len(calls))


class _Host(NamedTuple):
    """Values on the host, [rows, ...] of all that there are."""

    values: Any
    first: int  # number of the first row among all processes
    rows: int  # of all processes


def _counted(columns: dict[str, int], lists: dict[str, _Host], rank: int) -> tuple[dict[str, int], dict[str, Any]]:
    """A call with what the shape of its counts tells; those of one source are of this process."""
    counts, values = lists["tokens_per_expert"], {name: value.values for name, value in lists.items()}
    own = {"sources": 1, "first_source": rank, "all_sources": ABSENT, "experts": counts.values.shape[-1]}
    if counts.values.ndim > 1:
        own |= {"sources": len(counts.values), "first_source": counts.first, "all_sources": counts.rows}
    return {**columns, **own}, values


class _Ring:
    """Rows of one length on one device."""

    def __init__(self, like: Any, rows: int) -> None:
        import torch

        self._rows = torch.zeros((rows, like.numel()), dtype=torch.int32, device=like.device)
        self._next = 0

    def put(self, values: Any) -> _Slot:
        """Copy a row, on the device."""
        at = self._next % len(self._rows)
        self._next += 1
        row = values.detach() if values.requires_grad else values
        self._rows[at].copy_(row if row.ndim == 1 else row.reshape(-1))
        return _Slot(self, at, tuple(values.shape))

    def host(self) -> Any:
        """All rows."""
        return self._rows.cpu().numpy()


class _Slot:
    """Where a row lies."""

    __slots__ = ("at", "ring", "shape")

    def __init__(self, ring: _Ring, at: int, shape: tuple[int, ...]) -> None:
        self.ring, self.at, self.shape = ring, at, shape


def _read(value: Any, rings: Mapping[int, Any]) -> _Host:
    """What was kept of a list."""
    if isinstance(value, _Slot):
        row = rings[id(value.ring)][value.at].reshape(value.shape)
        return _Host(row, 0, len(row))
    if not _is_of("jax", "Array", value) or value.is_fully_addressable:
        whole = np.asarray(value)
        return _Host(whole, 0, len(whole))
    parts = {shard.index[0].start or 0: np.asarray(shard.data) for shard in value.addressable_shards}
    return _Host(np.concatenate([parts[start] for start in sorted(parts)]), min(parts), len(value))


def _is_of(module: str, name: str, value: object) -> bool:
    """Whether `value` is of a type whose module has been imported."""
    home = sys.modules.get(module)
    return home is not None and isinstance(value, getattr(home, name))


def _ranks(group: Any) -> Any:
    """The ranks of a process group, or of a list of them."""
    if isinstance(group, Iterable):
        return np.array(list(group), np.int64)
    import torch.distributed as dist

    return np.array(dist.get_process_group_ranks(group), np.int64)


def _computes_again() -> bool:
    """Whether PyTorch runs a backward pass, in which a layer is computed again where its activations were not kept."""
    torch = sys.modules.get("torch")
    asked = getattr(getattr(torch, "_C", None), "_current_graph_task_id", None)
    return asked is not None and asked() != -1
