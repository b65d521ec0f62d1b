"""Where instructions were written: the stack frames that XLA keeps with a program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from traceflow.program.module import Frame
from traceflow.trace.model import ABSENT

_COLUMN = re.compile(r"(:\d+):\d+$")
# Frames of the framework between the user's line and XLA.
_FRAMEWORK = re.compile(r"/jax/_src/|/jaxlib/|/jax/interpreters/")


def read_frames(index: Any) -> tuple[Frame, ...]:
    """The frames of a `StackFrameIndexProto`, whose ids count from 1: row = id - 1, and a caller of 0 is none.

    Raises:
        IndexError: A frame refers to what does not exist.
    """
    files, functions = ["", *index.file_names], ["", *index.function_names]
    lines = [
        Frame(f"{files[p.file_name_id]}:{p.line}", functions[p.function_name_id], -1) for p in index.file_locations
    ]
    numbered = [Frame("", "", -1), *lines]
    return tuple(
        numbered[frame.file_location_id]._replace(caller=frame.parent_frame_id - 1) for frame in index.stack_frames
    )


def frames_of_stacks(stacks: Iterable[str]) -> tuple[tuple[Frame, ...], list[int]]:
    r"""The frames of stacks as TPU traces write them: a line per frame, `file:line:column`, innermost first.

    Returns:
        All frames, each once, and the row of the innermost one of each stack, ABSENT of an empty one.

    Example:
        >>> frames_of_stacks(["model.py:43:8\ntrain.py:7:2\n", "", "train.py:7:2"])[1]
        [1, -1, 0]
    """
    rows: dict[Frame, int] = {}
    innermost = []
    for stack in stacks:
        at = ABSENT
        for line in reversed(stack.splitlines()):
            at = rows.setdefault(Frame(_COLUMN.sub(r"\1", line.strip()), "", at), len(rows))
        innermost.append(at)
    return tuple(rows), innermost


def is_framework(place: str) -> bool:
    """Whether a line belongs to JAX itself.

    Example:
        >>> is_framework("/lib/jax/_src/lax.py:10"), is_framework("/my/model.py:20")
        (True, False)
    """
    return _FRAMEWORK.search(place) is not None


def user_places(frames: Sequence[Frame]) -> list[str]:
    """The line of each frame: of the innermost frame outside the framework, else of the frame itself."""
    lines = []
    for row, frame in enumerate(frames):
        outer, seen = row, set[int]()
        while outer >= 0 and outer not in seen and is_framework(frames[outer].place):
            seen.add(outer)
            outer = frames[outer].caller
        found = outer >= 0 and outer not in seen and frames[outer].place
        lines.append(found or frame.place)
    return lines
