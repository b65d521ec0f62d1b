"""The digest of a run: what it answers to every question, findings first, and no larger than one can read at once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Thread
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar

import msgspec

from traceflow.errors import TraceflowError
from traceflow.quality import touching
from traceflow.result import Finding, Json, Note, Result, Severity, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd

_FINDINGS_BYTES, _SKIPPED_BYTES, _NOTES_BYTES, _FIGURES_BYTES = 14_000, 4_000, 3_000, 24_000
_ROWS = (8, 5, 3, 2, 1, 0)  # of a table; the first that makes all figures small enough
_INNER_ROWS = 3  # of a table within a row
_ENTRIES = 32  # of an object that has one entry for each rank, or the like
_CHARACTERS = 200
_LOUDEST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_REQUESTS = frozenset({"TF111", "TF112"})  # what is wrong with the request concerns every question

# What makes a row matter more than another, the first that it has.
_WEIGHTS = (
    "cost_ns",
    "saved_ns",
    "exposed_ns",
    "measured_ns",
    "duration_ns",
    "live_peak_bytes",
    "peak_bytes",
    "payload_bytes",
    "bytes",
    "device_ns",
)

Item = TypeVar("Item")
_Question: TypeAlias = tuple[str, Callable[[], Result]]
_Told: TypeAlias = dict[str, Result | TraceflowError]


@dataclass(frozen=True, kw_only=True)
class Digest(Shown):
    """Every answer of a run, abridged.

    Tables keep the rows that cost most. Longer names than `_CHARACTERS` end in an ellipsis. What is left out is counted.

    Args:
        answers: What was answered, by the name of the question.
        refused: Why the other questions have no answer.
    """

    kind: ClassVar[str] = "all"

    answers: Mapping[str, Result]
    refused: Mapping[str, TraceflowError]

    @cached_property
    def _whole(self) -> dict[str, dict[str, Json]]:
        """The answers in full."""
        return {question: of.to_dict() for question, of in self.answers.items()}

    @cached_property
    def _found(self) -> list[Finding]:
        """All findings, each once: the most serious first, then the costliest."""
        once: dict[bytes, Finding] = {}
        for question, of in self.answers.items():
            for finding in of.findings:
                once.setdefault(msgspec.json.encode(finding), _short(finding, question))
        return sorted(once.values(), key=lambda f: (_LOUDEST_FIRST.index(f.severity), -(f.cost_ns or 0), f.code))

    @cached_property
    def _gaps(self) -> list[Skipped]:
        """What could not be established, once per question and reason."""
        by_reason: dict[tuple[str, str], list[str]] = {}
        for question, of in self.answers.items():
            for gap in of.skipped:
                by_reason.setdefault((question, gap.reason), []).append(gap.what)
        return [
            Skipped(_moved(question, what[0] if len(what) == 1 else "/result"), reason)
            for (question, reason), what in by_reason.items()
        ]

    @cached_property
    def _remarks(self) -> list[Note]:
        """Remarks on the evidence, each once."""
        by_text: dict[tuple[str, str], list[str]] = {}
        for question, of in self.answers.items():
            for note in touching(of.notes, {"result": self._whole[question]}):
                by_text.setdefault((note.code, note.text), []).extend(_moved(question, what) for what in note.affects)
        return [Note(code, text, tuple(affects)) for (code, text), affects in by_text.items()]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all questions that there is room for; `evidence` says which question found them."""
        return tuple(_fitting(self._found, _FINDINGS_BYTES))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What could not be established, and why."""
        return tuple(_fitting(self._gaps, _SKIPPED_BYTES))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Remarks on the evidence."""
        return tuple(_fitting(self._remarks, _NOTES_BYTES))

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "questions": self._figures(),
            "unavailable": [
                {"question": question, "code": error.code, "reason": error.why, "hint": error.hint}
                for question, error in self.refused.items()
            ],
            "left_out": {
                "findings": {**Counter(finding.code for finding in self._found[len(self.findings) :])},
                "skipped": len(self._gaps) - len(self.skipped),
                "notes": len(self._remarks) - len(self.notes),
            },
        }

    def to_pandas(self) -> pd.DataFrame:
        """The findings, one row each."""
        import pandas as pd

        return pd.DataFrame([msgspec.to_builtins(finding) for finding in self._found])

    def _figures(self) -> dict[str, Json]:
        """The answers with as many rows of their tables as there is room for."""
        for rows in _ROWS:
            figures = {question: _abridged_answer(of, rows) for question, of in self._whole.items()}
            if len(msgspec.json.encode(figures)) <= _FIGURES_BYTES:
                break
        return figures


def digest(questions: Mapping[str, Callable[[], Result]], *, side_by_side: bool = True) -> Digest:
    """Ask a run everything; a question that it cannot answer is kept with the reason.

    Args:
        questions: How to ask each, by name.
        side_by_side: Whether another thread asks as well, from the last question on. It changes no answer, and pays
            where most of the work is on arrays.

    Raises:
        TraceflowError: TF111 or TF112 where the request itself is wrong, such as a step that is not there.
    """
    told = _told(questions, side_by_side=side_by_side)
    answers: dict[str, Result] = {}
    refused: dict[str, TraceflowError] = {}
    for name, ask in questions.items():
        one = told[name] if name in told else ask()  # what broke the other thread breaks this one
        if not isinstance(one, TraceflowError):
            answers[name] = one
        elif one.code in _REQUESTS:
            raise one
        else:
            refused[name] = one
    return Digest(answers=answers, refused=refused)


def _told(questions: Mapping[str, Callable[[], Result]], *, side_by_side: bool) -> _Told:
    """What each question is answered, up to a request that is wrong."""
    left: deque[_Question] = deque(questions.items())
    told: _Told = {}
    other = Thread(target=_ask_aside, args=(left, told), daemon=True)  # an interrupt does not wait for its end
    if side_by_side:
        other.start()
    try:
        _ask(left, left.popleft, told)
    finally:
        left.clear()
    if side_by_side:
        other.join()
    return told


def _ask_aside(left: deque[_Question], told: _Told) -> None:
    with suppress(Exception):  # `digest` asks again what broke, where somebody hears of it
        _ask(left, left.pop, told)


def _ask(left: deque[_Question], take: Callable[[], _Question], told: _Told) -> None:
    """Ask what is left, until the request turns out to be wrong."""
    while left:
        try:
            name, ask = take()
        except IndexError:  # the other thread was faster
            return
        try:
            told[name] = ask()
        except TraceflowError as error:
            told[name] = error
            if error.code in _REQUESTS:
                return


def _short(finding: Finding, question: str) -> Finding:
    """A finding with the question that it answers, and without the tables of its evidence."""
    plain = {key: value for key, value in finding.evidence.items() if not isinstance(value, list | dict)}
    evidence = {"question": question, **_abridged_object(plain, 0, "", {})}
    return replace(finding, title=_cut(finding.title), suggestion=_cut(finding.suggestion), evidence=evidence)


def _moved(question: str, pointer: str) -> str:
    """A pointer into an answer as one into the digest."""
    if not pointer.startswith("/result"):
        return pointer
    return f"/result/questions/{question}/figures{pointer.removeprefix('/result')}"


def _fitting(items: Sequence[Item], limit_bytes: int) -> Iterable[Item]:
    """The first items, as long as they are no larger than a limit together."""
    for item in items:
        limit_bytes -= len(msgspec.json.encode(item))
        if limit_bytes < 0:
            return
        yield item


def _abridged_answer(answer: dict[str, Json], rows: int) -> Json:
    left_out: dict[str, int] = {}
    figures = _abridged_object(answer, rows, "", left_out)
    return {"figures": figures, "left_out": {**left_out}}


def _abridged(value: Json, rows: int, pointer: str, left_out: dict[str, int]) -> Json:
    """A value with the weightiest rows of its tables; what is left out is counted by pointer."""
    if isinstance(value, dict):
        return _abridged_object(value, rows, pointer, left_out)
    if isinstance(value, list):
        kept = sorted(value, key=_weight, reverse=True)[:rows]
        _count(left_out, pointer, len(value) - len(kept))
        return [_abridged(row, min(rows, _INNER_ROWS), f"{pointer}/*", left_out) for row in kept]
    return _cut(value) if isinstance(value, str) else value


def _abridged_object(value: Mapping[str, Json], rows: int, pointer: str, left_out: dict[str, int]) -> dict[str, Json]:
    entries = list(value.items())
    if len(entries) > _ENTRIES:
        entries = sorted(entries, key=lambda entry: _number(entry[1]), reverse=True)[:_ENTRIES]
        _count(left_out, pointer, len(value) - len(entries))
    return {_cut(key): _abridged(item, rows, f"{pointer}/{_cut(key)}", left_out) for key, item in entries}


def _count(left_out: dict[str, int], pointer: str, number: int) -> None:
    if number:
        left_out[pointer] = left_out.get(pointer, 0) + number


def _weight(row: Json) -> float:
    """How much a row matters among those of its table; rows that do not say stay in their order."""
    if not isinstance(row, dict):
        return 0
    return next((_number(row[key]) for key in _WEIGHTS if key in row), 0)


def _number(value: Json) -> float:
    return abs(value) if isinstance(value, int | float) else 0


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
