"""What an audit of sharding finds: arrays, collectives, redundancy, and a finding per mismatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from traceflow.result import Finding, Json, Note, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.intent.mesh import Axes, Mesh
    from traceflow.intent.spec import Spec


@dataclass(frozen=True, slots=True)
class ArrayRow:
    """How one array was meant to lie, and how it does."""

    program: str
    name: str
    role: str  # argument, result or constraint
    dtype: str
    global_shape: tuple[int, ...]
    intended: Spec | None  # None where nothing is stated
    compiled: Spec | None  # None where no spec says it
    local_shape: tuple[int, ...] | None
    matches: bool | None
    source: str

    def to_dict(self) -> dict[str, Json]:
        """A row of `arrays`."""
        return {
            "program": self.program,
            "name": self.name,
            "role": self.role,
            "dtype": self.dtype,
            "global_shape": list(self.global_shape),
            "intended": None if self.intended is None else str(self.intended),
            "compiled": None if self.compiled is None else str(self.compiled),
            "local_shape": None if self.local_shape is None else list(self.local_shape),
            "matches": self.matches,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective, on the user's axes."""

    program: str
    name: str
    operation: str
    mesh_axes: Axes | None  # None where no name fits
    groups: tuple[tuple[int, ...], ...]
    bytes: int | None  # that each device sends
    expected: bool | None  # None where that cannot be told
    written: bool
    assembles: tuple[str, ...]  # arguments that it gathers to their whole
    scope: str
    source: str
    occurrences: int | None  # executions in the trace, on all devices together
    time_ns: int | None  # likewise

    def to_dict(self) -> dict[str, Json]:
        """A row of `collectives`."""
        return {
            "program": self.program,
            "name": self.name,
            "op": self.operation,
            "mesh_axes": None if self.mesh_axes is None else list(self.mesh_axes),
            "groups": [list(group) for group in self.groups],
            "bytes": self.bytes,
            "expected": self.expected,
            "written": self.written,
            "assembles": list(self.assembles),
            "scope": self.scope,
            "source": self.source,
            "occurrences": self.occurrences,
            "time_ns": self.time_ns,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding(Shown):
    """Intended against compiled sharding of the programs of a run."""

    kind: ClassVar[str] = "sharding"
    mesh: Mesh | None
    arrays: tuple[ArrayRow, ...]
    collectives: tuple[CollectiveRow, ...]
    redundancy_ratio: float | None
    redundancy_reason: str
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of `show sharding`."""
        return {
            "mesh": None if self.mesh is None else dict(self.mesh.axes),
            "arrays": [row.to_dict() for row in self.arrays],
            "collectives": [row.to_dict() for row in self.collectives],
            "redundancy_ratio": self.redundancy_ratio,
            "redundancy_reason": self.redundancy_reason,
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per array."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.arrays])
