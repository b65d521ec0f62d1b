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

WORD_BYTES = 8


class Memory:
    """What kernels may read: the buffer and the texts of the collector that is at work."""

    def __init__(self) -> None:
        self.buffer = np.empty(0, np.uint8)
        self.collector: Any = None

    def load(self, at: int) -> np.uint64:
        """The eight bytes at an address.

        Raises:
            IndexError: where one of them is not the reader's.
        """
        arena = self.collector._texts._arena
        if not (_holds(self.buffer, at) or _holds(arena, at)):
            raise IndexError(f"{at - self.buffer.ctypes.data} is outside of {len(self.buffer)} bytes of the file")
        return np.uint64(int.from_bytes(ctypes.string_at(int(at), WORD_BYTES), "little"))


def _holds(region: NDArray[np.uint8], at: int) -> bool:
    return region.ctypes.data <= at <= region.ctypes.data + len(region) - WORD_BYTES


def _low_zeros(word: np.uint64) -> int:
    return (int(word) & -int(word)).bit_length() - 1


def _check() -> None:
    """Let the kernels read through a `Memory`; they are resolved when they first run."""
    from traceflow.trace import _kineto_rows, _kineto_scan, _text_columns

    memory, feed = Memory(), _kineto_rows._Collector.feed

    def watched(self: Any, buffer: NDArray[np.uint8], *, final: bool) -> int:
        memory.buffer, memory.collector = buffer, self
        with np.errstate(over="ignore"):
            return feed(self, buffer, final=final)

    for intrinsic, plain in ((_text_columns.load, memory.load), (_kineto_scan._low_zeros, _low_zeros)):
        intrinsic.__dict__["dispatcher"] = plain
    _kineto_rows._Collector.feed = watched  # type: ignore[method-assign]
    _CHECKED.append(memory)


_CHECKED: list[Memory] = []


def read_checked(file: Path) -> None:
    """Read a Kineto trace so."""
    if not _CHECKED:
        _check()
    from traceflow.trace.kineto import read_kineto

    assert_sound(read_kineto(file))
