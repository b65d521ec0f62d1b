"""The JSON that scripts rely on: a result in its envelope, with the quality of its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from traceflow.report.verdict import simulates, simulation_finding
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
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": result.kind,
        "inputs": [name.encode("utf-8", "backslashreplace").decode() for name in run.inputs],
        "request": dict(request or {}),
        "epoch": epoch,
        "data_quality": _data_quality(run.trace.tally, result.notes),
        "skipped": [msgspec.to_builtins(skipped) for skipped in (*result.skipped, *unknown)],
        "findings": [msgspec.to_builtins(finding) for finding in (*result.findings, *simulated)],
        "result": result.to_dict(),
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


def _data_quality(tally: Tally, notes: tuple[Note, ...]) -> Json:
    """The tally of the reader, with the notes of the analyzer beside its own."""
    judged = replace(tally, notes=tuple(dict.fromkeys((*tally.notes, *notes))))
    return {
        "verdict": judged.verdict,
        "events_read": judged.read,
        "events_kept": judged.kept,
        "events_repaired": sum(judged.repaired.values()),
        "events_dropped": sum(judged.dropped.values()),
        "repaired_by_reason": dict(judged.repaired),
        "dropped_by_reason": dict(judged.dropped),
        "notes": [msgspec.to_builtins(note) for note in judged.notes],
    }
