"""Results for a terminal: what matters first, one unit per table, and never a figure without its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.padding import Padding
from rich.text import Text

from traceflow.report.collective_matmul import collective_matmul_parts
from traceflow.report.communication_text import communication_parts
from traceflow.report.differences import difference_parts
from traceflow.report.digest import digest_parts
from traceflow.report.gates import gate_parts
from traceflow.report.joined import joined_to
from traceflow.report.memory import memory_parts, padding_parts
from traceflow.report.moe import moe_parts
from traceflow.report.names import figure_called, numbers, printable, short_name, where
from traceflow.report.path_text import path_parts, predicted_path_parts
from traceflow.report.plan import plan_parts
from traceflow.report.plan_check import plan_check_parts
from traceflow.report.savings import effect_parts, savings_parts
from traceflow.report.sharding import sharding_parts
from traceflow.report.slowdown import slowdown_parts
from traceflow.report.split import split_parts
from traceflow.report.tables import Rows, heading, left_out, printed
from traceflow.report.touched import MARK, has_touched, with_touched
from traceflow.report.units import UNKNOWN, duration_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Document: TypeAlias = Mapping[str, Any]
"""What `traceflow.report.json.envelope` makes."""

Row: TypeAlias = Mapping[str, Any]

_REMOVABLE = "/result/removable"
_PERIOD = "/result/steady_state/period_ns"
_TOLD = frozenset(
    {"/epoch", "/result/programs/*/scheduled_peak_bytes", _REMOVABLE, _PERIOD}
)  # shown where the quantity would stand, or not looked for

_FINDINGS_FIRST = frozenset({"all"})
_IN_DETAIL = frozenset({"summary"})  # where what became of the events is listed by reason
_STATED = frozenset({"plan"})  # what follows from what was said alone, and has no events


def render(document: Document, *, top: int = 12, width: int = 80, color: bool = False) -> str:
    """A result as text.

    Args:
        document: The result in its envelope.
        top: Longest tables, in rows; what is left out is counted.
        width: Characters of a line.
        color: Whether to mark headings and findings with terminal escapes.
    """
    document = with_touched(document)
    result = _RESULTS[document["kind"]](document, top)
    findings = () if document["kind"] in _FINDINGS_FIRST else _findings(document["findings"])
    parts = chain(result, findings, _evidence(document), _unknown(document))
    return printed(parts, width=width, color=color)


def _title(what: str, document: Document) -> Text:
    """What is shown, of what, and how long that is."""
    result, request = document["result"], document["request"]
    of = "".join(f"{which} {it}, " for which in ("step", "window") if (it := request.get(which)) is not None)
    title = Text(f"{what}: {printable(of)}{', '.join(map(printable, document['inputs']))}", style="bold")
    if result.get("window"):
        start_ns, end_ns = result["window"]["start_ns"], result["window"]["end_ns"]
        unit = unit_for([end_ns - start_ns])
        window = f"{unit.text(start_ns)} to {unit.text(end_ns)} {unit.name}"
        title.append(f"\n{duration_text(end_ns - start_ns)}, from {window} of the capture", style="not bold")
    return title.append(_limits(document))


def _limits(document: Document) -> Text:
    """In one line, why an answer is no better than limited; nothing where it is good."""
    quality = document["data_quality"]
    if not (reasons := quality["reasons"]):
        return Text()
    more = "" if len(reasons) == 1 else f"; {len(reasons) - 1} more below"
    marked = f" ({MARK} marks figures that this touches)" if has_touched(document["result"]) else ""
    code = next((f" ({note['code']})" for note in quality["notes"] if note["text"] == reasons[0]), "")
    told = f"\n{quality['verdict'].capitalize()}{code}: {printable(reasons[0], 1000)}{more}{marked}"
    return Text(told, style="not bold yellow")


def _all(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("All questions", document)
    yield from _findings(document["findings"][:top])
    yield from left_out(document["findings"], top, "more findings")
    yield from digest_parts(document["result"])


def _summary(document: Document, top: int) -> Iterator[RenderableType]:
    result = document["result"]
    yield _title("Summary", document)
    yield Text(
        f"{result['format']}, {result['event_count']:,} events, recorded {document['epoch'] or _why(document, '/epoch')}"
    )
    yield Text(f"ranks    {numbers(result['ranks'])}")
    yield Text(f"devices  {_devices(result['devices'])}")
    if (programs := result.get("programs")) is not None:
        yield Text(f"programs {joined_to(programs)}")
    if result["steps"]:
        yield from _steps(result["steps"], top)
    if (steady := result["steady_state"]) is not None:
        unit = unit_for([steady["maximum_ns"]])
        low, median, high = (unit.text(steady[f"{which}_ns"]) for which in ("minimum", "median", "maximum"))
        spread = "one step" if steady["steps"] == 1 else f"the median of {steady['steps']} steps ({low} to {high})"
        yield Text(f"\nSteady state: {median} {unit.name}, {spread}", style="bold")
        if (period_ns := steady["period_ns"]) is not None and period_ns < steady["median_ns"]:
            yield Text(f"Steps overlap: one begins every {unit.text(period_ns)} {unit.name}")


def _steps(steps: Sequence[Row], top: int) -> Iterator[RenderableType]:
    unit = unit_for(step["duration_ns"] for step in steps)
    moments = ("returned_ns", "ready_ns", "fetched_ns")

    def row(step: Row) -> tuple[str, ...]:
        since = [None if step[m] is None else step[m] - step["start_ns"] for m in moments]
        figures = map(unit.text, (step["start_ns"], step["duration_ns"], *since))
        return (str(step["step"]), str(step["rank"]), *figures, "compiles" if step.get("compiled") else "")

    yield heading(f"Steps ({unit.name}; the last three count from the start of the step)")
    yield Rows(("step", "rank", "start", "duration", "returned", "ready", "fetched", ""), [*map(row, steps[:top])])
    yield from left_out(steps, top, "steps")


def _critical_path(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Critical path", document)
    yield from path_parts(document["result"], top)


def _communication(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Communication", document)
    yield from communication_parts(document["result"], top, why=_why(document, _REMOVABLE))


def _what_if(document: Document, top: int) -> Iterator[RenderableType]:
    result, request = document["result"], document["request"]
    yield _title("What if", document)
    changes = [f"--scale {change}" for change in request.get("scale", ())] + [
        f"--drop {p}" for p in request.get("drop", ())
    ]
    ranks = "".join(f" --rank {rank}" for rank in request.get("rank") or ())
    yield Text(printable(" ".join(changes) + ranks or "nothing changes", 1000))
    yield from effect_parts(result)
    yield from predicted_path_parts(result, top)


def _savings(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Savings", document)
    yield from savings_parts(document["result"], top)


def _clocks(document: Document, top: int) -> Iterator[RenderableType]:
    result = document["result"]
    yield _title("Clocks", document)
    unit = unit_for(abs(offset) for offset in result["offset_ns"].values() if offset is not None)
    ranks = list(result["offset_ns"])
    rows = [
        (
            rank,
            UNKNOWN if (offset := result["offset_ns"][rank]) is None else unit.text(offset),
            UNKNOWN if (drift := result["drift_ppb"][rank]) is None else str(drift),
        )
        for rank in ranks[:top]
    ]
    yield heading(f"Offset from rank {result['reference_rank']} ({unit.name}, to subtract) and drift (ns per s)")
    yield Rows(("rank", "offset", "drift"), rows)
    yield from left_out(ranks, top, "ranks")
    yield Text(f"\nResidual: {duration_text(result['residual_ns'])}, the error bar of every figure that crosses ranks")
    for island in result["unaligned"]:
        yield Text(f"Linked to rank {result['reference_rank']} by no collective: {numbers(island)}")


def _stragglers(document: Document, top: int) -> Iterator[RenderableType]:
    ranking = document["result"]["ranking"]
    yield _title("Stragglers", document)
    if "slowdown_ratio" in document["result"]:
        yield from slowdown_parts(document["result"], top)
        return
    if not ranking:
        yield Text("Nobody's own work made the window longer.")
        return
    unit = unit_for([ranking[0]["cost_ns"]])
    rows = [
        (
            unit.text(row["cost_ns"]),
            where(row),
            row["cause"],
            unit.text(row["evidence"]["duration_ns"]),
            unit.text(row["evidence"]["baseline_ns"]),
            short_name(row["name"]) + (f" in {row['stage']}" if row["stage"] else ""),
        )
        for row in ranking[:top]
    ]
    yield heading(f"What it cost ({unit.name}, modelled by replay with the work as long as on its peers)")
    yield Rows(("cost", "where", "cause", "took", "peers", "name"), rows)
    yield from left_out(ranking, top, "causes that cost less")


def _findings(findings: Sequence[Row]) -> Iterator[RenderableType]:
    if not findings:
        return
    yield heading("Findings")
    for finding in findings:
        cost = "" if finding["cost_ns"] is None else f", {duration_text(finding['cost_ns'])}"
        yield Text(f"{finding['code']} {finding['severity']}: {finding['title']} ({finding['provenance']}{cost})")
        yield Padding(Text(finding["suggestion"]), (0, 0, 0, 6))
        if source := finding["evidence"].get("source"):
            yield Padding(Text(printable(source)), (0, 0, 0, 6))


def _evidence(document: Document) -> Iterator[RenderableType]:
    """What became of the events, and every remark on them."""
    if document["kind"] in _STATED:
        return
    quality = document["data_quality"]
    read, kept = quality["events_read"], quality["events_kept"]
    fates = {"repaired": quality["repaired_by_reason"], "left out": quality["dropped_by_reason"]}
    counts = "".join(f", {sum(by_reason.values()):,} {fate}" for fate, by_reason in fates.items() if by_reason)
    yield Text(f"\nEvidence: {quality['verdict']}. {read:,} events read, {kept:,} kept{counts}", style="bold")
    if document["kind"] in _IN_DETAIL:
        yield from (_fate(fate, by_reason) for fate, by_reason in fates.items() if by_reason)
    for note in quality["notes"]:
        if note["text"] not in quality["reasons"][:1]:  # told at the top
            yield Text(f"{note['code']} {printable(note['text'], 1000)}")


def _fate(fate: str, by_reason: Mapping[str, int]) -> RenderableType:
    """What became of some events, the most common reason first."""
    listed = "; ".join(
        f"{count:,} {printable(reason)}" for reason, count in sorted(by_reason.items(), key=lambda r: -r[1])
    )
    return Text(f"{fate}: {listed}")


def _unknown(document: Document) -> Iterator[RenderableType]:
    """What could not be established, once per reason."""
    by_reason: dict[str, list[str]] = {}
    for skipped in document["skipped"]:
        if skipped["what"] not in _TOLD:
            by_reason.setdefault(skipped["reason"], []).append(figure_called(skipped["what"]))
    for reason, figures in by_reason.items():
        yield Text(f"{UNKNOWN}: {', '.join(dict.fromkeys(figures))} ({printable(reason, 1000)})")


def _why(document: Document, pointer: str) -> str:
    """How an unknown quantity is written: with the reason that the result gives."""
    reason = next((s["reason"] for s in document["skipped"] if s["what"] == pointer), "the evidence does not say")
    return f"{UNKNOWN} ({reason})"


def _devices(devices: Iterable[Row]) -> str:
    """Which devices each rank has; ranks that have the same are told together.

    Example:
        >>> _devices([{"rank": 0, "device": 0}, {"rank": 0, "device": 1}, {"rank": 1, "device": 0}])
        'rank 0: 0-1; rank 1: 0'
        >>> _devices([{"rank": rank, "device": rank} for rank in range(8)])
        '0-7, one on the rank of its number'
    """
    by_rank = {rank: tuple(d["device"] for d in of) for rank, of in groupby(devices, key=lambda d: d["rank"])}
    if len(by_rank) > 1 and all(of == (rank,) for rank, of in by_rank.items()):
        return f"{numbers([*by_rank])}, one on the rank of its number"
    ranks: dict[tuple[int, ...], list[int]] = {}
    for rank, of in by_rank.items():
        ranks.setdefault(of, []).append(rank)
    told = (f"rank{'s' * (len(on) > 1)} {numbers(on)}: {numbers(of)}" for of, on in ranks.items())
    return "; ".join(told) or "none"


def _memory(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Memory", document)
    yield from memory_parts(document["result"], top)


def _moe(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Mixture of experts", document)
    yield from moe_parts(document["result"], top)


def _padding(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Padding", document)
    yield from padding_parts(document["result"], top)


def _budget(document: Document, top: int) -> Iterator[RenderableType]:
    from traceflow.report.budget import budget_parts

    yield _title("Budget", document)
    yield from budget_parts(document["result"], top)


def _sharding(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Sharding", document)
    yield from sharding_parts(document["result"], top)


def _plan(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Plan", document)
    yield from plan_parts(document["result"], top)


def _collective_matmul(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Collective matmul", document)
    yield from collective_matmul_parts(document["result"], top)


def _plan_compare(document: Document, top: int) -> Iterator[RenderableType]:
    del top
    yield _title("Plans of a layer", document)
    yield from split_parts(document["result"])


def _diff(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Difference", document)
    yield from difference_parts(document["result"], top)


def _check(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Check", document)
    yield from gate_parts(document["result"], top)


def _plan_check(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Plan against trace", document)
    yield from plan_check_parts(document["result"], top)


_RESULTS: Mapping[str, Callable[[Document, int], Iterator[RenderableType]]] = {
    "all": _all,
    "summary": _summary,
    "critical-path": _critical_path,
    "communication": _communication,
    "what-if": _what_if,
    "clocks": _clocks,
    "stragglers": _stragglers,
    "savings": _savings,
    "memory": _memory,
    "moe": _moe,
    "padding": _padding,
    "sharding": _sharding,
    "collective-matmul": _collective_matmul,
    "budget": _budget,
    "plan": _plan,
    "plan-check": _plan_check,
    "plan-compare": _plan_compare,
    "diff": _diff,
    "check": _check,
}
