"""The start hook of `traceflow run`: Python imports it in every process of the program, before the program itself.

Python knows one module of this name. The hook takes the place of the program's own, and therefore hands on to that.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

# What a framework of a version that nobody has foreseen, or a broken one, may cause. Its import must not fail for it.
_FAILURES = (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def _hand_on() -> None:
    """Leave no trace on the path, and run the `sitecustomize` that would have been imported without this one."""
    here, _, _ = __file__.rpartition(os.sep)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    spec = PathFinder.find_spec(__name__)
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[__name__])


def _watch() -> None:
    """Wait for the program to import a framework; where traceflow is not installed, there is nothing to do."""
    try:
        from traceflow.collectors.imports import after_import
    except ImportError:
        return
    after_import("jax", _record_jax)
    after_import("torch", _record_torch)


def _record_jax() -> None:
    with suppress(*_FAILURES):
        from traceflow.launched import record_jax

        record_jax()


def _record_torch() -> None:
    with suppress(*_FAILURES):
        from traceflow.launched import record_torch

        record_torch()


if os.environ.get("TRACEFLOW_RUN") and __name__ == "sitecustomize":
    _watch()
    _hand_on()
