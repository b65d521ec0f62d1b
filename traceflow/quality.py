"""Whether an answer can be relied on: one verdict, from what became of the events and what was remarked on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from traceflow.result import Note, Tally

Verdict: TypeAlias = Literal["good", "limited", "unusable"]

ORDER = (
    *("/result/segments", "/result/by_kind_ns", "/result/by_rank_ns", "/result/slack", "/result/removable"),
    *(
        "/result/by_purpose/*/removable",
        "/result/predicted_ns",
        "/result/saved_ns",
        "/result/low_ns",
        "/result/high_ns",
    ),
    *("/result/savings", "/result/best_cases", "/result/ranking", "/result/balance", "/result/gates"),
)
"""Figures of any answer that hang on what waited for what."""

ABSURD = "at a time that cannot be"
DAMAGED = "damaged event"
_REMARKED = frozenset({ABSURD, DAMAGED})  # lost, too, with a remark that says more
_LOST = frozenset(
    {
        "neither thread nor stream",
        "no duration",
        "on no thread",
        "without a name",
        "without a time",
        "without a valid device",
        "without a valid time",
    }
)
"""Reasons for which an event is left out though it may have been work. All others are known to be none."""


@dataclass(frozen=True, slots=True)
class Quality:
    """A verdict on the evidence of an answer, and why it is no better."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()  # whole sentences without their full stops; none where the verdict is good


def quality(tally: Tally, notes: Iterable[Note] = ()) -> Quality:
    """Judge the evidence of an answer.

    `unusable` where events were read and fewer were kept than lost, `limited` where events were lost or a remark
    affects a figure, else `good`. An input without a trace, such as a program alone, has no events to judge.

    Args:
        tally: What became of the events, with the remarks of the reader.
        notes: Remarks of the analyzer.

    Example:
        >>> quality(Tally(3, 2, dropped={"no duration": 1}))
        Quality(verdict='limited', reasons=('1 of 3 events was lost: 1 no duration',))
        >>> quality(Tally(3, 2, dropped={"metadata": 1})).verdict, quality(Tally(3, 0)).verdict
        ('good', 'unusable')
    """
    reasons = tuple(dict.fromkeys(note.text for note in (*losses(tally), *tally.notes, *notes) if note.affects))
    number = sum(tally.dropped.get(reason, 0) for reason in _LOST | _REMARKED)
    if tally.read and tally.kept < max(number, 1):
        return Quality("unusable", reasons or (f"none of the {tally.read:,} events is work",))
    return Quality("limited", reasons) if reasons else Quality("good")


def losses(tally: Tally) -> tuple[Note, ...]:
    """A remark on events that were left out though they may have been work, with their number by reason.

    Args:
        tally: What became of the events.
    """
    lost = {reason: count for reason, count in tally.dropped.items() if count and reason in _LOST}
    if not lost:
        return ()
    number = sum(lost.values())
    listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(lost.items(), key=lambda item: -item[1]))
    text = f"{number:,} of {tally.read:,} events {'was' if number == 1 else 'were'} lost: {listed}"
    return (Note("TF302", text, ("/result",)),)


def touching(notes: Iterable[Note], document: Mapping[str, Any]) -> tuple[Note, ...]:
    """Remarks, each once, with the pointers to those figures alone that an answer has.

    Args:
        notes: Remarks on the evidence.
        document: The answer in its envelope, which the pointers start from.

    Example:
        >>> note = Note("TF303", "order unknown", ("/result/segments", "/result/layers/*/tokens"))
        >>> touching([note, note], {"result": {"segments": []}})
        (Note(code='TF303', text='order unknown', affects=('/result/segments',)),)
    """
    kept = []
    for note in dict.fromkeys(notes):
        placed = (_placed(pointer, document) for pointer in note.affects)
        kept.append(replace(note, affects=tuple(pointer for pointer in placed if pointer is not None)))
    return tuple(kept)


def _placed(pointer: str, document: Mapping[str, Any]) -> str | None:
    """The pointer, as it leads into the answer; in a digest, into the answer to any question."""
    within = pointer.replace("/result", "/result/questions/*/figures", 1)
    return next((one for one in (pointer, within) if _is_there(document, one.split("/")[1:])), None)


def _is_there(value: Any, path: list[str]) -> bool:
    """Whether a pointer leads to something; a table without rows has all columns."""
    if not path:
        return True
    if isinstance(value, Mapping):
        inner = value.values() if path[0] == "*" else [value[path[0]]] if path[0] in value else []
        return any(_is_there(one, path[1:]) for one in inner)
    if isinstance(value, list):
        return not value or any(_is_there(one, path[1:]) for one in value[:1])
    return value is None
