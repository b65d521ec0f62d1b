"""Several runs side by side, the last against the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from traceflow.report.grid import Grid, percent, percents, times, words
from traceflow.report.subject import CriticalPath
from traceflow.report.units import unit_for
from traceflow.result import Provenance


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison needs of one run: its path, and its summary and communication as in the JSON contract."""

    path: CriticalPath
    summary: Mapping[str, Any]
    communication: Mapping[str, Any]


_MOST_CHANGE = 10
_ABSENT = "a run lacks the quantity, as its own section says, or the first has none of it"


@dataclass(frozen=True, slots=True)
class _Quantity:
    name: str
    values_ns: tuple[int | None, ...]
    provenance: Provenance = Provenance.MEASURED
    spread_ns: int = 0

    @property
    def difference_ns(self) -> int | None:
        first, last = self.values_ns[0], self.values_ns[-1]
        return None if first is None or last is None else last - first

    @property
    def change(self) -> float | None:
        first, difference = self.values_ns[0], self.difference_ns
        return None if not first or difference is None else difference / first

    @property
    def remark(self) -> str:
        small = self.difference_ns is not None and 0 < abs(self.difference_ns) < self.spread_ns
        return "within the spread of steps" if small else ""


def comparison(runs: Sequence[tuple[str, Compared]]) -> Grid:
    """The durations that several runs have in common.

    Args:
        runs: The runs with their titles.
    """
    rows = list(_quantities([run for _, run in runs]))
    unit = unit_for(chain.from_iterable(row.values_ns for row in rows))
    columns = [
        replace(
            times("duration", [row.values_ns[i] for row in rows], unit=unit, absent=_ABSENT),
            head=title,
            definition="What this run took.",
        )
        for i, (title, _) in enumerate(runs)
    ]
    return Grid(
        "Comparison",
        (
            words("quantity", [row.name for row in rows]),
            *columns,
            times("difference", [row.difference_ns for row in rows], unit=unit, absent=_ABSENT),
            replace(
                percents("change", [row.change for row in rows], absent=_ABSENT),
                cells=tuple(_change(row.change) for row in rows),
            ),
            words("remark", [row.remark for row in rows]),
            words("provenance", [row.provenance.value for row in rows]),
        ),
    )


def _change(change: float | None) -> str | None:
    """In percent; many times the first is no percentage that says anything.

    Example:
        >>> _change(0.25), _change(4020.8), _change(None)
        ('25.0', '> 1,000', None)
    """
    if change is None:
        return None
    return "> 1,000" if change > _MOST_CHANGE else percent(change).removesuffix("\u00a0%")


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
