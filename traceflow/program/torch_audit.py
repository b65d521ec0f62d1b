"""What one process of a PyTorch program did with its distributed tensors in one step.

`traceflow.collectors.torch_sharding` writes it, as `rankNNNNN.sharding_audit.json`. Placements are written as PyTorch
does, briefly: `S(0)`, `R`, `P(sum)`, one for each axis of a mesh. What happens several times in the same way is one
entry with a count. A capture whose recording was told the model has placements, in `rankNNNNN.placements.json`: they
are read as an audit that knows no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from traceflow.errors import TraceflowError

Placements: TypeAlias = tuple[str, ...]

_PLACEMENTS = re.compile(r"rank(\d+)\.placements\.json$")
_UNWATCHED = "placements alone were recorded: audit a step for what is laid out anew, and for values that differ"
_MARK = b'{"format":"traceflow sharding audit"'


class TorchMesh(msgspec.Struct, frozen=True):
    """A device mesh: ranks in row-major order."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter as this process holds it; without mesh and placements where it is a plain tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    mesh: TorchMesh | None = None
    placements: Placements | None = None
    digest: str | None = None  # of the local values; None where they are not claimed to be alike anywhere


class Place(msgspec.Struct, frozen=True):
    """Where in the program something happens."""

    module: str = ""  # the innermost one that runs; "" is the whole model, or none
    operator: str = ""  # of distributed tensors, such as aten.add.Tensor
    source: str = ""  # file:line of the program's own code
    backward: bool = False


class Redistribution(msgspec.Struct, frozen=True, kw_only=True):
    """A distributed tensor that is laid out anew."""

    place: Place
    implicit: bool  # an operator needs it; else the program, or its plan, asks for it
    shape: tuple[int, ...]
    dtype: str
    mesh: TorchMesh | None
    before: Placements
    after: Placements
    parameter: str | None = None  # whose values they are, where they are a parameter's
    beside: tuple[Placements, ...] = ()  # how the other operands of the operator lie
    count: int = 1


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that this process took part in."""

    place: Place
    operation: str  # as HLO names it
    group: tuple[int, ...]  # ranks; () where it is not known
    sent_bytes: int | None  # by this process
    redistribution: int | None = None  # number of that which it belongs to
    count: int = 1


class Return(msgspec.Struct, frozen=True):
    """A tensor that is made whole, changed element by element at most, and cut again; nothing else uses it."""

    whole: int  # number of the redistribution that makes it whole
    cut: int  # of that which cuts it
    count: int = 1


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """An operand that ranks claim to hold alike, with what tells whether they do.

    `projections` are on a few random directions that are the same in all ranks, so that the distance of two tensors
    is about the root mean square of the differences of theirs.
    """

    place: Place
    argument: int
    mesh: TorchMesh
    placements: Placements
    shape: tuple[int, ...]
    digest: str
    projections: tuple[float, ...]
    norm: float
    precision: float  # distance of 1 to the next number of its type; 0 for integers


class TorchAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What one process did in the step that was watched."""

    format: Literal["traceflow sharding audit"] = "traceflow sharding audit"
    rank: int
    world_size: int
    modules: tuple[str, ...]
    plan: dict[str, str] | None  # keys, and how each is to be split; None where no plan was told
    parameters: tuple[Parameter, ...]
    redistributions: tuple[Redistribution, ...] = ()
    collectives: tuple[CollectiveCall, ...] = ()
    returns: tuple[Return, ...] = ()
    values: tuple[Value, ...] = ()
    meshes: tuple[TorchMesh, ...] = ()  # those that others are parts of
    missing: tuple[str, ...] = ()  # what could not be watched, with the reason


class _PlacedOn(msgspec.Struct):
    names: tuple[str, ...] | None
    ranks: Any  # nested as deeply as there are axes

    def mesh(self) -> TorchMesh:
        ranks = np.array(self.ranks)
        if ranks.dtype.kind != "i":
            raise ValueError("a mesh has something else than ranks")
        names = self.names or tuple(f"axis{i}" for i in range(ranks.ndim))
        return TorchMesh(names, ranks.shape, tuple(ranks.reshape(-1).tolist()))


class _Placed(msgspec.Struct):
    """A row of `rankNNNNN.placements.json`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    placements: tuple[str, ...] | None
    mesh: _PlacedOn | None


def looks_like_torch_audit(head: bytes) -> bool:
    """Whether the first bytes of a file are those of an audit.

    Example:
        >>> looks_like_torch_audit(b'{"format":"traceflow sharding audit","rank":0'), looks_like_torch_audit(b"{}")
        (True, False)
    """
    return head.startswith(_MARK)


def is_torch_audit(path: Path) -> bool:
    """Whether a file is an audit, by its content."""
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        return looks_like_torch_audit(file.read(len(_MARK)))


def torch_audits(files: Iterable[Path]) -> tuple[Path, ...]:
    """The audits among files; where there are none, what captures keep of placements."""
    candidates = [file for file in files if file.suffix == ".json"]
    audits = tuple(file for file in candidates if is_torch_audit(file))
    return audits or tuple(file for file in candidates if _PLACEMENTS.search(file.name))


def read_torch_audit(path: Path) -> TorchAudit:
    """Read the audit of one process, or of what it recorded, the placements alone.

    Raises:
        TraceflowError: TF101 where the file cannot be read, TF103 where it is damaged.
    """
    try:
        content = path.read_bytes()
        if (named := _PLACEMENTS.search(path.name)) is not None:
            return _of_placements(int(named[1]), msgspec.json.decode(content, type=tuple[_Placed, ...]))
        return msgspec.json.decode(content, type=TorchAudit)
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise TraceflowError("TF101", f"cannot read {path}", why, "check the path") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TraceflowError("TF103", f"cannot read {path}", str(error), "audit again, or delete it") from error


def _of_placements(rank: int, placed: tuple[_Placed, ...]) -> TorchAudit:
    parameters = tuple(
        Parameter(
            name=one.name,
            dtype=one.dtype,
            shape=one.shape,
            local_shape=one.local_shape,
            mesh=None if one.mesh is None else one.mesh.mesh(),
            placements=None if one.placements is None else tuple(map(_brief, one.placements)),
        )
        for one in placed
    )
    return TorchAudit(rank=rank, world_size=0, modules=(), plan=None, parameters=parameters, missing=(_UNWATCHED,))


def _brief(placement: str) -> str:
    """A placement as PyTorch spells it at length, briefly.

    Example:
        >>> [_brief(one) for one in ("Shard(dim=1)", "Replicate()", "Partial(sum)", "_StridedShard(dim=0, sf=2)")]
        ['S(1)', 'R', 'P(sum)', '_S(0, 2)']
    """
    kind, _, details = placement.rstrip(")").partition("(")
    numbers = ", ".join(re.findall(r"-?\d+", details))
    match kind:
        case "Replicate":
            return "R"
        case "Shard":
            return f"S({numbers})"
        case "_StridedShard":
            return f"_S({numbers})"
        case _:
            return f"P({details})"


def encoded(audit: TorchAudit) -> bytes:
    """The content of a file that holds the audit."""
    return msgspec.json.encode(audit)
