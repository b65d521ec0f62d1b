"""What a project settles once for every command: `[tool.traceflow]` in the pyproject.toml of the working directory."""

from __future__ import annotations

import tomllib
from pathlib import Path

from traceflow.errors import TraceflowError

_FILE = Path("pyproject.toml")


def project_communication() -> list[str]:
    """The project's patterns for kernels that communicate; none where it names none.

    Raises:
        TraceflowError: TF112 when the file is no TOML, or `communication` in it no list of strings.
    """
    try:
        with _FILE.open("rb") as file:
            settings = tomllib.load(file)
    except FileNotFoundError:
        return []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise _unusable(str(error)) from error
    tool = settings.get("tool")
    own = tool.get("traceflow") if isinstance(tool, dict) else None
    patterns = own.get("communication", []) if isinstance(own, dict) else []
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise _unusable("communication in [tool.traceflow] is no list of strings")
    return patterns


def _unusable(why: str) -> TraceflowError:
    return TraceflowError("TF112", f"cannot use {_FILE} of this folder", why, "correct it, or work in another folder")
