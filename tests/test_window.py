"""Windows that an annotation of the program names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kineto_builder import COMPUTE, KinetoTrace, opened

from traceflow.analyzers.changes import Scale
from traceflow.cli import main
from traceflow.errors import TraceflowError


def card(rank: int = 0, delay: int = 0) -> KinetoTrace:
    """Two annotated passes whose kernels end after the annotation, 70 us each, and `delay` more in the second."""
    trace = KinetoTrace(rank=rank, world_size=2)
    for i, at in enumerate((0, 200_000)):
        trace.host("forward", at, at + 10_000, category="user_annotation")
        trace.kernel(f"gemm {i}", at + 5_000, at + 75_000 + i * delay, call=(at + 1_000, at + 2_000))
        trace.all_reduce(
            at + 75_000 + i * delay, at + 100_000, call=(at + 3_000, at + 4_000), sequence=i, stream=COMPUTE
        )
        trace.host("optimizer#1", at + 110_000, at + 111_000, category="user_annotation")
    return trace


def test_a_name_means_its_first_occurrence_and_what_is_launched_within(tmp_path: Path) -> None:
    run = opened(tmp_path, card(0), card(1))
    for name in ("forward", "forward#0"):
        window = run.critical_path(window=name).window
        assert (window.start_ns, window.end_ns) == (0, 100_000)


def test_occurrences_are_counted_on_each_rank(tmp_path: Path) -> None:
    run = opened(tmp_path, card(0), card(1, delay=15_000))
    path = run.critical_path(window="forward#1")
    assert (path.window.start_ns, path.window.end_ns) == (200_000, 300_000)
    assert "gemm 1" in path.segments.name.tolist()
    assert "gemm 0" not in path.segments.name.tolist()
    (collective,) = run.communication(window="forward#1").collectives
    assert [call.wait_ns for call in collective.calls] == [15_000, 0]
    (first, *_) = run.stragglers(window="forward#1").ranking
    assert (first.rank, first.name) == (1, "gemm 1")
    assert run.what_if(Scale("gemm 1", 0), window="forward#1").saved_ns > 0
    assert run.what_if(Scale("gemm 1", 0), window="forward").saved_ns == 0
    assert run.savings(window="forward#1").window.start_ns == 200_000


def test_a_name_may_itself_end_in_a_number(tmp_path: Path) -> None:
    run = opened(tmp_path, card(0), card(1))
    with pytest.raises(TraceflowError, match="TF111"):
        run.critical_path(window="optimizer#1#2")
    assert run.critical_path(window="optimizer#1").window.start_ns == 110_000
    assert run.critical_path(window="optimizer#1#1").window.start_ns == 310_000


@pytest.mark.parametrize("name", ["backward", "backward#0", "forward#2", "gemm 0", "#1", ""])
def test_what_no_annotation_names_is_refused(tmp_path: Path, name: str) -> None:
    run = opened(tmp_path, card(0), card(1))
    with pytest.raises(TraceflowError, match="TF111"):
        run.communication(window=name)


def test_a_step_and_a_window_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceflowError, match="TF112"):
        opened(tmp_path, card(0), card(1)).critical_path(step=0, window="forward")


@pytest.mark.parametrize(
    "verb",
    [("show", "critical-path"), ("show", "communication"), ("show", "stragglers"), ("show", "savings"), ("what-if",)],
)
def test_the_command_line_takes_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    opened(tmp_path, card(0), card(1))
    assert main([*verb, str(tmp_path), "--window", "forward#1", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["request"]["window"] == "forward#1"
    window = document["result"].get("window")
    assert window is None or window == {"start_ns": 200_000, "end_ns": 300_000}
    assert main([*verb, str(tmp_path), "--window", "forward#1"]) == 0
    assert "window forward#1," in capsys.readouterr().out
