"""What PyTorch's memory was used for, and on a GPU, which allocations there were.

`rankNNNNN.memory_timeline.json`
    `device`, the names of `categories`, and at each of `times_ns`, in ns since 1970, the bytes of each category that
    were allocated then, in a row of `allocated_bytes`. What PyTorch cannot tell is `unknown`.

`rankNNNNN.memory_snapshot.pickle`
    The snapshot of the CUDA allocator with its history of the recorded steps, as the memory viewer of PyTorch reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceflow.result import Json

_ENTRIES = 100_000  # of the history; the allocator forgets older ones


class History:
    """The history that the CUDA allocator keeps from now on."""

    def __init__(self) -> None:
        from torch.cuda import memory

        self._memory = memory
        # Nothing public starts it. Frames of Python alone cost little.
        self._memory._record_memory_history(stacks="python", max_entries=_ENTRIES)  # noqa: SLF001

    def write(self, file: Path) -> None:
        """Write the history with a snapshot of what is allocated."""
        self._memory._dump_snapshot(str(file))  # noqa: SLF001

    def close(self) -> None:
        """End the history."""
        self._memory._record_memory_history(enabled=None)  # noqa: SLF001


def memory_timeline(profiler: Any, device: str) -> dict[str, Json]:
    """What memory was used for in the steps of a profiler that has stopped, and recorded shapes, memory and stacks.

    Source: the categories of torch.profiler. They follow from the whole of the recorded steps: what the optimizer
    updates is a parameter, what a backward pass needs again is an activation.
    """
    from torch.profiler import _memory_profiler

    # The public export is deprecated without a successor, and draws.
    timeline = _memory_profiler.MemoryProfileTimeline(profiler._memory_profile())  # noqa: SLF001
    times_us, sizes = timeline._coalesce_timeline(device)  # noqa: SLF001
    categories = _memory_profiler._CATEGORY_TO_INDEX  # noqa: SLF001
    return {
        "device": device,
        "categories": ["unknown" if category is None else category.name.lower() for category in categories],
        "times_ns": [1_000 * time_us for time_us in times_us],
        "allocated_bytes": [row[1:] for row in sizes],  # the first is no category
    }
