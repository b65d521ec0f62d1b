"""What a project settles once for every command: `[tool.traceflow]` in the pyproject.toml of the working directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from traceflow.hardware import Hardware

_FILE = Path("pyproject.toml")


def project_communication() -> list[str]:
    """The project's patterns for kernels that communicate; none where it names none.

    Raises:
        TraceflowError: TF112 when the file is no TOML, or `communication` in it no list of strings.
    """
    return _strings("communication")


def project_requirements() -> list[str]:
    """What a project requires of every run that is checked; nothing where it says nothing.

    Raises:
        TraceflowError: TF112 when `require` is no list of strings.
    """
    return _strings("require")


def hardware_named(name: str) -> Hardware:
    """Hardware by its name: the project's own, of `[tool.traceflow.hardware.NAME]`, else what is known.

    Raises:
        TraceflowError: TF112 when the project describes it wrongly, TF120 when nobody knows the name.
    """
    from traceflow.hardware import known

    described = _settings().get("hardware", {})
    if not isinstance(described, dict) or name not in described:
        return known(name)
    try:
        return msgspec.convert(described[name], _Described).hardware(name)
    except msgspec.ValidationError as error:
        raise _unusable(f"[tool.traceflow.hardware.{name}]: {error}") from error


def _strings(key: str) -> list[str]:
    listed = _settings().get(key, [])
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise _unusable(f"{key} in [tool.traceflow] is no list of strings")
    return listed


_Rate = Annotated[float, msgspec.Meta(ge=1, le=1e24)]  # beyond these, times would be no numbers


class _Described(msgspec.Struct, forbid_unknown_fields=True):
    """Hardware as a project describes it; what it leaves out is not known."""

    flops_per_s: dict[str, _Rate]
    memory_bytes_per_s: _Rate | None = None
    link_bytes_per_s: _Rate | None = None
    source: str = "the project's settings"

    def hardware(self, name: str) -> Hardware:
        """The same as rates of one device."""
        from traceflow.hardware import Hardware

        return Hardware(
            name=name,
            unit="one device",
            flops_per_s=self.flops_per_s,
            memory_bytes=None,
            memory_bytes_per_s=self.memory_bytes_per_s,
            link_bytes_per_s=self.link_bytes_per_s,
            link="as the project says" if self.link_bytes_per_s else "the project gives no rate",
            source=self.source,
        )


def _settings() -> dict[str, Any]:
    """`[tool.traceflow]`, empty where there is none."""
    try:
        with _FILE.open("rb") as file:
            import tomllib

            settings = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, OSError) as error:  # no TOML, no text, too many digits, or nested too deeply
        raise _unusable(str(error)) from error
    tool = settings.get("tool")
    own = tool.get("traceflow") if isinstance(tool, dict) else None
    return own if isinstance(own, dict) else {}


def _unusable(why: str) -> TraceflowError:
    return TraceflowError("TF112", f"cannot use {_FILE} of this folder", why, "correct it, or work in another folder")
