"""How an array lies on a mesh: which axes split each dimension, and what every device holds of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from traceflow.errors import TraceflowError
from traceflow.intent.mesh import Axes, Mesh

Entry: TypeAlias = "str | Sequence[str] | None"


@dataclass(frozen=True, slots=True)
class Spec:
    """A partition spec: per dimension the axes that split it, major to minor; () leaves it whole.

    Example:
        >>> spec = Spec.of("X", None)
        >>> mesh = Mesh.of({"X": 4, "Y": 2})
        >>> local_shape((8, 2048), spec, mesh), replica_axes(spec, mesh)
        ((2, 2048), ('Y',))
    """

    dimensions: tuple[Axes, ...]
    unreduced: Axes = ()  # over which each device holds partial sums

    @classmethod
    def of(cls, *entries: Entry) -> Spec:
        """A spec as JAX writes it: an axis, several, or None for each dimension."""
        return cls(tuple((e,) if isinstance(e, str) else tuple(e or ()) for e in entries))

    @classmethod
    def parse(cls, text: str) -> Spec:
        """A spec from its text, such as ``P('X', None)`` or ``PartitionSpec(('X', 'Y'),)``.

        Raises:
            TraceflowError: TF143 where the text is none.
        """
        try:
            match ast.parse(text.strip(), mode="eval").body:
                case ast.Call(ast.Name("P" | "PartitionSpec"), entries, []):
                    return cls.of(*map(ast.literal_eval, entries))
        except (ValueError, SyntaxError, TypeError):
            pass
        raise TraceflowError("TF143", f"no partition spec: {text}", "it cannot be read", "write it as P('data', None)")

    def padded(self, rank: int) -> Spec:
        """The same for an array of `rank` dimensions: those not mentioned are whole."""
        return Spec(self.dimensions + ((),) * (rank - len(self.dimensions)), self.unreduced)

    @property
    def axes(self) -> Axes:
        """All axes that split a dimension."""
        return tuple(axis for dimension in self.dimensions for axis in dimension)

    def __str__(self) -> str:
        """As JAX writes it."""
        entries = [repr(d[0]) if len(d) == 1 else repr(d) if d else "None" for d in self.dimensions]
        while entries and entries[-1] == "None":
            entries.pop()
        return f"P({', '.join(entries)})"


def pieces(spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """Into how many pieces each dimension is split."""
    return tuple(mesh.size(axes) for axes in spec.dimensions)


def local_shape(shape: Sequence[int], spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """What one device holds: each dimension divided by its pieces, rounded up.

    Args:
        shape: The whole array's.
        spec: Shorter ones leave the last dimensions whole.
        mesh: Whose axes the spec names.

    Raises:
        TraceflowError: TF142 for an axis that the mesh lacks, TF143 where the spec has too many dimensions or
            uses an axis twice.
    """
    checked = _checked(spec, len(shape))
    return tuple(-(-size // n) for size, n in zip(shape, pieces(checked, mesh), strict=True))


def replica_axes(spec: Spec, mesh: Mesh) -> Axes:
    """The axes along which devices hold the same piece, in the mesh's order."""
    used = {axis.partition(":")[0] for axis in spec.axes}
    return tuple(axis for axis in mesh.axes if axis not in used)


def uneven(shape: Sequence[int], spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """The dimensions that do not divide evenly: some device holds padding there, or nothing at all."""
    counts = pieces(_checked(spec, len(shape)), mesh)
    return tuple(i for i, (size, n) in enumerate(zip(shape, counts, strict=True)) if size % n)


def held(shape: Sequence[int], spec: Spec, mesh: Mesh) -> dict[int, tuple[tuple[int, int], ...]]:
    """What each device holds: first and end index per dimension, by device id. Equal ranges are replicas.

    Example:
        >>> held((8,), Spec.of("X"), Mesh.of({"X": 2, "Y": 2}))
        {0: ((0, 4),), 1: ((0, 4),), 2: ((4, 8),), 3: ((4, 8),)}
    """
    local = local_shape(shape, spec, mesh)
    places = [mesh.position(axes) for axes in spec.padded(len(shape)).dimensions]
    return {
        device: tuple(
            (min(int(at[row]) * length, size), min((int(at[row]) + 1) * length, size))
            for at, length, size in zip(places, local, shape, strict=True)
        )
        for row, device in enumerate(mesh.devices)
    }


def _checked(spec: Spec, rank: int) -> Spec:
    if len(spec.dimensions) > rank:
        raise TraceflowError("TF143", f"{spec} does not fit", f"the array has {rank} dimensions", "shorten the spec")
    if repeated := _repeated(spec.axes):
        raise TraceflowError("TF143", f"no partition spec: {spec}", f"{repeated!r} splits twice", "use an axis once")
    return spec.padded(rank)


def _repeated(axes: Iterable[str]) -> str | None:
    seen: set[str] = set()
    return next((axis for axis in axes if axis in seen or seen.add(axis)), None)  # type: ignore[func-returns-value]
