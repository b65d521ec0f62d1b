"""The kernels of the Kineto reader as plain Python, with every read of memory checked.

Compiled, they read at addresses, and a read outside of what was given to them would go unnoticed. Here each is held
against the buffer of the file and the texts collected so far, and arrays are indexed by numpy, which checks as well.
To be used in a process with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.sound import assert_sound


class Memory:
    """What kernels may read: the buffer, and the texts and habits of the collector that is at work."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.buffer = np.empty(0, np.uint8)
        self.collector: Any = None

    def load(self, at: int) -> np.uint64:
        """The eight bytes at an address."""
        return np.uint64(int.from_bytes(self._read(at, 8), "little"))

    def between(self, at: int, low: int, high: int) -> np.uint64:
        """Bits of the bytes in the block at an address that are neither below the one nor above the other."""
        return np.uint64(sum(1 << i for i, byte in enumerate(self._read(at, self.block_bytes)) if low <= byte <= high))

    def equal(self, at: int, learned: int) -> np.uint64:
        """Bits of the bytes in the block at an address that are those of a block in the habits."""
        pairs = zip(self._read(at, self.block_bytes), self._read(learned, self.block_bytes), strict=True)
        return np.uint64(sum(1 << i for i, (one, other) in enumerate(pairs) if one == other))

    def _read(self, at: int, count: int) -> bytes:
        """Some bytes at an address.

        Raises:
            IndexError: where one of them is not the reader's.
        """
        regions = (self.buffer, self.collector._texts._arena, self.collector._habits)
        if not any(region.ctypes.data <= at <= region.ctypes.data + region.nbytes - count for region in regions):
            raise IndexError(f"{at - self.buffer.ctypes.data} is outside of {len(self.buffer)} bytes of the file")
        return ctypes.string_at(int(at), count)


def _low_zeros(word: np.uint64) -> int:
    return (int(word) & -int(word)).bit_length() - 1


def _check() -> None:
    """Let the kernels read through a `Memory`; they are resolved when they first run."""
    from traceflow.trace import _json_blocks, _kineto_rows, _text_columns

    memory, feed = Memory(_text_columns.BLOCK), _kineto_rows._Collector.feed

    def watched(self: Any, buffer: NDArray[np.uint8], *, final: bool) -> int:
        memory.buffer, memory.collector = buffer, self
        try:
            with np.errstate(over="ignore"):
                return feed(self, buffer, final=final)
        finally:
            memory.buffer = np.empty(0, np.uint8)  # the reader may have to enlarge what is behind it

    plain = {
        _text_columns.load: memory.load,
        _json_blocks._low_zeros: _low_zeros,
        _json_blocks._between: memory.between,
        _json_blocks.equal: memory.equal,
    }
    for intrinsic, written_out in plain.items():
        intrinsic.__dict__["dispatcher"] = written_out
    _kineto_rows._Collector.feed = watched  # type: ignore[method-assign]
    _CHECKED.append(memory)


_CHECKED: list[Memory] = []


def read_checked(file: Path) -> None:
    """Read a Kineto trace so."""
    if not _CHECKED:
        _check()
    from traceflow.trace.kineto import read_kineto

    assert_sound(read_kineto(file))
