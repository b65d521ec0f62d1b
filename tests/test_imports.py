"""What importing traceflow loads, and under which names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT
from test_cli import kineto

import traceflow
from traceflow.errors import TraceflowError
from traceflow.trace.model import Trace

HEAVY = {"dask", "jax", "numba", "pandas", "plotly", "pyarrow", "torch"}


# What no trace of PyTorch needs that came without programs and without a record of routing.
OF_OTHERS = {
    "google",
    "traceflow.analyzers.program_memory",
    "traceflow.analyzers.rings.executed",
    "traceflow.analyzers.sharding.audit",
    "traceflow.capture",
    "traceflow.intent.plan",
    "traceflow.program.hlo_module_text",
    "traceflow.program.hlo_proto",
    "traceflow.program.stated",
    "traceflow.trace._gloo",
    "traceflow.trace._xla_trace",
    "traceflow.trace.chrome",
    "traceflow.trace.nsight",
    "traceflow.trace.operations",
    "traceflow.trace.torch_memory",
}
# What only runs with compiled programs or experts need.
OF_OTHER_RUNS = {"traceflow.analyzers.moe", "traceflow.intent", "traceflow.program.cost", "traceflow.program.frames"}
OF_OTHER_QUESTIONS = OF_OTHER_RUNS | {"traceflow.analyzers.attribution"}  # than where the critical path is
OF_OTHER_VERBS = {f"traceflow.cli.{verb}" for verb in ("check", "demo", "diff", "export", "plan", "query", "report")}
CLI = "from traceflow.cli import main; main(['show', {!r}, 'rank0.json'])"


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


@pytest.mark.parametrize(
    ("script", "needless"),
    [
        ("traceflow.open('rank0.json').critical_path(step=1)", OF_OTHERS | OF_OTHER_QUESTIONS | {"msgspec"}),
        ("traceflow.open('rank0.json').communication(step=1)", OF_OTHERS | OF_OTHER_RUNS | {"msgspec"}),
        (CLI.format("critical-path"), OF_OTHERS | OF_OTHER_QUESTIONS | OF_OTHER_VERBS | {"traceflow.report.grid"}),
        (CLI.format("all"), OF_OTHERS | OF_OTHER_VERBS | {"traceflow.analyzers.moe.balance", "traceflow.codes"}),
    ],
    ids=["critical path", "communication", "show critical-path", "show all"],
)
def test_a_trace_loads_what_it_needs(script: str, needless: set[str], tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(kineto(steps=2)))
    loaded = modules_after(f"import traceflow; {script}", tmp_path)
    assert "traceflow.trace._kineto_rows" in loaded
    assert loaded & needless == set()


def test_what_manages_processes_is_loaded_with_their_first_task(tmp_path: Path) -> None:
    loaded = modules_after("from traceflow.executors import Processes\nwith Processes(): pass", tmp_path)
    assert "traceflow.executors" in loaded
    assert "multiprocessing" not in loaded


def test_help_needs_no_numbers(tmp_path: Path) -> None:
    loaded = modules_after("from traceflow.cli import main; main(['show', '--help'])", tmp_path)
    assert loaded & {"numpy", "rich", "traceflow.cli.demo"} == set()


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
