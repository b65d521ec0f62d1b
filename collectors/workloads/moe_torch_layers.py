"""How tokens and experts meet on several PyTorch processes, in the form that Megatron calls AlltoAll.

Processes lie on a grid of three dimensions, the first running fastest:

- ETP: those that share the matrices of the same experts, each with F / ETP of their inner columns;
- EP: those that hold different experts, each E / EP consecutive ones;
- EDP: those that hold copies of the same parts.

A process of n tokens sends each to its k experts. It sorts the n k assignments by expert, which makes blocks for each
process of EP; an all-to-all exchanges them, in as many rows as the blocks have. Processes of ETP gather what each
received, for each needs all rows of its experts. Rows come by source and have to be sorted again, by expert. The
results go back the same way: unsorted, summed and scattered over ETP, exchanged, and added up for each token.

The gate enters inside an expert, before its last matrix, so that what comes back needs no further weight:

    F_e(h, g) = (g silu(h G_e) * (h U_e)) V_e

With a capacity c a source sends exactly c rows to each expert. What exceeds them is dropped, what is missing is padded.
Nothing has then to be known of the others before the exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceflow.collectors.workloads import moe_reference
from traceflow.collectors.workloads.torch_stages import all_gather, all_to_all, gather, scatter, scope, stage
from traceflow.routed import moe

if TYPE_CHECKING:
    import torch

ETP, EP, EDP, EXCHANGE = "ETP", "EP", "EDP", "ETPxEP"
MIX_STAGES = ("permute", "dispatch", "sort", "experts", "unsort", "combine", "unpermute")
ETP_STAGES = ("etp_gather", "etp_scatter")  # where there are several processes of ETP
FORWARD_STAGES = ("preprocess", "load_balancing")  # they have no derivative


@dataclass(frozen=True, slots=True)
class Size:
    """How large the layer is; `tokens` is a multiple of the processes, `experts` of EP, `hidden` of ETP."""

    tokens: int = 1024  # S, on all processes together
    model: int = 64  # D, width of a token
    hidden: int = 128  # F, width inside an expert, the shared one too
    experts: int = 8  # E
    choices: int = 2  # k, experts per token
    capacity_factor: float | None = None  # None drops nothing

    def capacity(self, processes: int) -> int | None:
        """Rows that each process reserves for each expert; None where it sends as many as there are."""
        if self.capacity_factor is None:
            return None
        return moe_reference.capacity(self.tokens // processes, self.choices, self.experts, self.capacity_factor)


@dataclass(frozen=True, slots=True)
class Layout:
    """The grid of processes: rank = etp + ETP * (ep + EP * edp)."""

    etp: int = 1
    ep: int = 1
    edp: int = 1

    @property
    def processes(self) -> int:
        """How many there are."""
        return self.etp * self.ep * self.edp

    def groups(self) -> dict[str, list[list[int]]]:
        """The ranks of every group, by what the groups are for; `EXCHANGE` is those that share one set of experts.

        Example:
            >>> Layout(etp=2, ep=2).groups()["EP"]
            [[0, 2], [1, 3]]
        """
        grid = np.arange(self.processes).reshape(self.edp, self.ep, self.etp)
        lines = {ETP: grid, EP: np.moveaxis(grid, 1, 2), EDP: np.moveaxis(grid, 0, 2), EXCHANGE: grid[:, None]}
        return {
            name: line.reshape(-1, line.shape[-1] if name != EXCHANGE else self.etp * self.ep).tolist()
            for name, line in lines.items()
        }

    def position(self, rank: int) -> tuple[int, int, int]:
        """Where a process lies along ETP, EP and EDP."""
        return rank % self.etp, rank // self.etp % self.ep, rank // (self.etp * self.ep)


LAYOUTS = {
    "ep2_edp2": Layout(ep=2, edp=2),
    "ep4": Layout(ep=4),
    "etp2_ep2": Layout(etp=2, ep=2),
    "single": Layout(),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """This process on the grid."""

    layout: Layout
    rank: int
    groups: Mapping[str, Any]  # those that this process is in; None for one that has no other member


class Plan(NamedTuple):
    """Which rows a process exchanges, and where those of its experts lie."""

    sent: list[int]  # rows for each process of EP
    received: list[int]  # rows from each
    longest: int  # the most rows that a process of ETP received
    order: NDArray[np.int64]  # of the rows that ETP gathered, each part filled up to `longest`: those of each expert
    rows: list[int]  # of each local expert


class Routing(NamedTuple):
    """How the tokens of one process went, in one step."""

    assigned: torch.Tensor  # [E]: assignments to each expert, the dropped ones included
    dropped: torch.Tensor  # [E]
    load: torch.Tensor  # [E]: shares of all assignments of all processes
    probability: torch.Tensor  # [E]: mean of the router's softmax over all tokens of all processes
    sent: list[int]  # rows for each process of EP
    received: list[int]  # rows from each
    rows: list[int]  # rows that each local expert multiplied


def join(layout: Layout) -> Grid:
    """Make the groups of the layout; every process of the default group calls this.

    Args:
        layout: For as many processes as the default group has.
    """
    import torch.distributed as dist

    rank, own = dist.get_rank(), {}
    for name, members in layout.groups().items():
        made = [dist.new_group(ranks, group_desc=name) if len(ranks) > 1 else None for ranks in members]
        own[name] = next(group for group, ranks in zip(made, members, strict=True) if rank in ranks)
    return Grid(layout, rank, own)


def choose(
    hidden: torch.Tensor, router: torch.Tensor, choices: int, table: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gates and experts of each token, and the mean probability of each expert.

    Args:
        hidden: Tokens, [n, D].
        router: [D, E].
        choices: Experts per token, k.
        table: The experts of each token, [n, k], for a router that only weighs them; None takes the highest logits.
    """
    logits = hidden @ router
    experts = logits.topk(choices).indices if table is None else table
    return logits.gather(1, experts).softmax(1), experts, logits.detach().softmax(1).mean(0)


def swiglu(rows: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What enters the last matrix of an expert, [m, F]."""
    import torch

    return torch.nn.functional.silu(rows @ gate) * (rows @ up)


def plan(counts: NDArray[np.int64], ep: int, etp: int) -> Plan:
    """What the process at `ep`, `etp` exchanges with its group.

    Args:
        counts: Rows that the processes of `EXCHANGE` have for each expert, [EP, ETP, E].
        ep: Position along EP.
        etp: Position along ETP.

    Example:
        >>> counts = np.array([[[1, 1, 2, 0]], [[1, 0, 1, 2]]])  # experts 0 1 on the first process, 2 3 on the second
        >>> [plan(counts, ep, 0)[:2] for ep in range(2)]
        [([2, 2], [2, 1]), ([1, 3], [2, 3])]
    """
    sources, sharers, experts = counts.shape
    here = experts // sources
    arriving = counts[:, :, ep * here : (ep + 1) * here]
    received = arriving.sum(axis=(0, 2))
    # Of each process of ETP lie, one after another: blocks by source and expert, then rows to be left out.
    blocks = np.moveaxis(arriving, 1, 0).reshape(sharers, sources * here)
    blocks = np.concatenate([blocks, received.max() - received[:, None]], axis=1)
    expert = np.repeat(np.tile([*np.tile(np.arange(here), sources), here], sharers), blocks.ravel())
    return Plan(
        sent=counts[ep, etp].reshape(sources, here).sum(axis=1).tolist(),
        received=arriving[:, etp].sum(axis=1).tolist(),
        longest=int(received.max()),
        order=np.argsort(expert, kind="stable")[: received.sum()],
        rows=arriving.sum(axis=(0, 1)).tolist(),
    )


def mix(
    grid: Grid,
    size: Size,
    weights: Mapping[str, torch.Tensor],
    hidden: torch.Tensor,
    route: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, Routing]:
    """What the experts make of the tokens of this process, [n, D].

    Args:
        grid: Where this process is.
        size: Shapes.
        weights: `gate`, `up` and `down` of the experts that are held here.
        hidden: Tokens, [n, D].
        route: What `choose` gives for them.
    """
    import torch

    gates, experts, probability = route
    room, ep, etp = size.capacity(grid.layout.processes), grid.groups[EP], grid.groups[ETP]
    with scope("preprocess"):
        assigned = _counted(experts, size.experts)
        dropped = torch.zeros_like(assigned) if room is None else (assigned - room).clamp(min=0)
        planned = _planned(grid, size, assigned)
        order = torch.from_numpy(planned.order).to(hidden.device)
    with scope("load_balancing"):
        load, probability = _balance(grid, assigned, probability)
    rows, gates, *places = stage("permute", partial(_permute, experts, assigned, room), hidden, gates)
    rows, gates = stage("dispatch", partial(_dispatch, planned, ep), rows, gates)
    if etp is not None:
        rows, gates = stage("etp_gather", partial(_etp_gather, planned, etp), rows, gates)
    rows, gates = stage("sort", partial(_sort, order), rows, gates)
    matrices = (weights[name] for name in ("gate", "up", "down"))
    rows = stage("experts", partial(_experts, planned.rows), rows, gates, *matrices)
    rows = stage("unsort", partial(_unsort, order, planned.longest * grid.layout.etp), rows)
    if etp is not None:
        rows = stage("etp_scatter", partial(scatter, rows=sum(planned.received), group=etp), rows)
    rows = stage("combine", partial(all_to_all, sent=planned.received, received=planned.sent, group=ep), rows)
    mixed = stage("unpermute", partial(_unpermute, len(hidden), places), rows)
    _tell(grid, size, assigned, hidden)
    return mixed, Routing(assigned, dropped, load, probability, planned.sent, planned.received, planned.rows)


def _tell(grid: Grid, size: Size, assigned: torch.Tensor, hidden: torch.Tensor) -> None:
    """Let the recording know what the router chose."""
    moe(
        layer=0,
        tokens_per_expert=assigned,
        topk=size.choices,
        capacity=size.capacity(grid.layout.processes),
        hidden=size.model,
        itemsize=hidden.element_size(),
        ffn_hidden=size.hidden,
        weighted=True,
        ep_group=_own_group(grid, EP),
        etp_group=_own_group(grid, ETP),
    )


def _own_group(grid: Grid, name: str) -> list[int]:
    return next(ranks for ranks in grid.layout.groups()[name] if grid.rank in ranks)


def _counted(experts: torch.Tensor, count: int) -> torch.Tensor:
    """Assignments to each expert; unlike torch.bincount, without asking the device for their maximum."""
    flat = experts.flatten()
    return flat.new_zeros(count).index_add(0, flat, flat.new_ones(flat.shape))


def _planned(grid: Grid, size: Size, assigned: torch.Tensor) -> Plan:
    etp, ep, _ = grid.layout.position(grid.rank)
    shape, room = (grid.layout.ep, grid.layout.etp, size.experts), size.capacity(grid.layout.processes)
    if room is not None:
        return plan(np.full(shape, room), ep, etp)
    counts = all_gather(assigned, grid.groups[EXCHANGE])
    return plan(counts.cpu().numpy().reshape(shape), ep, etp)  # the host needs the splits


def _balance(grid: Grid, assigned: torch.Tensor, probability: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loads of the experts and their mean probabilities, of all processes."""
    import torch
    import torch.distributed as dist

    sums = torch.stack([assigned / assigned.sum(), probability])
    if grid.layout.processes > 1:
        dist.all_reduce(sums)
    load, probability = (sums / grid.layout.processes).unbind()
    return load, probability


def _permute(
    experts: torch.Tensor, assigned: torch.Tensor, room: int | None, hidden: torch.Tensor, gates: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Rows and gates of the assignments by expert, the token of each, and with a capacity the row of each."""
    order = experts.flatten().argsort(stable=True)
    token, gates = order // experts.shape[1], gates.flatten().index_select(0, order)
    rows = hidden.index_select(0, token)
    if room is None:
        return rows, gates, token
    slot = _slots(experts.flatten()[order], assigned, room)
    reserved = len(assigned) * room
    return *(_spread(each, slot, reserved + 1)[:reserved] for each in (rows, gates)), token, slot


def _slots(experts: torch.Tensor, assigned: torch.Tensor, room: int) -> torch.Tensor:
    """The row of each assignment, given in order of experts: the next of its expert, past the end if there is none."""
    import torch

    starts = assigned.cumsum(0) - assigned
    place = torch.arange(len(experts), device=experts.device) - starts[experts]
    return torch.where(place < room, experts * room + place, len(assigned) * room)


def _spread(rows: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    return rows.new_zeros(count, *rows.shape[1:]).index_copy(0, places, rows)


def _dispatch(planned: Plan, group: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(all_to_all(each, planned.sent, planned.received, group) for each in tensors)


def _etp_gather(planned: Plan, group: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(gather(each, planned.longest, group) for each in tensors)


def _sort(order: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(each.index_select(0, order) for each in tensors)


def _experts(
    counts: list[int],
    rows: torch.Tensor,
    gates: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    import torch

    groups = zip(rows.split(counts), gates[:, None].split(counts), gate, up, down, strict=True)
    return torch.cat([weight * swiglu(row, g, u) @ d for row, weight, g, u, d in groups])


def _unsort(order: torch.Tensor, count: int, rows: torch.Tensor) -> torch.Tensor:
    return _spread(rows, order, count)


def _unpermute(tokens: int, places: list[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """The sum of what came back for each token."""
    import torch

    token, *slot = places
    if slot:
        rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).index_select(0, slot[0])
    return rows.new_zeros(tokens, rows.shape[1]).index_add(0, token, rows)
