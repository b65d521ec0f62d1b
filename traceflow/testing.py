"""Assertions for the tests of users: a training step that is sharded as it was meant stays so.

A test needs neither an accelerator nor a trace; as many virtual devices as the mesh has are enough
(`JAX_NUM_CPU_DEVICES=8`, set before JAX starts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceflow.analyzers.sharding import Sharding
    from traceflow.intent.intent import Intent
    from traceflow.result import Finding


def assert_sharding(
    fn: Callable[..., Any], *abstract_args: Any, intent: Intent | None = None, **abstract_kwargs: Any
) -> Sharding:
    """Compile a JAX function without running it, and fail where it is not sharded as it was meant.

    Args:
        fn: What is compiled, jitted or not.
        abstract_args: Arrays, or `jax.ShapeDtypeStruct` with the sharding they are meant to have.
        intent: What the program does not say by itself; see :func:`traceflow.intent.intent.intent`.
        abstract_kwargs: More arguments of `fn`, by name.

    Returns:
        The audit, for further assertions: its collectives, its redundancy.

    Raises:
        AssertionError: With one line for each finding: its code, where it comes from, and what would avoid it.
        TraceflowError: TF145 where XLA keeps no stages.

    Example:
        >>> from traceflow.intent import intent                                                # doctest: +SKIP
        >>> assert_sharding(step, *args, intent=intent(batch="data")).redundancy_ratio         # doctest: +SKIP
        1.0
    """
    from traceflow.analyzers.sharding import sharding
    from traceflow.collectors.jax import compile_only

    __tracebackhide__ = True  # what pytest shows is the line of the test
    found = sharding(compile_only(fn, *abstract_args, **abstract_kwargs), intent)
    if found.findings:
        lines = "".join(f"\n  {_line(finding)}" for finding in found.findings)
        raise AssertionError(f"not sharded as meant:{lines}")
    return found


def _line(finding: Finding) -> str:
    source = finding.evidence.get("source")
    place = f"{source}: " if source else ""
    return f"{finding.code} {place}{finding.title}. {finding.suggestion}"
