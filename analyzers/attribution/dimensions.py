"""What a group of ranks is called on the meshes of a plan, of a routing record, of the program, or by the program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from traceflow.trace.model import ABSENT, Group

if TYPE_CHECKING:
    from traceflow.intent.mesh import Mesh
    from traceflow.intent.plan import ParallelPlan
    from traceflow.intent.routing import LayerRouting

_DENSE = {"tp": "TP", "gtp": "GTP", "dp": "DP", "cp": "CP", "pp": "PP"}
_EXPERT = {"etp": "ETP", "egtp": "EGTP", "ep": "EP", "edp": "EDP", "pp": "PP"}

_DESCRIBED = (
    # what Megatron, meshes of PyTorch and the workloads call groups
    (r"expert_tensor_and_model_parallel_group|etp_?x?_?ep", "ETPxEP"),
    (r"expert_tensor_parallel_group|etp", "ETP"),
    (r"(?:intra_partial_)?expert_data_parallel_group\w*|edp|dp_shard_mod_ep|dp_mod_ep|efsdp", "EDP"),
    (r"expert_model_parallel_group|ep|experts?", "EP"),
    (r"(?:intra_partial_)?data_parallel_group_with_cp\w*|dp_?x?_?cp|dp_shard_cp|dp_cp", "DPxCP"),
    (r"(?:intra_partial_)?data_parallel_group\w*|dp|dp_shard|dp_replicate|fsdp|data|replicate|shard", "DP"),
    (r"tensor_and_context_parallel_group|tp_?x?_?cp", "TPxCP"),
    (r"tensor_model_parallel_group|tp|tensor", "TP"),
    (r"context_parallel_group|cp|context", "CP"),
    (r"pipeline_model_parallel_group|pp|pipe|pipeline|stage", "PP"),
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Coordinates of ranks on a mesh whose axes have names."""

    axes: tuple[str, ...]
    places: Mapping[int, tuple[int, ...]]

    def name_of(self, members: Iterable[int], *, whole: bool = True) -> str | None:
        """The axes along which members differ, joined by x; None where they are not all that differ so.

        Args:
            members: Ranks.
            whole: Whether every rank that differs from these in the same axes alone has to be among them.
        """
        known = [self.places[member] for member in members if member in self.places]
        if len(known) < 2 or len(known) != len(set(members)):
            return None
        columns = [set(column) for column in zip(*known, strict=True)]
        varied = [place for place, column in enumerate(columns) if len(column) > 1]
        fixed = [place for place in range(len(self.axes)) if place not in varied]
        alike = [other for other in self.places.values() if all(other[place] == known[0][place] for place in fixed)]
        complete = len(alike) == len(known)
        return "x".join(self.axes[place] for place in varied) if complete or not whole else None


@dataclass(frozen=True, slots=True)
class Grids:
    """Both meshes of a plan, as far as they are known."""

    dense: Grid | None = None
    expert: Grid | None = None


def planned(plan: ParallelPlan) -> Grids:
    """The meshes of a plan."""
    coordinates = [plan.coordinates(rank) for rank in range(plan.world)]
    return Grids(*(_grid(names, coordinates) for names in (_DENSE, _EXPERT)))


def _grid(names: Mapping[str, str], coordinates: Sequence[Mapping[str, int]]) -> Grid:
    places = {rank: tuple(place[axis] for axis in names) for rank, place in enumerate(coordinates)}
    return Grid(tuple(names.values()), places)


def recorded(layer: LayerRouting) -> Grid:
    """The mesh of the experts, as the processes told who exchanges tokens and who shares matrices."""
    members = members_of(layer)
    sets = [frozenset(m for sharer in etp for m in layer.ep_groups[sharer]) for etp in layer.etp_groups]
    number = {one: place for place, one in enumerate(dict.fromkeys(sets))}
    places = {
        members[source]: (layer.etp_groups[source].index(source), _place(layer.ep_groups[source], source), number[one])
        for source, one in enumerate(sets)
    }
    return Grid(("ETP", "EP", "EDP"), places)


def _place(group: Sequence[int], source: int) -> int:
    return group.index(source) if source in group else ABSENT


def members_of(layer: LayerRouting) -> list[int]:
    """How groups of the trace call each source: by its rank, or by its device where one process has several."""
    pairs = zip(layer.rank.tolist(), layer.device.tolist(), strict=True)
    return [rank if device == ABSENT else source for source, (rank, device) in enumerate(pairs)]


def described(group: Group | None) -> str | None:
    """The dimension that the program's own name for a group says; None where it says none.

    Example:
        >>> described(Group("3", (0, 2), 2, "mesh_data")), described(Group("1", (0, 1), 2, "EP"))
        ('DP', 'EP')
        >>> described(Group("0", (0, 1), 2, "default_pg"))
    """
    return (_said_by(group.description) or _said_by(group.name)) if group else None


@cache
def _said_by(text: str) -> str | None:
    word = text.lower().removeprefix("mesh_")
    return next((name for pattern, name in _DESCRIBED if re.fullmatch(pattern, word)), None)


def meant_by(axis: str) -> str | None:
    """The dimension that an axis of the user's own mesh stands for, by its name; None where it says none.

    Example:
        >>> [meant_by(axis) for axis in ("data", "model", "expert", "x", "dataxmodel")]
        ['DP', 'TP', 'EP', None, None]
    """
    return "TP" if axis == "model" else described(Group(axis, (), ABSENT))


def on_mesh(mesh: Mesh, members: Iterable[int]) -> str | None:
    """The axes of the user's own mesh that a group lies along, joined by x; None where it fits none."""
    first, *others = sorted(members)
    axes = mesh.axes_between((first, other) for other in others)
    return "x".join(axes) if axes and mesh.size(axes) == len(others) + 1 else None


def is_expert(name: str) -> bool:
    """Whether a dimension is one of the experts' mesh alone.

    Example:
        >>> [is_expert(name) for name in ("EP", "ETPxEP", "DP", "PP")]
        [True, True, False, False]
    """
    return name.startswith("E")
