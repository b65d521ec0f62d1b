"""How far apart the participants of collectives start and end, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from rich.text import Text

from traceflow.report.units import duration_text


def skew_part(collectives: Sequence[Mapping[str, Any]]) -> Text:
    """Median and maximum of the skews of all collectives, in one sentence.

    Args:
        collectives: The rows of `collectives` in the result of `traceflow show communication`; one at least.
    """
    parts = []
    for moment, key in (("starts", "start_skew_ns"), ("ends", "end_skew_ns")):
        skews = [row[key] for row in collectives]
        parts.append(f"{moment} {duration_text(median_low(skews))}, at most {duration_text(max(skews))}")
    return Text(f"Skew between participants, median of {len(collectives):,} collectives: {'; '.join(parts)}")
