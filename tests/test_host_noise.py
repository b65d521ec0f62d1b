"""What the host does that is no work of the program: by hand-made traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_builder import KinetoTrace, opened
from sources import ROOT

import traceflow as tf
from traceflow.trace.model import Trace

CORPUS = ROOT.parent / "shared" / "corpus"


def names(trace: Trace) -> set[str]:
    return {trace.strings[code] for code in trace.events.name.tolist()}


def monitored(look_ns: int) -> KinetoTrace:
    """A main thread that works for 1 ms, and a monitor that sleeps twice as long and looks once in between."""
    rank = KinetoTrace(rank=0)
    rank.host("aten::mm", 0, 1_000_000, thread=1)
    rank.host("tqdm/_monitor.py(60): run", 0, 2_000_000, thread=2)
    rank.host("threading.py(359): wait", 0, 900_000, thread=2, category="python_function")
    rank.host("threading.py(359): wait", 900_000 + look_ns, 2_000_000, thread=2, category="python_function")
    return rank


def test_a_monitor_that_sleeps_ends_no_window(tmp_path: Path) -> None:
    run = opened(tmp_path, monitored(look_ns=1_000))
    assert names(run.trace) == {"aten::mm"}
    assert run.trace.tally.dropped["on a thread that only waits"] == 3
    assert run.critical_path().makespan_ns == 1_000_000


def test_a_thread_that_works_for_more_than_a_hundredth_stays(tmp_path: Path) -> None:
    run = opened(tmp_path, monitored(look_ns=30_000))
    assert "tqdm/_monitor.py(60): run" in names(run.trace)
    assert run.critical_path().makespan_ns == 2_000_000


def test_starting_and_stopping_the_profiler_is_no_work(tmp_path: Path) -> None:
    rank = KinetoTrace(rank=0)
    rank.host("torch/profiler/profiler.py(800): __enter__", 0, 50_000, thread=1)
    rank.host("builtin of the profiler", 10_000, 20_000, thread=1)
    rank.host("aten::mm", 60_000, 160_000, thread=1)
    rank.host("torch/profiler/profiler.py(810): __exit__", 170_000, 900_000, thread=1)
    run = opened(tmp_path, rank)
    assert names(run.trace) == {"aten::mm"}
    assert run.trace.tally.dropped["the profiler's own"] == 3


def test_a_trace_in_which_nothing_else_happens_is_kept(tmp_path: Path) -> None:
    rank = KinetoTrace(rank=0)
    rank.host("threading.py(359): wait", 0, 1_000, thread=1, category="python_function")
    assert names(opened(tmp_path, rank).trace) == {"threading.py(359): wait"}


@pytest.mark.parametrize("name", ["h100_bert_small", "h100_qwen_0.5b"])
def test_no_recorded_path_lies_in_a_monitor(name: str) -> None:
    path = CORPUS / "kineto" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the shared corpus is not there")
    segments = tf.open(path).critical_path().segments
    assert not any("_monitor.py" in text or "threading.py" in text for text in segments.name)
