"""Rows of a mixture-of-experts layer: what its routers chose, what travels, and what its experts multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.trace.model import ABSENT, Int64

if TYPE_CHECKING:
    from traceflow.intent.routing import LayerRouting


@dataclass(frozen=True, slots=True)
class Rows:
    """Counts of C calls, S sources, E experts and p processes of EP; l = E / p experts lie on each.

    executed = kept + capacity padding + alignment padding + masked, for each call, source and expert on it.
    """

    assigned: Int64  # [C, S, E], by the source whose tokens they are
    dropped: Int64  # [C, S, E]
    sent: Int64  # [C, S, p], rows from each source to each process, itself included
    useful: Int64 | None  # [C, S, p], those of them that hold a token for an expert there
    kept: Int64  # [C, S, l], by the source that holds the experts
    capacity_padding: Int64  # [C, S, l]
    alignment_padding: Int64  # [C, S, l]
    masked: Int64  # [C, S, l], multiplied for tokens that did not choose the expert
    own: Int64  # [S], place of each source along EP
    first: tuple[int, ...]  # sources that count where those of ETP have the same rows

    @property
    def executed(self) -> Int64:
        """Rows that the experts of each source multiply, [C, S, l]."""
        return self.kept + self.capacity_padding + self.alignment_padding + self.masked


def complete_calls(layer: LayerRouting) -> Int64:
    """The calls that every source recorded."""
    return np.flatnonzero((layer.assigned[:, :, 0] != ABSENT).all(axis=1))


def count_rows(layer: LayerRouting, calls: Int64) -> Rows:
    """Count rows, those that were recorded as they are, all others as follows.

    - dropped(s, e) = max(0, assigned(s, e) - c) with a capacity c per source and expert; 0 without.
    - A source sends c rows to each expert where it pads, else those that it kept.
    - An expert multiplies what all sources of its exchange sent, ETP included, filled up to a multiple of the alignment.
    - Without a dispatcher a source multiplies its own tokens, with as many experts as it says.

    Args:
        layer: The record.
        calls: Which calls; every source has recorded them.
    """
    assigned = layer.assigned[calls].astype(np.int64)
    dropped = _dropped(layer, calls, assigned)
    kept = assigned - dropped
    padded = layer.shape.capacity != ABSENT and bool(layer.shape.padded)
    offered = np.full_like(kept, layer.shape.capacity) if padded else kept
    own = np.array([group.index(s) if s in group else 0 for s, group in enumerate(layer.ep_groups)])
    if layer.dispatcher == "none":
        here, arrived = kept, offered
    else:
        here, arrived = _arriving(layer, kept, own), _arriving(layer, offered, own)
    executed = _executed(layer, calls, arrived)
    surplus = executed - arrived
    alone = layer.dispatcher == "none"
    sent, useful = _exchanged(layer, calls, assigned, kept, offered)
    return Rows(
        assigned,
        dropped,
        sent,
        useful,
        kept=here,
        capacity_padding=arrived - here,
        alignment_padding=np.zeros_like(surplus) if alone else surplus,
        masked=surplus if alone else np.zeros_like(surplus),
        own=own,
        first=tuple(s for s, group in enumerate(layer.etp_groups) if group[0] == s),
    )


def _dropped(layer: LayerRouting, calls: Int64, assigned: Int64) -> Int64:
    if layer.dropped is not None:
        return np.maximum(layer.dropped[calls], 0).astype(np.int64)
    if layer.shape.capacity == ABSENT:
        return np.zeros_like(assigned)
    excess: Int64 = np.maximum(assigned - layer.shape.capacity, 0)
    return excess


def exchange_of(layer: LayerRouting, source: int) -> list[int]:
    """The sources whose tokens meet the experts of one: those of EP, each with those of its ETP."""
    return sorted({s for peer in layer.ep_groups[source] for s in layer.etp_groups[peer]})


def _arriving(layer: LayerRouting, offered: Int64, own: Int64) -> Int64:
    """What the experts of each source get, [C, S, l]."""
    calls, sources, experts = offered.shape
    here = experts // _processes(layer)
    arriving = np.zeros((calls, sources, here), np.int64)
    for s in range(sources):
        columns = slice(own[s] * here, (own[s] + 1) * here)
        arriving[:, s] = offered[:, exchange_of(layer, s), columns].sum(axis=1)
    return arriving


def _processes(layer: LayerRouting) -> int:
    return len(layer.ep_groups[0])


def _executed(layer: LayerRouting, calls: Int64, arrived: Int64) -> Int64:
    if layer.expert_rows is not None and layer.expert_rows.shape[2] == arrived.shape[2]:
        return layer.expert_rows[calls].astype(np.int64)
    if layer.shape.align == ABSENT:
        return arrived
    filled: Int64 = -(-arrived // layer.shape.align) * layer.shape.align
    return filled


def _exchanged(
    layer: LayerRouting, calls: Int64, assigned: Int64, kept: Int64, offered: Int64
) -> tuple[Int64, Int64 | None]:
    """Rows to each process of EP, and the useful ones among them, both [C, S, p]."""
    by_process = (*kept.shape[:2], _processes(layer), -1)
    dispatcher = layer.dispatcher
    if dispatcher == "none":
        nothing = np.zeros(by_process[:3], np.int64)
        return nothing, nothing
    if dispatcher == "all-gather":  # every token to every process; which of them it is for, counts do not tell
        tokens = assigned.sum(axis=2) // max(layer.shape.topk, 1)
        return np.repeat(tokens[:, :, None], by_process[2], axis=2), None
    sent: Int64 = offered.reshape(by_process).sum(axis=3)
    if layer.sent is not None and layer.sent.shape[2] == by_process[2]:
        sent = layer.sent[calls].astype(np.int64)
    return sent, np.minimum(sent, kept.reshape(by_process).sum(axis=3))
