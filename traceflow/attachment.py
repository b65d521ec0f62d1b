"""What a program attaches to its capture: a file of its own beside the trace."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceflow.capture import write_whole


def check_name(name: str) -> None:
    """Refuse what is no name of a file.

    Raises:
        ValueError: when it has anything but letters, digits, `_`, `-` and dots within.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        message = f"cannot attach {name!r}: use a name such as 'routing.npz', of letters, digits, '_', '-' and '.'"
        raise ValueError(message)


def serialized(name: str, data: Any) -> bytes:
    """The content of the file `name`: bytes and text as they are, arrays by name in `.npz`, and else JSON.

    Raises:
        TypeError: when `data` is none of these.

    Example:
        >>> serialized("routing.json", {"dropped": [0, 2]})
        b'{"dropped": [0, 2]}'
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, str):
        return data.encode()
    if not name.endswith(".npz"):
        return json.dumps(data).encode()
    import numpy as np

    file = io.BytesIO()
    np.savez(file, **data)
    return file.getvalue()


def write_attachment(folders: Sequence[Path], name: str, content: bytes) -> None:
    """Write a file into the first of `folders` that exists; one may take the name of the next at any time.

    Raises:
        OSError: when nothing can be written in the last of them.
    """
    *others, last = folders
    for folder in others:
        try:
            write_whole(folder / name, content)
        except FileNotFoundError:
            continue
        return
    write_whole(last / name, content)
