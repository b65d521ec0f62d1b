"""Collective matmul: whether products are cut into rounds so that sending hides behind them, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from traceflow.analyzers.rings.operators import operator_loops
from traceflow.analyzers.rings.result import NOT_HIDDEN, SOURCE_ORDER, TOO_SMALL, Candidate, Loop
from traceflow.analyzers.rings.waits import waiting_products
from traceflow.analyzers.window import Window
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.analyzers.rings.executed import Walked
    from traceflow.analyzers.rings.recorded import Recorded
    from traceflow.analyzers.rings.rounds import Ring
    from traceflow.program.module import Programs

_GRAVE = frozenset({"TF260", "TF261"})
_NOTABLE_SHARE = 0.01  # of the window


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMatmul(Shown):
    """Products that are cut into rounds, those that could be, and whether cutting hides what is sent."""

    kind: ClassVar[str] = "collective-matmul"
    window: Window | None  # None where programs alone are known
    loops: tuple[Loop, ...]
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "window": None if self.window is None else {**self.window.to_dict()},
            "loops": [loop.to_dict() for loop in self.loops],
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per round."""
        import pandas as pd

        return pd.DataFrame([{"loop": loop.name, **one.to_dict()} for loop in self.loops for one in loop.per_round])


def collective_matmul(
    programs: Programs, recorded: Recorded | None = None, *, undivided: Recorded | None = None
) -> CollectiveMatmul:
    """Find products that are cut into rounds, check each round, and measure how much of the sending is hidden.

    A device that receives from the one after it has in round t the block of (index + t) mod N; the part of its other
    operand that it multiplies with must be that of the same block. Where slices begin is computed from the program's
    own instructions, for every device. Of executions in the window: overlapped = time of permutes that computation of
    the same device covers; exposed = the rest; chunk efficiency = the time of one undivided product of as many FLOPs
    / the sum of the rounds' products. The difference of two programs' times is no time of communication, and is never
    given as one.

    Args:
        programs: What the compiler arranged; where some ran in the trace, the others are left out.
        recorded: A window of a trace in which they ran; None where there is none.
        undivided: A window in which the same product ran in one piece, to compare with.
    """
    # A trace comes with every program of its process, those of which nothing ran included.
    ran = set(recorded.trace.hlo.program.tolist()) if recorded else set()
    asked = {key: module for key, module in programs.items() if not ran or key in ran}
    known, rings, candidates = _in_programs(asked, recorded, undivided)
    loops = [loop for loop, _ in rings] + (list(operator_loops(recorded, undivided)) if recorded else [])
    loops.sort(key=lambda loop: -(loop.exposed_ns or 0))
    candidates = sorted((*candidates, *(waiting_products(recorded) if recorded else ())), key=_order)
    window = recorded.window if recorded else None
    return CollectiveMatmul(
        window=window,
        loops=tuple(loops),
        candidates=tuple(candidates),
        findings=(
            *(finding for loop, ring in rings for finding in _wrong(loop, ring)),
            *(finding for loop in loops for finding in _exposed(loop)),
            *_savings(candidates, window),
        ),
        skipped=tuple(_skipped(known, loops, candidates)),
        notes=recorded.found.notes if recorded else (),
    )


def _in_programs(
    programs: Programs, recorded: Recorded | None, undivided: Recorded | None
) -> tuple[list[Walked], list[tuple[Loop, Ring]], list[Candidate]]:
    """The programs that communicate and multiply, with the rings and the candidates in them."""
    if not programs:
        return [], [], []
    from traceflow.analyzers.rings.executed import candidates_of, loops_of, walked

    known = [one for key, module in programs.items() if (one := walked(key, module)) is not None]
    rings = [pair for one in known for pair in loops_of(one, recorded, undivided)]
    return known, rings, [candidate for one in known for candidate in candidates_of(one, recorded)]


def _order(one: Candidate) -> tuple[int, int, int]:
    return -(one.saved_ns or 0), -(one.exposed_ns or 0), -(one.bytes or 0)


def _wrong(loop: Loop, ring: Ring) -> Iterator[Finding]:
    from traceflow.analyzers.rings.checks import flaws

    for flaw in flaws(ring):
        yield Finding(
            code=flaw.code,
            severity=Severity.ERROR if flaw.code in _GRAVE else Severity.WARNING,
            title=f"{loop.name}: {flaw.title}",
            provenance=Provenance.COMPILER,
            suggestion=flaw.suggestion,
            evidence={"loop": loop.name, "source": loop.source, **flaw.evidence},
        )


def _exposed(loop: Loop) -> Iterator[Finding]:
    if loop.verdict in _ADVICE:
        code, title, suggestion = _ADVICE[loop.verdict]
        yield Finding(
            code=code,
            severity=Severity.WARNING,
            title=f"{loop.name}: {title}",
            provenance=Provenance.MEASURED,
            suggestion=suggestion,
            cost_ns=loop.exposed_ns,
            evidence={"loop": loop.name, "source": loop.source, "permute_ns": loop.permute_ns},
        )


_ADVICE = {
    NOT_HIDDEN: (
        "TF264",
        "the product is cut into rounds, but its permutes do not hide behind them",
        "see that permutes are asynchronous and start before the product of their round, or leave it in one piece",
    ),
    TOO_SMALL: (
        "TF265",
        "the products of its rounds are shorter than what is sent meanwhile",
        "cut into fewer and larger pieces, send in both directions, or leave the product in one piece",
    ),
}


def _savings(candidates: Sequence[Candidate], window: Window | None) -> Iterator[Finding]:
    """What could be cut, where that saves a part of the window that is worth it."""
    for one in candidates:
        if window and one.saved_ns and one.saved_ns >= _NOTABLE_SHARE * window.duration_ns:
            collective = one.collective if one.program else one.operation
            yield Finding(
                code="TF266",
                severity=Severity.INFO,
                title=f"{collective} could be sent in pieces while {one.matmul} multiplies them",
                provenance=Provenance.MODELLED,
                suggestion="cut the product into one round per device (a collective matmul); pieces multiply less well "
                "than the whole, which this does not count",
                cost_ns=one.saved_ns,
                evidence={
                    "collective": one.collective,
                    "program": one.program,
                    "source": one.source,
                    "exposed_ns": one.exposed_ns,
                },
            )


def _skipped(known: Sequence[Walked], loops: Sequence[Loop], candidates: Sequence[Candidate]) -> Iterator[Skipped]:
    if not known:
        reason = "without a program that communicates and multiplies it is not known what products are made of"
        if not candidates:
            yield Skipped("/result/candidates", f"{reason}, and none waits for a collective by itself")
        if any(loop.per_round for loop in loops):
            yield Skipped("/result/loops/*/per_round/*/rows", reason)
    yield from (Skipped("/result/loops", f"the loops of {one.module.name} run too often") for one in known if one.long)
    if any(loop.verdict == SOURCE_ORDER for loop in loops):
        names = ("exposed_ns", "overlapped_share", "matmul_ns")
        reason = "no execution of its permutes and products is in the trace, or they are one operator"
        yield from (Skipped(f"/result/loops/*/{name}", reason) for name in names)
    if any(loop.chunk_efficiency_ratio is None for loop in loops):
        reason = "no undivided product of as many FLOPs was executed in what was read"
        yield Skipped("/result/loops/*/chunk_efficiency_ratio", reason)
    if any(one.exposed_ns is None for one in candidates):
        reason = "the trace holds no execution of the collective and of the product"
        yield from (Skipped(f"/result/candidates/*/{name}", reason) for name in ("exposed_ns", "saved_ns"))
