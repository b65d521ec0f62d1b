"""Several runs side by side, the last against the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traceflow.report.definitions import DEFINITIONS
from traceflow.report.grid import Column, Grid, duration, words
from traceflow.report.subject import CriticalPath
from traceflow.result import Provenance


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison needs of one run: its path, and its summary and communication as in the JSON contract."""

    path: CriticalPath
    summary: Mapping[str, Any]
    communication: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Quantity:
    name: str
    values_ns: tuple[int | None, ...]
    provenance: Provenance = Provenance.MEASURED
    spread_ns: int = 0


def comparison(runs: Sequence[tuple[str, Compared]]) -> Grid:
    """The durations that several runs have in common.

    Args:
        runs: The runs with their titles.
    """
    rows = list(_quantities([run for _, run in runs]))
    columns = [
        Column(
            title,
            tuple(_cell(row.values_ns[i]) for row in rows),
            "What this run took.",
            "number",
            "unit in the cell",
            absent="its own section says why",
        )
        for i, (title, _) in enumerate(runs)
    ]
    return Grid(
        "Comparison",
        (
            words("quantity", [row.name for row in rows]),
            *columns,
            Column("change", tuple(_change(row) for row in rows), DEFINITIONS["change"], "number", "unit in the cell"),
            words("provenance", [row.provenance.value for row in rows]),
        ),
    )


def _quantities(runs: Sequence[Compared]) -> Iterator[_Quantity]:
    spread_ns = max(_spread(run) for run in runs)
    yield _Quantity("window", tuple(run.path.makespan_ns for run in runs), spread_ns=spread_ns)
    yield _Quantity("median step of the steady state", tuple(map(_median, runs)), spread_ns=spread_ns)
    for kind in dict.fromkeys(kind for run in runs for kind in run.path.by_kind_ns):
        yield _Quantity(f"{kind} on the path", tuple(run.path.by_kind_ns.get(kind, 0) for run in runs))
    yield _Quantity("exposed communication of the participant with most", tuple(map(_most_exposed, runs)))
    for key, name in (("transfer_ns", "removable transfer"), ("communication_ns", "removable communication")):
        yield _Quantity(name, tuple(run.communication["removable"][key] for run in runs), Provenance.MODELLED)


def _median(run: Compared) -> int | None:
    steady = run.summary["steady_state"]
    return None if steady is None else int(steady["median_ns"])


def _spread(run: Compared) -> int:
    steady = run.summary["steady_state"]
    return 0 if steady is None else int(steady["maximum_ns"] - steady["minimum_ns"])


def _most_exposed(run: Compared) -> int | None:
    return max((int(p["exposed_ns"]) for p in run.communication["per_participant"]), default=None)


def _cell(ns: int | None) -> str | None:
    return None if ns is None else duration(ns)


def _change(row: _Quantity) -> str:
    first, last = row.values_ns[0], row.values_ns[-1]
    if first is None or last is None:
        return "not available"
    if last == first:
        return "none"
    ratio = f" ({(last - first) / first:+.1%})".replace("%", "\u00a0%") if first else ""
    within = ", within the spread" if abs(last - first) < row.spread_ns else ""
    return f"{'+' if last > first else '-'}{duration(abs(last - first))}{ratio}{within}"
