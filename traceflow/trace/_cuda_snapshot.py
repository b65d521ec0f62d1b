"""Snapshots of the CUDA allocator of PyTorch: what is allocated, and the history of how that came about."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from traceflow.errors import TraceflowError
from traceflow.result import Note, Tally
from traceflow.trace.model import ABSENT, MemoryUse

_PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_KEYS = (b"device_traces", b"segments")
_DAMAGED = (
    pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError,
    RecursionError,
)  # fmt: skip
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_FREE = "inactive"


def looks_like_snapshot(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a snapshot."""
    return head.startswith(_PICKLE) and any(key in head for key in _KEYS)


class _Plain(pickle.Unpickler):
    """Takes plain values alone. A pickle that asks for anything else is refused before anything is executed."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise _AsksForCode(f"{module}.{name}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise _AsksForCode(str(pid))


class _AsksForCode(Exception):  # noqa: N818  # no user sees it
    """A pickle wants something imported; the message says what."""


def snapshot_rows(content: bytes, path: Path) -> tuple[list[tuple[int, int, int, int, int, int]], Tally]:
    """Allocations and releases of each device, in order: time, device, change, allocated, reserved, use.

    Args:
        content: The pickle.
        path: Where it comes from.

    Raises:
        TraceflowError: TF103 when it is damaged or of another form, TF109 when it asks for more than plain values.
    """
    from traceflow.trace._pickle_memo import highest_place

    try:
        if highest_place(content) > len(content):
            raise ValueError("it asks for more memory than it has content")
        told = _Plain(io.BytesIO(content)).load()
        histories, segments = told["device_traces"], told["segments"]
        _refuse_repeated((*histories, *segments))
        devices = [
            _Device(number, history, [s for s in segments if s["device"] == number])
            for number, history in enumerate(histories)
        ]
    except _AsksForCode as error:
        why = f"the pickle asks for {error}, and a snapshot holds plain values alone"
        raise TraceflowError("TF109", f"cannot read {path}", why, "do not open it otherwise either") from error
    except _DAMAGED as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise TraceflowError("TF103", f"cannot read {path}", why, "copy it again, or record again") from error
    read = sum(map(len, histories))
    rows = [row for device in devices for row in device.rows]
    notes = tuple(note for device in devices for note in device.notes)
    others = Counter(str(event["action"]) for history in histories for event in history if not _change(event))
    return rows, Tally(read, read - others.total(), {}, {f"action {name}": n for name, n in others.items()}, notes)


def _refuse_repeated(values: Sequence[object]) -> None:
    """Refuse what is one thing in many places: a short pickle could be a long history."""
    if len({id(value) for value in values}) < len(values):
        raise ValueError("one part stands in several places")


def _integer(said: Mapping[str, Any], name: str) -> int:
    value = said[name]
    if type(value) is not int:
        raise TypeError(f"{name} is no whole number")
    return value


def _change(event: Mapping[str, Any]) -> int:
    """What an event does: 1 and -1 allocate and free a block, 2 and -2 a segment; 0 for what changes nothing.

    A block is free when that is completed: until then another stream may still use it.
    """
    action = event["action"]
    if type(action) is not str:
        raise TypeError("action is no text")
    return {"alloc": 1, "free_completed": -1}.get(action, 2 * _RESERVED.get(action, 0))


class _Device:
    """History of one device, walked by address."""

    def __init__(
        self, number: int, history: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]]
    ) -> None:
        self._number = number
        self._events = [(event, _change(event)) for event in history if _change(event)]
        self._active = {
            _integer(b, "address"): _integer(b, "size") for s in segments for b in s["blocks"] if b["state"] != _FREE
        }
        self._reserved_bytes = sum(_integer(segment, "total_size") for segment in segments)
        before_bytes = self._before()
        self._is_whole = before_bytes is not None
        blocks = [change * _integer(event, "size") if abs(change) == 1 else 0 for event, change in self._events]
        held = [change // 2 * _integer(event, "size") if abs(change) == 2 else 0 for event, change in self._events]
        allocated = list(accumulate(blocks, initial=before_bytes or 0))[1:]
        reserved = list(accumulate(held, initial=self._reserved_bytes - sum(held)))[1:]
        knows_reserved = min(reserved, default=0) >= 0
        self.rows = [
            (
                1000 * _integer(event, "time_us"),
                number,
                change_bytes,
                total if self._is_whole else ABSENT,
                whole if knows_reserved else ABSENT,
                int(MemoryUse.UNKNOWN),
            )
            for (event, _), change_bytes, total, whole in zip(self._events, blocks, allocated, reserved, strict=True)
        ]

    def _before(self) -> int | None:
        """Bytes that were allocated before the history begins; None where it contradicts itself or the blocks.

        They are the blocks that are freed without having been allocated, and those that are there in the end without.
        """
        live: dict[int, int] = {}
        before_bytes = 0
        for event, change in self._events:
            address, size = _integer(event, "addr"), _integer(event, "size")
            if change == 1 and address in live:
                return None  # its release is missing
            if change == 1:
                live[address] = size
            elif change == -1 and live.pop(address, None) is None:
                before_bytes += size
        if any(address not in self._active for address in live):
            return None
        kept_bytes: int = sum(size for address, size in self._active.items() if address not in live)
        return before_bytes + kept_bytes

    @property
    def notes(self) -> tuple[Note, ...]:
        """That the history is not whole."""
        if self._is_whole:
            return ()
        text = f"history truncated: releases on device {self._number} are missing, so that nothing adds up to a total"
        return (Note("TF313", text, ("/result/allocator",)),)
