"""What each call is for: rules from the strongest evidence to the weakest, and `unknown` where none applies.

A rule sees what is around a call and what was expected. It answers with a purpose and with what that rests on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from traceflow.analyzers.attribution.calls import Call, Calls
from traceflow.analyzers.attribution.dimensions import described, meant_by, on_mesh
from traceflow.analyzers.attribution.expectations import Expectations
from traceflow.analyzers.attribution.purposes import TOKENS, Kind, Phase, Purpose
from traceflow.trace.model import ABSENT, Group

NOTHING = "neither annotations, nor its group, nor its payload tell"
_SCALARS_BYTES = 16
_A_GROUP = "a group of"
_TYPES = 4  # gradients may be of a type up to four times as wide as that of parameters, or half as wide
_TYPE_RATIOS = (2, 4, 8, 16)

_ANY_EXCHANGE = frozenset({Kind.ALL_TO_ALL, Kind.ALL_GATHER, Kind.REDUCE_SCATTER})
_SUMS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})
_WORD = r"(?<![a-z])"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A purpose, and what it rests on; `direction` where tokens travel but not whether there or home."""

    purpose: Purpose
    because: str
    undirected: bool = False


@dataclass(frozen=True, slots=True)
class _Scope:
    """What an annotation says of the collectives in it."""

    pattern: str
    kinds: frozenset[Kind]
    purpose: Purpose
    phases: frozenset[Phase | None] = frozenset({None, *Phase})


def _scope(pattern: str, kinds: frozenset[Kind], purpose: Purpose, *phases: Phase | None) -> _Scope:
    return _Scope(pattern, kinds, purpose, frozenset(phases or (None, *Phase)))


_GATHERS = frozenset({Kind.ALL_GATHER})
_AFTER_FORWARD = (None, Phase.BACKWARD, Phase.UPDATE)
_THERE = (None, Phase.FORWARD)
_SCOPES = (
    _scope(r"fsdp::.*(?:all_gather|pre_(?:forward|backward)|prefetch)", _GATHERS, Purpose.PARAMETER_GATHER),
    _scope(r"fullyshardeddataparallel\..*(?:pre_forward|pre_backward|unshard)", _GATHERS, Purpose.PARAMETER_GATHER),
    _scope(
        r"(?:param\w*|weight\w*)[_-](?:all[_-]?)?gather|all_?gather_(?:param|weight)",
        _GATHERS,
        Purpose.PARAMETER_GATHER,
    ),
    _scope(r"(?:param\w*|weight\w*)_(?:all_?)?gather", _SUMS, Purpose.GRADIENT, Phase.BACKWARD),
    _scope(r"fsdp::.*post_backward|fullyshardeddataparallel\._post_backward", _SUMS, Purpose.GRADIENT),
    _scope(
        r"grad\w*_(?:reduc|sync|all_?reduc)|(?:dense|expert)_grad|finalize_model_grads",
        _SUMS,
        Purpose.GRADIENT,
        *_AFTER_FORWARD,
    ),
    _scope(_WORD + r"etp_gather", _ANY_EXCHANGE, Purpose.ETP_GATHER),
    _scope(_WORD + r"etp_scatter", _ANY_EXCHANGE, Purpose.ETP_SCATTER),
    _scope(_WORD + r"dispatch(?![a-z])", frozenset({Kind.ALL_TO_ALL}), Purpose.DISPATCH, *_THERE, Phase.BACKWARD),
    _scope(_WORD + r"dispatch(?![a-z])", _GATHERS, Purpose.DISPATCH, *_THERE),
    _scope(_WORD + r"dispatch(?![a-z])", frozenset({Kind.REDUCE_SCATTER}), Purpose.DISPATCH, Phase.BACKWARD),
    _scope(_WORD + r"combine(?![a-z])", frozenset({Kind.ALL_TO_ALL}), Purpose.COMBINE, *_THERE, Phase.BACKWARD),
    _scope(_WORD + r"combine(?![a-z])", frozenset({Kind.REDUCE_SCATTER}), Purpose.COMBINE, *_THERE),
    _scope(_WORD + r"combine(?![a-z])", _GATHERS, Purpose.COMBINE, Phase.BACKWARD),
    _scope(
        _WORD + r"router|load_?balanc|aux_?loss|expert_?bias|tokens_per_expert",
        frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER}),
        Purpose.ROUTER_STATISTICS,
        *_THERE,
    ),
    _scope(r"^(?:separate-)?grads-(?:reduce-scatter|all-reduce)$", _SUMS, Purpose.GRADIENT),
    _scope(
        _WORD + r"(?:send|recv)_(?:forward|backward)(?![a-z])|^(?:forward|backward)-(?:send|recv)$",
        frozenset({Kind.TRANSFER}),
        Purpose.BOUNDARY,
    ),
    _scope(
        r"context_parallel|ring_attention|ulysses",
        _ANY_EXCHANGE | {Kind.TRANSFER},
        Purpose.CONTEXT,
        None,
        Phase.FORWARD,
        Phase.BACKWARD,
    ),
    _scope(_WORD + r"muon", frozenset({Kind.ALL_TO_ALL}), Purpose.MUON, None, Phase.UPDATE),
)

Rule = Callable[[Call, Expectations, frozenset[str]], Judgement | None]


def _by_library(call: Call, _: Expectations, __: frozenset[str]) -> Judgement | None:
    """A library of expert parallelism: its dispatch takes tokens to experts, or backward brings slopes to results."""
    if call.kind not in {Kind.DISPATCH, Kind.COMBINE}:
        return None
    there = (call.kind is Kind.DISPATCH) != (call.phase is Phase.BACKWARD)
    return Judgement(Purpose.DISPATCH if there else Purpose.COMBINE, "an operation of a library for expert parallelism")


def _by_scope(call: Call, _: Expectations, __: frozenset[str]) -> Judgement | None:
    """The innermost annotation that says something of such a collective."""
    found = ((name, _meant_by_scope(name, call.kind, call.phase)) for name in call.scopes)
    return next((Judgement(purpose, f"annotation {name}") for name, purpose in found if purpose), None)


@cache
def _meant_by_scope(name: str, kind: Kind, phase: Phase | None) -> Purpose | None:
    fitting = (scope for scope in _SCOPES if kind in scope.kinds and phase in scope.phases)
    return next((scope.purpose for scope in fitting if re.search(scope.pattern, name.lower())), None)


def _by_record(call: Call, expected: Expectations, _: frozenset[str]) -> Judgement | None:
    """Splits that the routing record foretells, or as many numbers as there are experts."""
    exchanges = expected.exchanges.get((call.participant[0], call.step), frozenset())
    if call.kind is Kind.ALL_TO_ALL and call.in_splits and call.phase in {Phase.FORWARD, Phase.BACKWARD}:
        there = (call.in_splits, call.out_splits) in exchanges
        home = (call.out_splits, call.in_splits) in exchanges
        because = "splits of the routing record"
        if there and home:
            return Judgement(Purpose.DISPATCH, because, undirected=True)
        if there or home:
            outward = there != (call.phase is Phase.BACKWARD)
            return Judgement(Purpose.DISPATCH if outward else Purpose.COMBINE, because)
    counts = call.kind in {Kind.ALL_GATHER, Kind.ALL_REDUCE} and call.phase is Phase.FORWARD
    if counts and call.payload_bytes in expected.statistics_bytes:
        return Judgement(Purpose.ROUTER_STATISTICS, "as many numbers as there are experts, forward")
    return None


def _by_hook(call: Call, _: Expectations, __: frozenset[str]) -> Judgement | None:
    """What is summed the moment that a gradient is complete is gradients."""
    if call.hooked and call.kind in _SUMS:
        return Judgement(Purpose.GRADIENT, "issued where autograd accumulates gradients")
    return None


def _by_size(call: Call, _: Expectations, __: frozenset[str]) -> Judgement | None:
    """A few numbers: a loss, a norm, a flag."""
    few = call.payload_bytes is not None and call.payload_bytes <= _SCALARS_BYTES
    if few and call.kind is Kind.ALL_REDUCE:
        return Judgement(Purpose.SCALARS, f"a payload of {call.payload_bytes} bytes")
    return None


def _by_plan(call: Call, expected: Expectations, names: frozenset[str]) -> Judgement | None:
    """The one operation of the plan with this payload over this group in this direction."""
    if call.payload_bytes is None or call.kind is Kind.ALL_TO_ALL:
        return None  # both ways of an exchange have one payload
    purpose = expected.purpose_by_payload(call.kind, call.phase, names, call.payload_bytes)
    return Judgement(purpose, "payload and group of the plan") if purpose else None


_PASSES = (Phase.FORWARD, Phase.BACKWARD)
_LATE = (Phase.BACKWARD, Phase.UPDATE)
_BY_DIMENSION: tuple[tuple[frozenset[str], frozenset[Kind], tuple[Phase, ...], Purpose], ...] = (
    (frozenset({"TP"}), frozenset({Kind.ALL_REDUCE}), _PASSES, Purpose.ACTIVATION_SUM),
    (frozenset({"TP"}), _GATHERS, _PASSES, Purpose.ACTIVATION_GATHER),
    (frozenset({"TP"}), frozenset({Kind.REDUCE_SCATTER}), _PASSES, Purpose.ACTIVATION_SCATTER),
    (frozenset({"CP"}), _ANY_EXCHANGE | {Kind.TRANSFER}, _PASSES, Purpose.CONTEXT),
    (frozenset({"PP"}), frozenset({Kind.TRANSFER}), tuple(Phase), Purpose.BOUNDARY),
    (frozenset({"DP", "DPxCP", "GTP"}), _SUMS, _LATE, Purpose.DENSE_GRADIENT),
    (frozenset({"EDP", "EGTP"}), _SUMS, _LATE, Purpose.EXPERT_GRADIENT),
    (frozenset({"DP", "DPxCP", "GTP", "EDP", "EGTP"}), _GATHERS, tuple(Phase), Purpose.PARAMETER_GATHER),
    (frozenset({"EP", "ETPxEP"}), frozenset({Kind.ALL_TO_ALL}), _PASSES, Purpose.DISPATCH),
    (frozenset({"ETP"}), _GATHERS, (Phase.FORWARD,), Purpose.ETP_GATHER),
    (frozenset({"ETP"}), frozenset({Kind.REDUCE_SCATTER}), (Phase.BACKWARD,), Purpose.ETP_GATHER),
    (frozenset({"ETP"}), _GATHERS, (Phase.BACKWARD,), Purpose.ETP_SCATTER),
    (frozenset({"ETP"}), frozenset({Kind.REDUCE_SCATTER}), (Phase.FORWARD,), Purpose.ETP_SCATTER),
)
"""What a collective is for that nothing but its group tells, where the group has one name."""


def _by_dimension(call: Call, _: Expectations, names: frozenset[str]) -> Judgement | None:
    """What such a collective does along the only dimension that its group is."""
    fitting = {
        purpose
        for dimensions, kinds, phases, purpose in _BY_DIMENSION
        if names & dimensions and call.kind in kinds and (call.phase in phases)
    }
    if len(fitting) != 1:
        return None
    purpose = fitting.pop()
    if purpose is Purpose.PARAMETER_GATHER and call.program is not None and not call.of_argument:
        return None
    return Judgement(purpose, f"{_A_GROUP} {' or '.join(sorted(names))}", undirected=purpose in TOKENS)


_RULES: tuple[Rule, ...] = (_by_library, _by_scope, _by_record, _by_hook, _by_size, _by_plan, _by_dimension)


class Answers:
    """What communication calls are for, row by row of `Trace.communications`; each different answer is there once."""

    def __init__(self, calls: Calls, judged: Sequence[Judgement]) -> None:
        self.calls, self.of = calls, calls.of.copy()
        self.replace(list(enumerate(judged)))

    def replace(self, each: list[tuple[int, Judgement]]) -> None:
        """Give other answers in the places of these: which call, and what it is for."""
        self.each, self._known = each, {answer: place for place, answer in enumerate(each)}

    def change(self, row: int, judgement: Judgement) -> None:
        """Give one row another answer."""
        answer = int(self.calls.of[row]), judgement
        if answer not in self._known:
            self._known[answer] = len(self.each)
            self.each.append(answer)
        self.of[row] = self._known[answer]

    def judged(self, row: int) -> Judgement:
        """What one row is for."""
        return self.each[int(self.of[row])][1]

    def given(self) -> list[int]:
        """The answers that are those of some row, in the order of their last rows."""
        last = np.full(len(self.each), ABSENT)
        last[self.of] = np.arange(len(self.of))  # the last one written stays
        order = np.argsort(last)
        given: list[int] = order[last[order] >= 0].tolist()
        return given

    def rows(self, wanted: Callable[[Call, Judgement], bool]) -> list[int]:
        """The rows whose call and answer are wanted."""
        chosen = [wanted(self.calls.each[call], judged) for call, judged in self.each]
        return np.flatnonzero(np.array(chosen or [False])[self.of]).tolist()


def judge(calls: Calls, expected: Expectations) -> Answers:
    """What every call is for."""
    last = {call.group: call for call in calls.each}
    named = {group: names_of(call, expected) for group, call in last.items()}
    answers = Answers(calls, _with_pairs(calls.each, _judged(calls.each, expected, named)))
    _tell_exchanges(answers)
    _tell_directions(answers)
    given = [answers.each[place] for place in answers.given()]
    experts = expected.grids.expert is not None or any(judged.purpose in TOKENS for _, judged in given)
    each = ((at, calls.each[at], judged) for at, judged in answers.each)
    answers.replace([(at, _refined(call, one, expected, named[call.group], experts=experts)) for at, call, one in each])
    return answers


def _judged(
    calls: Sequence[Call], expected: Expectations, names: Mapping[Group | None, frozenset[str]]
) -> list[Judgement]:
    """What the rules say of each call; those in which they see no difference are asked about once."""
    known: dict[object, Judgement] = {}
    judged = []
    for call in calls:
        around = call.kind, call.phase, call.scopes, call.hooked, call.program, call.of_argument
        where = (call.participant[0], call.step) if expected.exchanges else None
        key = around, id(call.group), call.payload_bytes, call.in_splits, call.out_splits, where
        if key not in known:
            known[key] = _first(call, expected, names[call.group])
        judged.append(known[key])
    return judged


def names_of(call: Call, expected: Expectations) -> frozenset[str]:
    """Dimensions that the group of a call may be: on the plan's meshes, as the program calls it, or by the record."""
    if axes := axes_of(call, expected):
        name = meant_by(axes)
        return frozenset({name} if name else ())
    grids, members, said = expected.grids, call.members, described(call.group)
    whole = call.kind is not Kind.TRANSFER
    found = (grid.name_of(members, whole=whole) for grid in (grids.dense, grids.expert) if grid and members)
    placed = frozenset(name for name in found if name)
    return placed if placed and (expected.has_plan or not said) else frozenset({said} if said else ())


def axes_of(call: Call, expected: Expectations) -> str | None:
    """The axes of the user's own mesh that a group lies along; None without such a mesh."""
    mesh = None if call.program is None else expected.meshes.get(call.program)
    return on_mesh(mesh, call.members) if mesh is not None and call.members else None


def _first(call: Call, expected: Expectations, names: frozenset[str]) -> Judgement:
    found = (rule(call, expected, names) for rule in _RULES)
    return next((one for one in found if one), Judgement(Purpose.UNKNOWN, NOTHING))


def _with_pairs(calls: Sequence[Call], judged: Sequence[Judgement]) -> list[Judgement]:
    """What is gathered over copies is parameters only if their gradients are scattered there, in the same sizes."""
    scattered = {
        (call.members, (call.payload_bytes or 0) * _TYPES // len(call.members))
        for call in calls
        if call.kind is Kind.REDUCE_SCATTER and call.phase in _LATE and call.members
    }
    known = list(judged)
    for place, (call, one) in enumerate(zip(calls, judged, strict=True)):
        by_group = one.purpose is Purpose.PARAMETER_GATHER and one.because.startswith(_A_GROUP)
        if not by_group or call.program is not None:
            continue
        if not scattered & {(call.members, (call.payload_bytes or 0) * ratio) for ratio in _TYPE_RATIOS}:
            known[place] = Judgement(Purpose.UNKNOWN, f"{one.because}, but no reduce-scatter of the same size")
    return known


def _tell_exchanges(answers: Answers) -> None:
    """Rows that go in unequal parts and come home in the same pass, with the splits exchanged, are tokens."""
    tokens = Judgement(Purpose.DISPATCH, "splits that are exchanged within one pass", undirected=True)
    for calls in _sequences(answers, lambda call, _: call.kind is Kind.ALL_TO_ALL):
        splits = [(call.in_splits, call.out_splits) for _, call in calls]
        for (row, _), (there, back) in zip(calls, splits, strict=True):
            paired = bool(there) and len(set(there)) > 1 and there != back and (back, there) in splits
            if answers.judged(row).purpose is Purpose.UNKNOWN and paired:
                answers.change(row, tokens)


def _tell_directions(answers: Answers) -> None:
    """Tell there from home, in exchanges of which splits do not: they take turns, and the way there comes first.

    Backward, what comes first is the way of the results. What is narrower than a row travels with the way there.
    """
    for calls in _sequences(answers, lambda _, judged: judged.undirected):
        widths = [_width(call) for _, call in calls]
        whole = [of for of, width in zip(calls, widths, strict=True) if width == max(widths)]
        turns = [Purpose.DISPATCH, Purpose.COMBINE]
        if calls[0][1].phase is Phase.BACKWARD:
            turns.reverse()
        consistent = len(whole) % 2 == 0 and all(
            _home(there, back) for (_, there), (_, back) in zip(whole[::2], whole[1::2], strict=True)
        )
        turn = {row: turns[place % 2] for place, (row, _) in enumerate(whole)}
        for row, _ in calls:
            because = answers.judged(row).because
            told = Judgement(turn.get(row, Purpose.DISPATCH), f"{because}, by turns")
            answers.change(row, told if consistent else Judgement(Purpose.UNKNOWN, f"{because}, but no turns"))


def _sequences(answers: Answers, wanted: Callable[[Call, Judgement], bool]) -> Iterator[list[tuple[int, Call]]]:
    """Calls of one participant and group in one pass of one step, with their rows, as they were issued."""
    found: dict[object, list[tuple[int, Call]]] = {}
    for row in answers.rows(lambda call, judged: call.phase in _PASSES and wanted(call, judged)):
        call = answers.calls.each[answers.calls.of[row]]
        found.setdefault((call.participant, call.members, call.step, call.phase), []).append((row, call))
    issued_ns = answers.calls.issued_ns
    yield from (sorted(calls, key=lambda call: issued_ns[call[0]]) for calls in found.values())


def _width(call: Call) -> float:
    """Bytes of a row."""
    return (call.payload_bytes or 0) / (sum(call.in_splits) or 1)


def _home(there: Call, back: Call) -> bool:
    return (there.in_splits, there.out_splits) == (back.out_splits, back.in_splits)


def _refined(
    call: Call, judged: Judgement, expected: Expectations, names: frozenset[str], *, experts: bool
) -> Judgement:
    """Whether gradients are those of experts, where something tells."""
    if judged.purpose is not Purpose.GRADIENT:
        return judged
    spoken = " ".join(call.scopes).lower()
    if "expert" in spoken or "dense" in spoken:
        purpose = Purpose.EXPERT_GRADIENT if "expert" in spoken else Purpose.DENSE_GRADIENT
    elif names & {"EDP", "EGTP"} and not _may_be_dense(names):
        purpose = Purpose.EXPERT_GRADIENT
    elif not experts or _spans_experts(call, expected) or (_may_be_dense(names) and not names & {"EDP", "EGTP"}):
        purpose = Purpose.DENSE_GRADIENT
    else:
        purpose = judged.purpose
    return Judgement(purpose, judged.because)


def _may_be_dense(names: frozenset[str]) -> bool:
    return bool(names & {"DP", "DPxCP", "GTP"})


def _spans_experts(call: Call, expected: Expectations) -> bool:
    """Whether a sum is over ranks that hold different experts, of which no gradients can be added up."""
    grid = expected.grids.expert
    name = grid.name_of(call.members, whole=False) if grid and call.members else None
    return call.kind is Kind.ALL_REDUCE and name is not None and "EP" in name.split("x")
