"""The JSON that scripts rely on: a result in its envelope, with the quality of its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from traceflow.quality import losses, quality, touching
from traceflow.report.simulation import simulates, simulation_finding
from traceflow.result import Skipped

if TYPE_CHECKING:
    from traceflow.result import Json, Note, Result, Tally
    from traceflow.trace.model import Trace

SCHEMA_VERSION = 1


class Opened(Protocol):
    """What an envelope needs to know of the run that was asked."""

    @property
    def trace(self) -> Trace:
        """The evidence."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """What was read, as the user named it."""
        ...


def envelope(result: Result, run: Opened, request: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """A result with all that a reader needs to judge it, in plain types.

    Args:
        result: What an analyzer found.
        run: The run it was asked of.
        request: What was asked, where the result does not tell: the step, the changes.

    Returns:
        The object that `--format json` prints; its schema is `traceflow.schemas.schema(result.kind)`.
    """
    epoch = epoch_text(run.trace.epoch_ns)
    why = "the trace does not say when it was recorded" if len(run.trace.lanes) else "there is no trace"
    unknown = () if epoch else (Skipped("/epoch", why),)
    simulated = (simulation_finding(),) if simulates(run.trace) else ()
    told: dict[str, Json] = {"epoch": epoch, "result": result.to_dict()}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": result.kind,
        "inputs": [name.encode("utf-8", "backslashreplace").decode() for name in run.inputs],
        "request": dict(request or {}),
        "data_quality": data_quality(run.trace.tally, result.notes, told),
        "skipped": [msgspec.to_builtins(skipped) for skipped in (*result.skipped, *unknown)],
        "findings": [msgspec.to_builtins(finding) for finding in (*result.findings, *simulated)],
        **told,
    }


def dumps(document: Mapping[str, Json]) -> str:
    """One line of JSON. Integers are written exactly; what is no number becomes null."""
    return msgspec.json.encode(document).decode() + "\n"


def epoch_text(epoch_ns: int | None) -> str | None:
    """An absolute time in ns since 1970 as UTC, to the nanosecond.

    Example:
        >>> epoch_text(1_000_000_000_000_000_001)
        '2001-09-09T01:46:40.000000001Z'
    """
    if epoch_ns is None:
        return None
    seconds, ns = divmod(epoch_ns, 1_000_000_000)
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def data_quality(tally: Tally, notes: Iterable[Note] = (), told: Mapping[str, Any] | None = None) -> Json:
    """The quality of the evidence of an answer, as in the JSON contract.

    Args:
        tally: What became of the events, with the reader's remarks.
        notes: The remarks of the analyzer.
        told: The answer, from which pointers start; remarks keep all of theirs where None.
    """
    remarks = (*losses(tally), *tally.notes, *notes)
    remarks = tuple(dict.fromkeys(remarks)) if told is None else touching(remarks, told)
    judged = quality(replace(tally, notes=()), remarks)
    return {
        "verdict": judged.verdict,
        "reasons": [*judged.reasons],
        "events_read": tally.read,
        "events_kept": tally.kept,
        "events_repaired": sum(tally.repaired.values()),
        "events_dropped": sum(tally.dropped.values()),
        "repaired_by_reason": dict(tally.repaired),
        "dropped_by_reason": dict(tally.dropped),
        "notes": [msgspec.to_builtins(note) for note in remarks],
    }
