"""Whether the trace exchanged what the routing record says: splits of each dispatch and combine, on every rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.moe.stages import STAGES
from traceflow.result import Json
from traceflow.trace.model import ABSENT, Int64, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.moe.calls import Call, Calls
    from traceflow.analyzers.moe.rows import Rows
    from traceflow.intent.routing import LayerRouting

_EXCHANGES = (("dispatch", False, False), ("combine", False, True), ("combine", True, False), ("dispatch", True, True))
"""Stage, backward, and whether rows go home."""
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """An exchange whose rows are not those of the record; `[rows to each process, rows from each]`."""

    layer: int
    step: int
    rank: int
    stage: str
    direction: str
    recorded: tuple[tuple[int, ...], tuple[int, ...]]
    traced: tuple[tuple[int, ...], tuple[int, ...]]

    def to_dict(self) -> dict[str, Json]:
        """A row of `differences`."""
        return {
            "layer": self.layer,
            "step": self.step,
            "rank": self.rank,
            "stage": self.stage,
            "direction": self.direction,
            "recorded": [[*part] for part in self.recorded],
            "traced": [[*part] for part in self.traced],
        }


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many exchanges tell their splits and belong to a known call, and those of them that differ."""

    compared: int
    differences: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Json]:
        """The `agreement` object of the result."""
        return {
            "compared": self.compared,
            "differing": len(self.differences),
            "differences": [one.to_dict() for one in self.differences[:_SHOWN]],
        }


def agreement(
    trace: Trace, calls: Calls, layers: Sequence[LayerRouting], rows: Sequence[Rows | None], steps: Sequence[int] | None
) -> Agreement:
    """Compare the splits of every all-to-all in the stages of an exchange with the record.

    A dispatch sends what the record says and receives what its peers send; a combine the reverse, and so each on the
    way back.

    Args:
        trace: The evidence.
        calls: Which work belongs to which call.
        layers: The record.
        rows: What its layers exchange, by complete call; None where that is not known.
        steps: The steps to look at; None for all.
    """
    compared, differences = 0, []
    splits = _splits(trace)
    for stage, backward, home in _EXCHANGES:
        for call, events in calls.of_stage(STAGES.index(stage), backward=backward):
            layer = layers[call.layer]
            recorded = _recorded(layer, rows[call.layer], call, home=home)
            if recorded is None or (steps is not None and layer.step[call.call] not in steps):
                continue
            for traced in (splits[event] for event in events.tolist() if event in splits):
                compared += 1
                if traced != recorded:
                    told = layer.layer, int(layer.step[call.call]), int(layer.rank[call.source]), stage
                    differences.append(Difference(*told, "backward" if backward else "forward", recorded, traced))
    return Agreement(compared, tuple(differences))


def _splits(trace: Trace) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Rows to and from each member, by the event of each all-to-all that tells them."""
    c = trace.communications
    return {
        int(c.event[row]): (there, back)
        for row in np.flatnonzero((c.in_splits != ABSENT) & (c.out_splits != ABSENT)).tolist()
        if (there := _numbers(trace.strings[c.in_splits[row]])) and (back := _numbers(trace.strings[c.out_splits[row]]))
    }


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = json.loads(text)
    except ValueError:
        return ()
    whole = isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)
    return tuple(numbers) if whole else ()


def _recorded(
    layer: LayerRouting, rows: Rows | None, call: Call, *, home: bool
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Rows to and from each process of EP."""
    complete = np.flatnonzero((layer.assigned[:, :, 0] != ABSENT).all(axis=1))
    at = int(np.searchsorted(complete, call.call))
    if rows is None or at == len(complete) or complete[at] != call.call:
        return None
    group, own = layer.ep_groups[call.source], int(rows.own[call.source])
    there: Int64 = rows.sent[at, call.source]
    back: Int64 = rows.sent[at, list(group), own]
    pair = tuple(there.tolist()), tuple(back.tolist())
    return pair[::-1] if home else pair
