"""Intended against compiled sharding: what the author asked for, what the compiler made of it, and what that costs.

The program is read at the stages of its compilation. How arrays are meant to lie is stated in it: shardings of
arguments and results, constraints, specs of `shard_map`, types in explicit mode. From that and from how the compiler
laid out everything else follow the collectives that are called for. Every other one is a finding, with the
instruction, its source line, what it moves and, with a trace, what it cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from traceflow.analyzers.sharding.result import ArrayRow, CollectiveRow, Sharding
from traceflow.result import Skipped
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    from traceflow.analyzers.critical_path import CriticalPath
    from traceflow.intent.intent import Intent
    from traceflow.program.compilation import Compilation

__all__ = ["ArrayRow", "CollectiveRow", "Sharding", "sharding"]

_NOTHING = "there is no compiled program, and no audit by traceflow.collectors.torch_sharding"


def sharding(
    compilations: Compilation | Sequence[Compilation],
    intent: Intent | None = None,
    *,
    trace: Trace | None = None,
    path: CriticalPath | None = None,
) -> Sharding:
    """Compare how programs are meant to be sharded with what the compiler made of them.

    Args:
        compilations: One program or several, at the stages that were kept; see
            :func:`traceflow.collectors.jax.compile_only`.
        intent: What no program says by itself; see :func:`traceflow.intent.intent.intent`.
        trace: Of the programs when they ran, for what a mismatch costs.
        path: The critical path of the trace, or of the step of it that costs are about.

    Returns:
        Arrays, collectives and findings of all programs; the redundancy is that of the heaviest of them.

    Raises:
        TraceflowError: TF142 where the intent names an axis that no mesh of the programs has.

    Example:
        >>> from traceflow.program.compilation import Compilation
        >>> sharding(Compilation("jit_f")).findings
        ()
    """
    programs = list(compilations) if isinstance(compilations, Sequence) else [compilations]
    if not programs:
        return Sharding(
            mesh=None,
            arrays=(),
            collectives=(),
            redundancy_ratio=None,
            redundancy_reason=_NOTHING,
            skipped=(Skipped("/result/redundancy_ratio", _NOTHING),),
        )
    from traceflow.analyzers.sharding.audit import audit
    from traceflow.intent.intent import Intent

    return audit(programs, intent or Intent(), trace=trace, path=path)
