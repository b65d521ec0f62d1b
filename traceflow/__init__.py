"""traceflow explains why a training step took as long as it did, and what would shorten it.

    import traceflow as tf

    with tf.record("runs/a") as recorder:
        for batch in batches:
            with recorder.step() as step:
                state = step.ready(train_step(state, batch))

    run = tf.open("runs/a")
    run.critical_path()

Each public name is loaded when it is first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceflow.analyzers.changes import Drop, Scale
    from traceflow.asking import check, diff
    from traceflow.errors import TraceflowError
    from traceflow.instrumenting import instrument
    from traceflow.moe_hooks import watch_moe
    from traceflow.recording import record
    from traceflow.routed import moe
    from traceflow.run import Run
    from traceflow.run import open_run as open  # noqa: A004  # the name that users see is tf.open
    from traceflow.trace.model import Trace

    __version__: str

__all__ = [
    "Drop",
    "Run",
    "Scale",
    "Trace",
    "TraceflowError",
    "__version__",
    "check",
    "diff",
    "instrument",
    "moe",
    "open",
    "record",
    "watch_moe",
]

_HOMES = {
    "Drop": ("traceflow.analyzers.changes", "Drop"),
    "Scale": ("traceflow.analyzers.changes", "Scale"),
    "Run": ("traceflow.run", "Run"),
    "Trace": ("traceflow.trace.model", "Trace"),
    "TraceflowError": ("traceflow.errors", "TraceflowError"),
    "check": ("traceflow.asking", "check"),
    "diff": ("traceflow.asking", "diff"),
    "instrument": ("traceflow.instrumenting", "instrument"),
    "load_ipython_extension": ("traceflow.magic", "load_ipython_extension"),  # for %load_ext traceflow
    "moe": ("traceflow.routed", "moe"),
    "open": ("traceflow.run", "open_run"),
    "record": ("traceflow.recording", "record"),
    "watch_moe": ("traceflow.moe_hooks", "watch_moe"),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("traceflow-ml")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
