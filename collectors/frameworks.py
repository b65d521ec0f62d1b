"""Which framework a program computes with, and the collector for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from traceflow.capture import Options
from traceflow.collectors.collector import Collector
from traceflow.errors import TraceflowError

Framework: TypeAlias = Literal["jax", "torch"]

_NAMES: dict[Framework, str] = {"jax": "JAX", "torch": "PyTorch"}
_HOMES: dict[str, Framework] = {"jax": "jax", "jaxlib": "jax", "torch": "torch"}  # packages that define their types


def framework_in_use() -> Framework | None:
    """The framework that is imported, or where none is, the one that is installed; None where it may be either.

    Raises:
        TraceflowError: TF113 when none is installed.
    """
    imported: list[Framework] = [name for name in _NAMES if sys.modules.get(name)]
    found = imported or [name for name in _NAMES if find_spec(name)]
    if not found:
        hint = "pip install 'traceflow-ml[jax]' or 'traceflow-ml[torch]'"
        raise TraceflowError("TF113", "cannot record", "neither JAX nor PyTorch is installed", hint)
    return found[0] if len(found) == 1 else None


def framework_of(tree: object) -> Framework | None:
    """The framework of the first array or model in nested dictionaries, lists and tuples.

    Example:
        >>> framework_of({"loss": 0.5}) is None
        True
    """
    return next(filter(None, map(_framework_of_leaf, _leaves(tree))), None)


def _leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from _leaves(branch)
    else:
        yield tree


def _framework_of_leaf(leaf: object) -> Framework | None:
    packages = (kind.__module__.partition(".")[0] for kind in type(leaf).__mro__)
    return next((_HOMES[package] for package in packages if package in _HOMES), None)


def collector_for(framework: Framework, options: Options) -> Collector:
    """The collector of a framework.

    Raises:
        TraceflowError: TF113 when it is not installed.
        ValueError: when there is none of this name.
    """
    if framework not in _NAMES:
        message = f"cannot record {framework!r}: the frameworks are 'jax' and 'torch'"
        raise ValueError(message)
    if find_spec(framework) is None:
        hint = f"pip install 'traceflow-ml[{framework}]'"
        raise TraceflowError("TF113", "cannot record", f"{_NAMES[framework]} is not installed", hint)
    if framework == "jax":
        from traceflow.collectors.jax_profiler import JaxProfiler

        return JaxProfiler(options)
    from traceflow.collectors.torch_profiler import TorchProfiler

    return TorchProfiler(options)


def unknown_framework() -> TraceflowError:
    """What to say where both frameworks are there, and nothing tells which of them computes."""
    why = "JAX and PyTorch are both here, and no step of the warm-up gave an array to step.ready or step.fetch"
    return TraceflowError("TF116", "cannot tell what to record", why, "pass framework='jax' or framework='torch'")


def fetched(tree: Any) -> Any:
    """A copy of `tree` on the host, with numpy arrays for the arrays of whichever framework it is of."""
    framework = framework_of(tree)
    if framework is None:
        return tree
    return collector_for(framework, Options(warmup=0, steps=None, hlo=False)).fetch(tree)
