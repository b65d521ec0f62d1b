"""Laws that hold on every real trace: paths tile, replay reproduces, shares add up."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import traceflow
from traceflow.run import Run

TRACES = (
    "kineto/a100_alexnet.json.gz",
    "kineto/a100_event_sync.json.gz",
    "kineto/a100_event_sync_multi_stream.json.gz",
    "kineto/h100_bert_small.json.gz",
    "kineto/mi300_resnet_rank0of8.json.gz",
    "kineto/v100_ddp_rank1of2.json.gz",
    "xplane/mi300_conv.xplane.pb",
    "xplane/mi300_gemm.xplane.pb",
    "xplane/tpu_2chips_a.trace.json.gz",
    "kineto/a100_nccl_rank0of2.json.gz",
    "kineto/a100_pipeline_rank3of8.json.gz",
    "kineto/a100_simple_add.json.gz",
    "kineto/a100_triton.json.gz",
    "kineto/cpu_only_rank34.json.gz",
    "kineto/h100_qwen_0.5b.json.gz",
    "kineto/mi250_minitoy.json.gz",
    "kineto/mi300_sglang_decode_graph.json.gz",
    "kineto/mi300_torch_compile.json.gz",
    "kineto/mtia_inference.json.gz",
    "kineto/rank_not_found.json.gz",
    "kineto/sampled_rank0of128.json.gz",
    "kineto/sampled_rank1of128.json.gz",
    "kineto/v100_ns_resolution.json.gz",
    "kineto/vllm_piecewise_graph.json.gz",
    "xplane/mi300_conv_legacy.xplane.pb",
    "xplane/tpu_2chips_b.trace.json.gz",
)


@cache
def _opened(path: Path) -> Run:
    return traceflow.open(path)


@pytest.fixture(params=TRACES)
def run(request: pytest.FixtureRequest, corpus: Callable[[str], Path]) -> Run:
    return _opened(corpus(request.param))


def test_the_path_tiles_its_window(run: Run) -> None:
    path = run.critical_path()
    segments = path.segments
    bounds = np.append(segments.start_ns, path.window.end_ns)
    assert segments.start_ns[0] == path.window.start_ns
    assert (bounds[:-1] + segments.duration_ns == bounds[1:]).all()
    assert (segments.duration_ns > 0).all()
    assert sum(path.by_kind_ns.values()) == path.makespan_ns
    assert sum(path.by_rank_ns.values()) == path.makespan_ns


def test_replay_of_nothing_changed_is_the_measurement(run: Run) -> None:
    graph = run.graph()
    assert (graph.replay() == graph.time_ns).all()
    assert (graph.lag_ns >= 0).all()
    assert run.what_if().predicted_ns == run.critical_path().makespan_ns
    assert run.what_if().exact


def test_slack_is_never_negative_and_none_on_the_path(run: Run) -> None:
    graph = run.graph()
    slack_ns = graph.latest_ns() - graph.time_ns
    assert (slack_ns >= 0).all()
    assert (slack_ns[graph.path()] == 0).all()


def test_what_a_participant_did_adds_up(run: Run) -> None:
    answer = run.communication()
    window_ns = answer.window.duration_ns
    for one in answer.participants:
        assert 0 <= one.exposed_ns <= one.busy_ns <= window_ns
        assert 0 <= one.compute_ns <= window_ns
        assert one.busy_ns - one.exposed_ns <= one.compute_ns
        if one.idle_ns is not None and one.copy_ns is not None:
            assert one.idle_ns >= 0
            assert one.compute_ns + one.exposed_ns + one.idle_ns <= window_ns
            assert window_ns <= one.compute_ns + one.exposed_ns + one.copy_ns + one.idle_ns


def test_every_step_tiles_and_replays(run: Run) -> None:
    marks, start_ns = run.trace.marks, run.trace.events.start_ns
    for step, first, last in list(zip(marks.step.tolist(), marks.start_ns, marks.end_ns, strict=True))[:3]:
        if ((start_ns >= first) & (start_ns < last)).any():
            path, graph = run.critical_path(step=step), run.graph(step=step)
            assert path.segments.duration_ns.sum() == path.makespan_ns
            assert (graph.replay() == graph.time_ns).all()


def test_synchronous_all_reduces_of_a_tpu_are_communication(corpus: Callable[[str], Path]) -> None:
    """129 on each of two chips, matched with one another: 3.43 ms of the 67.2 ms that the first was busy."""
    path = corpus("xplane/tpu_2chips_a.trace.json.gz")
    answer = _opened(path).communication()
    reductions = [found for found in answer.collectives if "all-reduce" in found.name]
    assert len(reductions) == 129
    assert all(len({call.participant for call in found.calls}) == 2 for found in reductions)
    assert answer.unmatched == ()
    for chip, one in enumerate(answer.participants):
        calls = [call for found in reductions for call in found.calls if call.participant == (0, chip)]
        lasted_ns = sum(call.wait_ns + call.transfer_ns for call in calls)
        assert lasted_ns == pytest.approx(1_000 * _all_reduce_us(path, f"/device:TPU:{chip}"), abs=129)
        assert sum(call.exposed_ns for call in calls) == lasted_ns, "nothing runs beside a synchronous operation"
        assert one.copy_ns is not None
        assert round((one.compute_ns + one.copy_ns + one.busy_ns) / 1e6, 1) == 67.2


def _all_reduce_us(path: Path, device: str) -> float:
    """Duration of all all-reduces on a device's operation line, straight from the file."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    lanes = {(e["pid"], e.get("tid"), e["name"]): e["args"].get("name") for e in events if e.get("ph") == "M"}
    return sum(
        float(e["dur"])
        for e in events
        if e.get("ph") == "X"
        and e["name"].startswith("all-reduce")
        and lanes[e["pid"], None, "process_name"] == device
        and lanes[e["pid"], e["tid"], "thread_name"] == "XLA Ops"
    )
