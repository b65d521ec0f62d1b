"""What runs are asked together: one against another, and one against limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from traceflow.errors import TraceflowError
from traceflow.run import Run, open_run

if TYPE_CHECKING:
    from traceflow.analyzers.comparison import Diff
    from traceflow.analyzers.comparison.claims import Claim
    from traceflow.analyzers.comparison.observation import Observation
    from traceflow.analyzers.gate import Answer, Check, Requirement

ATOL, RTOL = 1e-8, 1e-5


def diff(
    a: Run | str | Path,
    b: Run | str | Path,
    claims: Iterable[str | Claim] = (),
    *,
    atol: float = ATOL,
    rtol: float = RTOL,
) -> Diff:
    """Compare two runs; see :func:`traceflow.analyzers.comparison.diff`.

    Args:
        a: The reference, opened or as `tf.open` takes it.
        b: What is compared with it.
        claims: What is said to have changed, such as ``"less all-gather bytes"`` or ``"exposed_share < 0.05"``.
        atol: What recorded outputs may differ by.
        rtol: What they may differ by in relation to those of a.

    Raises:
        ExpressionError: For a claim that cannot be understood, before anything is read.
        TraceflowError: where a run cannot be read or explained.

    Example:
        >>> import traceflow as tf
        >>> tf.diff("runs/before", "runs/after", ["less step time"]).verdict   # doctest: +SKIP
        'faster'
    """
    from traceflow.analyzers.comparison import diff as compare
    from traceflow.analyzers.comparison.claims import read_claim

    read = [read_claim(claim) if isinstance(claim, str) else claim for claim in claims]
    of_a, of_b = _opened(a), _opened(b)
    compared = compare(observation(of_a), observation(of_b), read, atol=atol, rtol=rtol)
    return replace(compared, notes=(*of_a.notes, *of_b.notes))


def observation(run: Run) -> Observation:
    """What a run shows of everything that is compared; programs alone show no times.

    Args:
        run: A run.
    """
    from traceflow.analyzers.comparison import observe, observe_programs
    from traceflow.outputs import recorded_outputs
    from traceflow.trace.untraced import FORMAT

    outputs = recorded_outputs(Path((run.original or run).inputs[0]))
    if run.trace.format == FORMAT:
        return observe_programs(run.trace, run.programs, run.memory(), outputs)
    return observe(run.trace, run.dependencies, run.programs, run.summary(), run.memory(), outputs)


def check(
    run: Run | str | Path,
    require: Sequence[str | Requirement],
    *,
    baseline: Run | str | Path | None = None,
    step: int | None = None,
    window: str | None = None,
) -> Check:
    """Hold figures of a run against limits; see :func:`traceflow.analyzers.gate.gate`.

    Args:
        run: What is checked, opened or as `tf.open` takes it.
        require: Expressions such as ``"exposed_share < 0.15"`` or ``"live_peak_bytes <= 1.02 * baseline"``.
        baseline: What `baseline` means in them.
        step: Which step, for the questions that can be asked of one; the whole capture where None.
        window: The same by the name of an annotation.

    Raises:
        ExpressionError: For an expression that cannot be understood, before anything is read.
        TraceflowError: where a run cannot be read.

    Example:
        >>> import traceflow as tf
        >>> tf.check("runs/a", ["exposed_share < 0.15"]).passed   # doctest: +SKIP
        True
    """
    from traceflow.analyzers.gate import gate, read_requirement

    with_baseline = baseline is not None
    read = [read_requirement(one, with_baseline=with_baseline) if isinstance(one, str) else one for one in require]
    opened = _opened(run)
    answers = _answers(opened, _kinds(read, of_baseline=False), step, window)
    if baseline is None:
        return replace(gate(read, answers), notes=opened.notes)
    before = _opened(baseline)
    held = gate(read, answers, _answers(before, _kinds(read, of_baseline=True), step, window))
    return replace(held, notes=(*opened.notes, *before.notes))


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else open_run(run)


def _kinds(requirements: Sequence[Requirement], *, of_baseline: bool) -> list[str]:
    """The questions that requirements need an answer to, each once."""
    paths = [path for one in requirements for path, of in one.figures.values() if of is of_baseline]
    return list(dict.fromkeys(path.kind for path in paths))


def _answers(run: Run, kinds: Iterable[str], step: int | None, window: str | None) -> Mapping[str, Answer]:
    return {kind: _answer(run, kind, step, window) for kind in kinds}


_OF_A_STEP = frozenset({"sharding", "moe"})
_OF_A_WINDOW = frozenset({"critical-path", "communication", "stragglers", "budget", "collective-matmul"})


def _answer(run: Run, kind: str, step: int | None, window: str | None) -> Answer:
    from traceflow.analyzers.gate import Answer

    about: dict[str, Any] = {}
    if kind in _OF_A_STEP | _OF_A_WINDOW:
        about["step"] = step
    if kind in _OF_A_WINDOW:
        about["window"] = window
    if kind == "critical-path":
        about["slack"] = True
    try:
        result = getattr(run, kind.replace("-", "_"))(**about)
    except TraceflowError as error:
        if error.code in {"TF111", "TF112"}:  # the step or the window was named by the user
            raise
        return Answer(None, reason=f"{error.what}: {error.why}")
    return Answer(result.to_dict(), [msgspec.to_builtins(one) for one in result.skipped])
