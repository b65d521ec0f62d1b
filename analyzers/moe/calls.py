"""Which call of the routing record each piece of work belongs to, by the order in which stages occur."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.trace.model import ABSENT, Int64, Rows, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.moe.stages import Staged
    from traceflow.intent.routing import LayerRouting


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one layer by one source."""

    layer: int  # place among the layers of the record
    call: int  # row of the layer
    source: int


class Calls:
    """The calls of a record by rank and step, in order, and the annotations that they are found in."""

    def __init__(self, trace: Trace, of: Staged, layers: Sequence[LayerRouting]) -> None:
        self._trace, self._of = trace, of
        self._by_step: dict[tuple[int, int], list[tuple[int, int, Call]]] = {}  # order, occurrence
        for at, layer in enumerate(layers):
            for call, source in np.argwhere(layer.order != ABSENT).tolist():
                key = int(layer.rank[source]), int(layer.step[call])
                told = int(layer.order[call, source]), int(layer.occurrence[call]), Call(at, call, source)
                self._by_step.setdefault(key, []).append(told)
        self._devices = {
            (at, source): int(d) for at, layer in enumerate(layers) for source, d in enumerate(layer.device)
        }

    def of_stage(self, stage: int, *, backward: bool) -> Iterator[tuple[Call, Int64]]:
        """Each call with the events of its work in a stage; nothing for steps whose occurrences are not as many."""
        e, lanes, of = self._trace.events, self._trace.lanes, self._of
        rows = np.flatnonzero((of.stage == stage) & (of.backward == backward))
        for key, here in _by_key(lanes.rank[e.lane[rows]], of.step[rows], rows):
            told, annotation = self._by_step.get(key, []), of.annotation[here]
            if (annotation == ABSENT).any():
                yield from self._of_devices(told, here, lanes.device[e.lane[here]])
                continue
            opened = np.unique(annotation)
            opened = opened[np.argsort(e.start_ns[opened], kind="stable")]
            expected = _backwards(told) if backward else [call for *_, call in sorted(told, key=lambda one: one[:2])]
            if len(opened) == len(expected):
                yield from ((call, here[annotation == row]) for call, row in zip(expected, opened, strict=True))

    def _of_devices(
        self, told: Sequence[tuple[int, int, Call]], events: Int64, device: Rows
    ) -> Iterator[tuple[Call, Int64]]:
        """Instructions carry no number of their call: they can be told apart where a step has one."""
        if len({(call.layer, call.call) for *_, call in told}) == 1:
            yield from ((call, events[device == self._devices[call.layer, call.source]]) for *_, call in told)


def _by_key(rank: Rows, step: Int64, rows: Int64) -> Iterator[tuple[tuple[int, int], Int64]]:
    """Rows by rank and step."""
    order = np.lexsort((rows, step, rank))
    keys = np.column_stack((rank, step))[order]
    distinct, first = np.unique(keys, axis=0, return_index=True)
    for key, mine in zip(distinct.tolist(), np.split(rows[order], first[1:]), strict=False):
        yield (key[0], key[1]), mine


def _backwards(told: Sequence[tuple[int, int, Call]]) -> list[Call]:
    """Micro-batches in the order of their forward passes, each with its last layer first."""
    return [call for _, _, call in sorted(told, key=lambda one: (one[1], -one[0]))]
