"""Results for a terminal: what matters first, one unit per table, and never a figure without its evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from heapq import nlargest
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.padding import Padding
from rich.text import Text

from traceflow.report.budget import budget_parts
from traceflow.report.joined import joined_to, written_at
from traceflow.report.memory import memory_parts, padding_parts
from traceflow.report.names import printable
from traceflow.report.savings import effect_parts, savings_parts
from traceflow.report.sharding import sharding_parts
from traceflow.report.skew import skew_part
from traceflow.report.slowdown import slowdown_parts
from traceflow.report.tables import Rows, printed
from traceflow.report.units import UNKNOWN, duration_text, share_text, size_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Document: TypeAlias = Mapping[str, Any]
"""What `traceflow.report.json.envelope` makes."""

Row: TypeAlias = Mapping[str, Any]

_ARGUMENTS = re.compile(r"<[^<>]*>|\([^()]*\)")
_REMOVABLE = "/result/removable"
_PERIOD = "/result/steady_state/period_ns"
_TOLD = frozenset({"/epoch", _REMOVABLE, _PERIOD})  # shown where the quantity would stand, or not looked for
_DEVICE_WORK = frozenset({"compute", "transfer", "communication", "copy"})


def render(document: Document, *, top: int = 12, width: int = 80, color: bool = False) -> str:
    """A result as text.

    Args:
        document: The result in its envelope.
        top: Longest tables, in rows; what is left out is counted.
        width: Characters of a line.
        color: Whether to mark headings and findings with terminal escapes.
    """
    result = _RESULTS[document["kind"]](document, top)
    parts = chain(result, _findings(document), _evidence(document), _unknown(document))
    return printed(parts, width=width, color=color)


def _title(what: str, document: Document) -> Text:
    """What is shown, of what, and how long that is."""
    result, request = document["result"], document["request"]
    of = "".join(f"{which} {it}, " for which in ("step", "window") if (it := request.get(which)) is not None)
    title = Text(f"{what}: {printable(of)}{', '.join(map(printable, document['inputs']))}", style="bold")
    if "window" in result:
        start_ns, end_ns = result["window"]["start_ns"], result["window"]["end_ns"]
        unit = unit_for([end_ns])
        window = f"{unit.text(start_ns)} to {unit.text(end_ns)} {unit.name}"
        title.append(f"\n{duration_text(end_ns - start_ns)}, from {window} of the capture", style="not bold")
    return title


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _summary(document: Document, top: int) -> Iterator[RenderableType]:
    result = document["result"]
    yield _title("Summary", document)
    yield Text(
        f"{result['format']}, {result['event_count']:,} events, recorded {document['epoch'] or _why(document, '/epoch')}"
    )
    yield Text(f"ranks    {_numbers(result['ranks'])}")
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

    yield _heading(f"Steps ({unit.name}; the last three count from the start of the step)")
    yield Rows(("step", "rank", "start", "duration", "returned", "ready", "fetched", ""), [*map(row, steps[:top])])
    yield from _left_out(steps, top, "steps")


def _critical_path(document: Document, top: int) -> Iterator[RenderableType]:
    result = document["result"]
    yield _title("Critical path", document)
    yield from _by_kind(result["by_kind_ns"], result["makespan_ns"])
    if len(result["by_rank_ns"]) > 1:
        yield from _shares("rank", result["by_rank_ns"], result["makespan_ns"])
    yield from _by_name(result["segments"], result["makespan_ns"], top)
    yield from _pieces(result["segments"], result["window"], top)
    if result["error_ns"]:
        yield Text(f"\nBetween hosts, times are known to within {duration_text(result['error_ns'])}")
    if "slack" in result:
        yield from _slack(result["slack"], top)


def _by_kind(by_kind_ns: Mapping[str, int], whole_ns: int) -> Iterator[RenderableType]:
    yield from _shares("kind", dict(sorted(by_kind_ns.items(), key=lambda item: -item[1])), whole_ns)


def _shares(what: str, parts_ns: Mapping[str, int], whole_ns: int) -> Iterator[RenderableType]:
    unit = unit_for(parts_ns.values())
    yield Text()
    yield Rows(
        (what, unit.name, "share"), [(part, unit.text(ns), share_text(ns, whole_ns)) for part, ns in parts_ns.items()]
    )


def _by_name(segments: Sequence[Row], whole_ns: int, top: int) -> Iterator[RenderableType]:
    """What the path spends its time on, wherever on it that lies."""
    sums: Counter[tuple[str, str]] = Counter()
    for segment in segments:
        sums[segment["kind"], _described(segment)] += segment["duration_ns"]
    shown = sums.most_common(top)
    unit = unit_for(ns for _, ns in shown)
    yield _heading(f"The path by name ({unit.name})")
    rows = [(unit.text(ns), share_text(ns, whole_ns), kind, name) for (kind, name), ns in shown]
    yield Rows(("took", "share", "kind", "name"), rows)
    yield from _left_out(sums, top, "names with less")


def _pieces(segments: Sequence[Row], window: Row, top: int) -> Iterator[RenderableType]:
    """The longest contiguous pieces of a path, in order of time."""
    pieces = [_joined(list(group)) for _, group in groupby(segments, key=_piece)]
    longest = sorted(
        nlargest(top, pieces, key=lambda piece: int(piece["duration_ns"])), key=lambda piece: int(piece["start_ns"])
    )
    whole_ns = window["end_ns"] - window["start_ns"]
    unit = unit_for([whole_ns])
    rows = []
    for piece in longest:
        figures = unit.text(piece["start_ns"] - window["start_ns"]), unit.text(piece["duration_ns"])
        share = share_text(piece["duration_ns"], whole_ns)
        rows.append((*figures, share, piece["kind"], _where(piece), _named(piece)))
        if piece["kind"] in _DEVICE_WORK | {"idle"} and (written := written_at(piece)):
            rows.append(("",) * 5 + (f"  {written}",))
    yield _heading(f"Longest pieces of the path, in order of time ({unit.name}; where = rank:device)")
    yield Rows(("at", "took", "share", "kind", "where", "name"), rows)
    if rest := len(pieces) - len(longest):
        left_ns = sum(piece["duration_ns"] for piece in pieces) - sum(piece["duration_ns"] for piece in longest)
        yield Text(f"and {rest:,} shorter ones, together {duration_text(left_ns)}")


def _piece(segment: Row) -> tuple[object, ...]:
    """Neighbours for which this is equal read as one: host work of a rank whatever it is called."""
    named = segment["kind"] in _DEVICE_WORK
    who = segment["waiting_for"] and tuple(segment["waiting_for"].values())
    return segment["kind"], segment["rank"], segment["device"], named and (segment["name"], who)


def _joined(segments: Sequence[Row]) -> Row:
    """Neighbours as one piece, which keeps what they are called and how long each name took, longest first."""
    names: Counter[str] = Counter()
    for segment in segments:
        names[_described(segment)] += segment["duration_ns"]
    return {**segments[0], "duration_ns": names.total(), "names": names.most_common()}


def _named(piece: Row) -> str:
    """The name of a piece; where it has several, those that took most of it."""
    names = piece["names"]
    if len(names) == 1:
        return str(names[0][0])
    return ", ".join(f"{ns / piece['duration_ns']:.0%} {name}" for name, ns in names[:3])


def _described(segment: Row) -> str:
    """What a segment is called, and what its kind does not tell."""
    name = _short(segment["name"])
    if "(" in (operation := segment.get("operation") or ""):  # what a fusion or a library call is made of
        name = f"{name} = {operation}"
    if segment["kind"] == "transfer" and segment["waiting_for"] is not None:
        return f"{name} (last: {_where(segment['waiting_for'])})"
    return f"before {name}" if segment["kind"] == "idle" else name


def _short(name: str) -> str:
    """A C++ kernel without its template arguments and parameters, which would fill the column.

    Example:
        >>> _short("void at::native::add_kernel<4, std::array<char*, 3ul> >(int, float)")
        'at::native::add_kernel'
    """
    if not name.startswith(("void ", "nccl")):
        return name
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    while _ARGUMENTS.search(name):
        name = _ARGUMENTS.sub("", name)
    return name.strip()


def _slack(slack: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """How many slices could not be later, and which could be later by the least."""
    known = [row for row in slack if row["slack_ns"] is not None]
    spare: dict[tuple[str, str], list[int]] = {}
    for row in known:
        if row["slack_ns"]:
            spare.setdefault((_where(row), _short(row["name"])), []).append(row["slack_ns"])
    least = sorted((min(each), len(each), where, name) for (where, name), each in spare.items())
    without = len(known) - sum(map(len, spare.values()))
    unit = unit_for(ns for ns, *_ in least[:top])
    yield _heading(f"Least slack by name ({unit.name}); {without:,} of {len(known):,} slices have none")
    rows = [(unit.text(ns), f"{count:,}", where, name) for ns, count, where, name in least[:top]]
    yield Rows(("slack", "slices", "where", "name"), rows)
    yield from _left_out(least, top, "names with more")


def _communication(document: Document, top: int) -> Iterator[RenderableType]:
    result = document["result"]
    yield _title("Communication", document)
    yield from _participants(result["per_participant"], top)
    yield _heading("Removable (modelled by replay)")
    removable = [("if transfers took no time", "transfer_ns"), ("and nobody waited either", "communication_ns")]
    for what, ns in [(what, result["removable"][key]) for what, key in removable]:
        if ns is not None:
            yield Text(f"{what:25} {duration_text(ns):>13}")
    if None in result["removable"].values():
        yield Text(_why(document, _REMOVABLE))
    yield from _collectives(result["collectives"], top)
    yield from _messages(result["point_to_point"], top)
    yield from _unmatched(result["unmatched"], top)


def _participants(participants: Sequence[Row], top: int) -> Iterator[RenderableType]:
    shown = (
        participants if len(participants) <= top else nlargest(top, participants, key=lambda p: int(p["exposed_ns"]))
    )
    keys = ("compute_ns", "copy_ns", "busy_ns", "exposed_ns", "overlapped_ns", "idle_ns")
    unit = unit_for(p[key] for p in shown for key in keys)
    rows = [
        (
            _where(p),
            *(unit.text(p[key]) for key in keys),
            UNKNOWN if (share := p["exposed_share"]) is None else f"{share:.1%}",
        )
        for p in shown
    ]
    yield _heading(f"Per participant rank:device ({unit.name}; busy = exposed + overlapped)")
    yield Rows(("where", "compute", "copy", "busy", "exposed", "overlapped", "idle", "exposed share"), rows)
    yield from _left_out(participants, top, "participants, less exposed")


def _collectives(collectives: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """The collectives with the longest exposed call, and how that call divides into wait and transfer."""
    if not collectives:
        return
    calls = [(max(c["participants"], key=lambda call: int(call["exposed_ns"])), c) for c in collectives]
    longest = nlargest(top, calls, key=lambda pair: int(pair[0]["exposed_ns"]))
    unit = unit_for(call[key] for call, _ in longest for key in ("exposed_ns", "wait_ns", "transfer_ns"))
    rows = [
        (
            *(unit.text(call[key]) for key in ("exposed_ns", "wait_ns", "transfer_ns")),
            _where(call),
            _where(c["last"]),
            size_text(c["payload_bytes"]),
            str(len(c["participants"])),
            f"{c['op']}, {c['group']}",
        )
        for call, c in longest
    ]
    yield _heading(f"Collectives ({unit.name}), by the participant that is exposed longest")
    yield Rows(("exposed", "wait", "transfer", "where", "last", "payload", "members", "name"), rows)
    yield from _left_out(collectives, top, "collectives, less exposed")
    yield skew_part(collectives)


def _messages(messages: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if not messages:
        return
    longest = nlargest(top, messages, key=lambda message: int(message["wait_ns"]))
    unit = unit_for(message["received_ns"] - message["posted_ns"] for message in longest)
    rows = [
        (
            unit.text(message["wait_ns"]),
            unit.text(message["received_ns"] - message["posted_ns"]),
            size_text(message["payload_bytes"]),
            f"{_where(message['source'])} to {_where(message['destination'])}",
        )
        for message in longest
    ]
    yield _heading(f"Point to point ({unit.name}), by how long the receiver waited for the send")
    yield Rows(("wait", "sent to received", "payload", "name"), rows)
    yield from _left_out(messages, top, "transfers with less wait")


def _unmatched(calls: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """Calls of which neither wait nor transfer is known, by reason and name."""
    for reason in dict.fromkeys(call["reason"] for call in calls):
        names = Counter(_short(call["name"]) for call in calls if call["reason"] == reason)
        yield _heading(f"{names.total():,} calls stay whole: {reason}")
        yield Rows(("calls", "name"), [(f"{count:,}", name) for name, count in names.most_common(top)])
        yield from _left_out(names, top, "names")


def _what_if(document: Document, top: int) -> Iterator[RenderableType]:
    result, request = document["result"], document["request"]
    yield _title("What if", document)
    changes = [f"--scale {change}" for change in request.get("scale", ())] + [
        f"--drop {p}" for p in request.get("drop", ())
    ]
    ranks = "".join(f" --rank {rank}" for rank in request.get("rank") or ())
    yield Text(printable(" ".join(changes) + ranks or "nothing changes", 1000))
    yield from effect_parts(result)
    sums: dict[str, int] = {}
    for segment in result["segments"]:
        sums[segment["kind"]] = sums.get(segment["kind"], 0) + segment["duration_ns"]
    yield _heading("The path as it would be")
    yield from _by_kind(sums, result["predicted_ns"])
    start_ns = result["window"]["start_ns"]
    yield from _pieces(result["segments"], {"start_ns": start_ns, "end_ns": start_ns + result["predicted_ns"]}, top)


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
    yield _heading(f"Offset from rank {result['reference_rank']} ({unit.name}, to subtract) and drift (ns per s)")
    yield Rows(("rank", "offset", "drift"), rows)
    yield from _left_out(ranks, top, "ranks")
    yield Text(f"\nResidual: {duration_text(result['residual_ns'])}, the error bar of every figure that crosses ranks")
    for island in result["unaligned"]:
        yield Text(f"Linked to rank {result['reference_rank']} by no collective: {_numbers(island)}")


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
            _where(row),
            row["cause"],
            unit.text(row["evidence"]["duration_ns"]),
            unit.text(row["evidence"]["baseline_ns"]),
            _short(row["name"]) + (f" in {row['stage']}" if row["stage"] else ""),
        )
        for row in ranking[:top]
    ]
    yield _heading(f"What it cost ({unit.name}, modelled by replay with the work as long as on its peers)")
    yield Rows(("cost", "where", "cause", "took", "peers", "name"), rows)
    yield from _left_out(ranking, top, "causes that cost less")


def _findings(document: Document) -> Iterator[RenderableType]:
    if not document["findings"]:
        return
    yield _heading("Findings")
    for finding in document["findings"]:
        cost = "" if finding["cost_ns"] is None else f", {duration_text(finding['cost_ns'])}"
        yield Text(f"{finding['code']} {finding['severity']}: {finding['title']} ({finding['provenance']}{cost})")
        yield Padding(Text(finding["suggestion"]), (0, 0, 0, 6))


def _evidence(document: Document) -> Iterator[RenderableType]:
    """What became of the events, and every remark on them."""
    quality = document["data_quality"]
    read, kept = quality["events_read"], quality["events_kept"]
    yield Text(f"\nEvidence: {quality['verdict']}. {read:,} events read, {kept:,} kept", style="bold")
    for fate in ("repaired", "dropped"):
        reasons = sorted(quality[f"{fate}_by_reason"].items(), key=lambda reason: -reason[1])
        if reasons:
            listed = "; ".join(f"{count:,} {reason}" for reason, count in reasons)
            yield Text(f"{quality[f'events_{fate}']:,} {fate}: {listed}")
    for note in quality["notes"]:
        affected = f" (affects {', '.join(note['affects'])})" if note["affects"] else ""
        yield Text(f"{note['code']} {printable(note['text'], 1000)}{affected}")


def _unknown(document: Document) -> Iterator[RenderableType]:
    """What could not be established, once per reason."""
    by_reason: dict[str, list[str]] = {}
    for skipped in document["skipped"]:
        if skipped["what"] not in _TOLD:
            by_reason.setdefault(skipped["reason"], []).append(skipped["what"].removeprefix("/result"))
    for reason, pointers in by_reason.items():
        yield Text(f"{', '.join(pointers)}: {UNKNOWN} ({reason})")


def _why(document: Document, pointer: str) -> str:
    """How an unknown quantity is written: with the reason that the result gives."""
    reason = next((s["reason"] for s in document["skipped"] if s["what"] == pointer), "the evidence does not say")
    return f"{UNKNOWN} ({reason})"


def _left_out(rows: Sized, top: int, what: str) -> Iterator[RenderableType]:
    if len(rows) > top:
        yield Text(f"and {len(rows) - top:,} {what}")


def _where(row: Row) -> str:
    """A participant as rank:device."""
    return f"{row['rank']}:{'host' if row['device'] is None else row['device']}"


def _numbers(numbers: Sequence[int]) -> str:
    """Whole numbers in order, neighbours as a range.

    Example:
        >>> _numbers([0, 1, 2, 5])
        '0-2, 5'
    """
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


def _devices(devices: Iterable[Row]) -> str:
    by_rank = groupby(devices, key=lambda device: device["rank"])
    return "; ".join(f"rank {rank}: {_numbers([d['device'] for d in of])}" for rank, of in by_rank) or "none"


def _memory(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Memory", document)
    yield from memory_parts(document["result"], top)


def _padding(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Padding", document)
    yield from padding_parts(document["result"], top)


def _budget(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Budget", document)
    yield from budget_parts(document["result"], top)


def _sharding(document: Document, top: int) -> Iterator[RenderableType]:
    yield _title("Sharding", document)
    yield from sharding_parts(document["result"], top)


_RESULTS: Mapping[str, Callable[[Document, int], Iterator[RenderableType]]] = {
    "summary": _summary,
    "critical-path": _critical_path,
    "communication": _communication,
    "what-if": _what_if,
    "clocks": _clocks,
    "stragglers": _stragglers,
    "savings": _savings,
    "memory": _memory,
    "padding": _padding,
    "sharding": _sharding,
    "budget": _budget,
}
