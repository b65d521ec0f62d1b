"""What importing traceflow loads, and under which names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

import traceflow
from traceflow.errors import TraceflowError
from traceflow.trace.model import Trace

HEAVY = {"dask", "jax", "numba", "pandas", "plotly", "pyarrow", "torch"}


def modules_after(script: str, folder: Path) -> set[str]:
    """The modules that a fresh interpreter, started in `folder`, has loaded after `script`."""
    # A process of its own: this one has long loaded everything. The script may print and may exit.
    report = f"import atexit, sys\natexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr))\n{script}"
    command = [sys.executable, "-W", "error", "-c", report]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "script",
    [
        "import traceflow",
        "import traceflow; traceflow.record; traceflow.Trace; traceflow.TraceflowError; traceflow.__version__",
        "import sys; sys.argv = ['traceflow', '--help']; from traceflow.cli import main; main()",
    ],
    ids=["import", "names", "help"],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(script: str, tmp_path: Path) -> None:
    loaded = modules_after(script, tmp_path)
    assert "traceflow" in loaded
    assert loaded & HEAVY == set()


def test_no_module_is_loaded_under_a_top_level_name() -> None:
    script = (
        "import importlib, pkgutil, traceflow\n"
        "for module in pkgutil.walk_packages(traceflow.__path__, 'traceflow.'):\n"
        "    if not module.name.endswith('.__main__'): importlib.import_module(module.name)\n"
    )
    loaded = modules_after(script, ROOT)
    assert {"traceflow.analyzers", "traceflow.collectors"} <= loaded
    assert {name for name in loaded if name.partition(".")[0] in {"analyzers", "collectors"}} == set()


def test_the_public_names_are_there() -> None:
    assert {"Run", "Trace", "TraceflowError", "open", "record"} <= set(traceflow.__all__)
    assert set(traceflow.__all__) <= set(dir(traceflow))
    assert traceflow.Trace is Trace
    assert traceflow.TraceflowError is TraceflowError
    assert all(callable(getattr(traceflow, name)) for name in ("open", "record", "Run"))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        traceflow.analyse  # noqa: B018  # looking it up is the test
