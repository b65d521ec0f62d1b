"""A parallel plan: how many ranks share which work, and which ranks form which group.

A stage of a pipeline has two meshes over the same ranks, as in the parallel folding of Megatron-LM's mixture of
experts. With N ranks in all and P stages:

    N / P = TP x GTP x CP x DP          for attention and everything dense
          = ETP x EGTP x EP x EDP       for routed experts

TP and ETP hold parts of a matrix and compute with them; GTP and EGTP hold parts that are gathered before use. Ranks
along CP and DP see different tokens. Sequence parallelism uses the groups of TP and is no axis of its own.

Source: "MoE Parallel Folding", arXiv 2504.14960, section 3.2; Megatron-LM's `parallel_state.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.program.replica_groups import Groups

DEFAULT_ORDER = "tp-gtp-cp-ep-dp-pp"
MOST_RANKS = 1 << 18
"""Each rank is a member of a dozen groups, which are all listed."""

_GROUPS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "TP": ("dense", ("tp",)),
    "GTP": ("dense", ("gtp",)),
    "CP": ("dense", ("cp",)),
    "DP": ("dense", ("dp",)),
    "DPxCP": ("dense", ("cp", "dp")),
    "TPxCP": ("dense", ("tp", "cp")),
    "TPxDPxCP": ("dense", ("tp", "cp", "dp")),
    "PP": ("dense", ("pp",)),
    "ETP": ("expert", ("tp",)),
    "EGTP": ("expert", ("gtp",)),
    "EP": ("expert", ("ep",)),
    "ETPxEP": ("expert", ("tp", "ep")),
    "EDP": ("expert", ("dp",)),
}
"""The groups of a plan: which mesh they are of, and along which of its axes their members differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Sizes of all parallel dimensions, and the order in which they count ranks.

    Example:
        >>> plan = ParallelPlan(world=1024, pp=8, cp=2, ep=64)
        >>> plan.data_parallel, plan.expert_data_parallel
        (64, 2)
        >>> plan.groups("EDP")[0], plan.groups("CP")[0]
        ((0, 64), (0, 1))
    """

    world: int
    pp: int = 1
    vpp: int = 1  # model chunks of a stage, executed in turns
    tp: int = 1
    sp: bool = False  # tokens are split over TP between the matrices
    cp: int = 1
    ep: int = 1
    etp: int = 1
    gtp: int = 1
    egtp: int = 1
    gtp_sequence_shards: int = 1  # of GTP, how many ranks work on one sequence
    order: str = DEFAULT_ORDER  # the first name counts fastest; gtp follows tp where it is not named

    def __post_init__(self) -> None:
        """Refuse sizes and orders that describe no mesh at all.

        Raises:
            TraceflowError: TF148.
        """
        if sorted(self._order()) != sorted(DEFAULT_ORDER.split("-")):
            raise _no_plan(f"order {self.order}", f"write it with each of {DEFAULT_ORDER} once")
        sizes = {name: getattr(self, name) for name in _SIZES}
        if wrong := [name for name, size in sizes.items() if size < 1]:
            raise _no_plan(f"{wrong[0]} of {sizes[wrong[0]]}", "give sizes of at least 1")
        if self.world > MOST_RANKS:
            raise _no_plan(f"world of {self.world}", f"give at most {MOST_RANKS} ranks")
        for view, size in (("tp x gtp x cp", self.tp * self.gtp * self.cp), ("etp x egtp x ep", self._expert_size())):
            if self.world % (self.pp * size):
                what = f"{self.world} ranks are no multiple of pp x {view} = {self.pp * size}"
                raise _no_plan(what, "choose sizes whose product divides the ranks")
        if self.gtp % self.gtp_sequence_shards:
            raise _no_plan(
                f"{self.gtp_sequence_shards} sequence shards do not divide gtp {self.gtp}", "choose a divisor of gtp"
            )

    def _order(self) -> list[str]:
        names = self.order.split("-")
        if "gtp" not in names and "tp" in names:
            names.insert(names.index("tp") + 1, "gtp")
        return names

    def _expert_size(self) -> int:
        return self.etp * self.egtp * self.ep

    @property
    def ranks_per_stage(self) -> int:
        """N / P."""
        return self.world // self.pp

    @property
    def data_parallel(self) -> int:
        """Copies of a dense parameter along DP, without its GTP axis: N / (P TP GTP CP)."""
        return self.ranks_per_stage // (self.tp * self.gtp * self.cp)

    @property
    def expert_data_parallel(self) -> int:
        """Copies of an expert's parameter: N / (P ETP EGTP EP)."""
        return self.ranks_per_stage // self._expert_size()

    @property
    def context_parallel_runtime(self) -> int:
        """Ranks that work on one sequence: CP times the sequence shards of GTP."""
        return self.cp * self.gtp_sequence_shards

    @property
    def batch_parallel(self) -> int:
        """Ranks along which samples differ: DP times what of GTP does not share a sequence."""
        return self.data_parallel * self.gtp // self.gtp_sequence_shards

    def groups(self, name: str) -> Groups:
        """The groups of one kind, each with its members in the order of the plan, by their first rank.

        Args:
            name: One of TP, GTP, CP, DP, DPxCP, TPxCP, TPxDPxCP, PP, ETP, EGTP, EP, ETPxEP and EDP.

        Raises:
            TraceflowError: TF148 for another name.
        """
        mesh, axes = _kind(name)
        return _groups(self._order(), self._mesh(mesh), axes)

    def all_groups(self) -> dict[str, Groups]:
        """Every kind of group by its name."""
        return {name: self.groups(name) for name in _GROUPS}

    def group_size(self, name: str) -> int:
        """Members of each group of one kind.

        Raises:
            TraceflowError: TF148 for a name that `groups` does not know.
        """
        mesh, axes = _kind(name)
        sizes = self._mesh(mesh)
        return prod(sizes[axis] for axis in axes)

    def strides(self, mesh: str) -> dict[str, int]:
        """By how much the rank grows with each coordinate: rank = sum over axes of stride x coordinate.

        Args:
            mesh: "dense", of axes tp, gtp, cp, dp and pp; or "expert", of etp, egtp, ep, edp and pp.

        Example:
            >>> plan = ParallelPlan(world=1024, pp=8, cp=2, ep=64)
            >>> plan.strides("dense")["dp"], plan.strides("expert")["edp"]
            (2, 64)
        """
        sizes, stride, found = self._mesh(mesh), 1, {}
        for name in self._order():
            found[name] = stride
            stride *= sizes[name]
        return {axis: found[name] for name, axis in _AXES[mesh].items()}

    def _mesh(self, name: str) -> dict[str, int]:
        if name == "dense":
            return {"tp": self.tp, "gtp": self.gtp, "cp": self.cp, "ep": 1, "dp": self.data_parallel, "pp": self.pp}
        edp = self.expert_data_parallel
        return {"tp": self.etp, "gtp": self.egtp, "cp": 1, "ep": self.ep, "dp": edp, "pp": self.pp}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on both meshes: tp, gtp, cp, dp, pp, etp, egtp, ep and edp.

        Raises:
            TraceflowError: TF148 for a rank that there is not.
        """
        if not 0 <= rank < self.world:
            raise _no_plan(f"no rank {rank}", f"name one of 0 to {self.world - 1}")
        found: dict[str, int] = {}
        for mesh in ("expert", "dense"):
            places = _coordinates(rank, self._order(), self._mesh(mesh))
            found |= {axis: places[name] for name, axis in _AXES[mesh].items()}
        return found


_AXES: Mapping[str, Mapping[str, str]] = {
    "dense": {"tp": "tp", "gtp": "gtp", "cp": "cp", "dp": "dp", "pp": "pp"},
    "expert": {"tp": "etp", "gtp": "egtp", "ep": "ep", "dp": "edp", "pp": "pp"},
}
"""The axes of each mesh: their names in the order of ranks, and their own."""

_SIZES = ("world", "pp", "vpp", "tp", "cp", "ep", "etp", "gtp", "egtp", "gtp_sequence_shards")


def _no_plan(why: str, hint: str) -> TraceflowError:
    return TraceflowError("TF148", "no such parallel plan", why, hint)


def _kind(name: str) -> tuple[str, tuple[str, ...]]:
    if name not in _GROUPS:
        raise _no_plan(f"no group {name}", f"name one of {', '.join(_GROUPS)}")
    return _GROUPS[name]


def _coordinates(rank: int, order: Iterable[str], sizes: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for name in order:
        rank, found[name] = divmod(rank, sizes[name])
    return found


def _groups(order: list[str], sizes: Mapping[str, int], axes: Iterable[str]) -> Groups:
    """Ranks that differ in nothing but `axes`; the axis that is named first in the order counts fastest."""
    slow_first = order[::-1]
    grid = np.arange(prod(sizes.values())).reshape([sizes[name] for name in slow_first])
    inside = [at for at, name in enumerate(slow_first) if name in set(axes)]
    outside = [at for at in range(len(slow_first)) if at not in inside]
    members = prod(grid.shape[at] for at in inside)
    return tuple(tuple(map(int, row)) for row in grid.transpose(outside + inside).reshape(-1, members))
