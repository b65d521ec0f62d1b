"""Streams that look like communication are told, and nothing else is; users can name what communicates."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kineto_builder import COMPUTE, KinetoTrace, opened
from sources import ROOT

import traceflow
from traceflow.cli import main
from traceflow.result import Finding
from traceflow.run import Run
from traceflow.trace.communication_names import Hint, hint, recognise

SIDE = 33  # a stream beside the one that computes
CORPUS = ROOT.parent / "shared" / "corpus"


def suspicions(run: Run, step: int | None = None) -> list[Finding]:
    return [finding for finding in run.communication(step=step).findings if finding.code == "TF210"]


def beside(*names: str, stream: int = SIDE, operator: str | None = None) -> KinetoTrace:
    """A matmul of 100 us, and beside it kernels of 10 us each, launched inside an operator."""
    card = KinetoTrace()
    card.kernel("matmul", 9_000, 109_000, call=(2_000, 5_000))
    for i, name in enumerate(names):
        at = 10_000 + 10_000 * i
        if operator is not None:
            card.host(operator, at - 4_000, at - 1_000)
        card.kernel(name, at, at + 10_000, stream=stream, call=(at - 3_000, at - 2_000))
    return card


@pytest.mark.parametrize("name", ["my::put_rows", "void fast_a2a<half>(half*)", "MoeDispatch_kernel", "ring_send_recv"])
def test_words_for_moving_data_count_on_a_stream_beside(tmp_path: Path, name: str) -> None:
    (finding,) = suspicions(opened(tmp_path, beside(name, name)))
    assert finding.evidence == {
        "rank": 0,
        "device": 0,
        "lane": str(SIDE),
        "names": [name],
        "kernels": 2,
        "duration_ns": 20_000,
    }


def test_words_for_moving_data_say_nothing_on_the_stream_that_computes(tmp_path: Path) -> None:
    assert not suspicions(opened(tmp_path, beside("my::put_rows", stream=COMPUTE)))


def test_words_for_moving_data_say_nothing_where_other_kernels_fill_the_stream(tmp_path: Path) -> None:
    assert not suspicions(opened(tmp_path, beside("softmax", "my::put_rows", "softmax")))


def test_a_stream_that_also_communicates_is_known(tmp_path: Path) -> None:
    assert not suspicions(opened(tmp_path, beside("ncclDevKernel_AllGather_RING_LL(x)", "get_layout")))


@pytest.mark.parametrize("stream", [COMPUTE, SIDE])
def test_the_name_of_a_collective_counts_anywhere(tmp_path: Path, stream: int) -> None:
    (finding,) = suspicions(opened(tmp_path, beside("softmax", "softmax", "my_all_reduce<8>", stream=stream)))
    assert finding.evidence["names"] == ["my_all_reduce<8>"]


@pytest.mark.parametrize("operator", ["record_param_comms", "c10d::allgather_", "nccl:all_gather"])
def test_an_operator_with_a_process_group_counts(tmp_path: Path, operator: str) -> None:
    (finding,) = suspicions(opened(tmp_path, beside("k1", "k2", operator=operator)))
    assert "operators with a process group launched them" in finding.title


def test_other_operators_do_not(tmp_path: Path) -> None:
    assert not suspicions(opened(tmp_path, beside("k1", "k2", operator="aten::add")))


def test_only_the_window_is_looked_at(tmp_path: Path) -> None:
    card = beside("my::put_rows")
    card.step(1, 0, 120_000)
    card.step(2, 200_000, 300_000)
    card.kernel("matmul", 210_000, 290_000, call=(201_000, 202_000))
    run = opened(tmp_path, card)
    assert len(suspicions(run, step=1)) == 1
    assert not suspicions(run, step=2)


FILES = sorted({*CORPUS.glob("kineto/*"), *CORPUS.glob("xplane/*")} - {*CORPUS.glob("xplane/corrupt*")})


@pytest.mark.skipif(not FILES, reason="the shared corpus is not there")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_real_trace_is_suspected(path: Path) -> None:
    assert not suspicions(traceflow.open(path))


def test_a_real_trace_is_suspected_when_its_library_is_unknown(tmp_path: Path, corpus: Callable[[str], Path]) -> None:
    text = gzip.decompress(corpus("kineto/v100_ddp_rank1of2.json.gz").read_bytes()).decode()
    unknown = text.replace("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "xfer_kernel")
    (tmp_path / "rank1.json").write_text(unknown)
    (finding,) = suspicions(traceflow.open(tmp_path / "rank1.json"))
    assert (finding.evidence["lane"], finding.evidence["kernels"]) == ("14", 2020)


# ---- what users add ----


def test_patterns_of_the_user_make_kernels_communication(tmp_path: Path) -> None:
    card = beside("xfer_all_gather", "xfer_all_gather")
    card.write(tmp_path / "rank0.json")
    run = traceflow.open(tmp_path / "rank0.json", communication=["^xfer_"])
    assert not suspicions(run)
    (participant,) = run.communication().participants
    assert (participant.compute_ns, participant.busy_ns) == (100_000, 20_000)
    assert [call.name for call in run.communication().unmatched] == ["xfer_all_gather"] * 2


def test_what_the_user_names_is_matched_by_its_process_group(tmp_path: Path) -> None:
    for rank in range(2):
        group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 7}
        arguments = {"Collective name": "", "dtype": "Float", "In msg nelems": 8, **group}
        card = KinetoTrace(rank=rank, world_size=2)
        card.kernel("gemm", 0, 5_000 + 3_000 * rank, call=(0, 100))
        card.kernel("xfer_all_gather", 5_000 + 3_000 * rank, 9_000, stream=SIDE, call=(100, 200), arguments=arguments)
        card.write(tmp_path / f"rank{rank}.json")
    (found,) = traceflow.open(tmp_path, communication=["xfer"]).communication().collectives
    assert found.op == "allgather"
    assert [(call.wait_ns, call.transfer_ns) for call in found.calls] == [(3_000, 1_000), (0, 1_000)]


def test_the_command_line_and_the_project_name_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = beside("one_put", "two_put").write(tmp_path / "rank0.json")

    def busy_ns(*options: str) -> int:
        assert main(["show", "communication", str(path), "--format", "json", *options]) == 0
        (participant,) = json.loads(capsys.readouterr().out)["result"]["per_participant"]
        return int(participant["busy_ns"])

    monkeypatch.chdir(tmp_path)
    assert busy_ns() == 0
    assert busy_ns("--communication", "^one") == 10_000
    (tmp_path / "pyproject.toml").write_text('[tool.traceflow]\ncommunication = ["^two"]\n')
    assert busy_ns() == 10_000
    assert busy_ns("--communication", "^one") == 20_000


@pytest.mark.parametrize(
    "content", ["[tool.traceflow]\ncommunication = 'put'", "[tool", "[tool.traceflow]\ncommunication = ['(']"]
)
def test_settings_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = beside("one_put").write(tmp_path / "rank0.json")
    (tmp_path / "pyproject.toml").write_text(content)
    monkeypatch.chdir(tmp_path)
    assert main(["show", "communication", str(path)]) == 1
    assert "TF112" in capsys.readouterr().err


def test_settings_of_others_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = beside("one_put").write(tmp_path / "rank0.json")
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 9\n")
    monkeypatch.chdir(tmp_path)
    assert main(["show", "summary", str(path)]) == 0


def test_the_table_comes_before_the_user() -> None:
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
    assert recognise(name, ("nccl",)) == ("nccl", "allreduce")
    assert recognise("my_kernel", ("kernel$",)) == ("user", "unknown")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZN4fast10all2all_xyEv", Hint.COLLECTIVE),
        ("void (anonymous namespace)::reduceScatter<float>(int)", Hint.COLLECTIVE),
        ("PutSignal", Hint.TRANSFER),
        ("void x::y<all_reduce>(put*)", None),  # arguments are not the function's own name
        ("compute_offsets", None),
        ("target_budget_commit", None),
        ("void cub::DispatchReduceByKey<int>()", None),
        ("triton_poi_fused_add_all_reduce_4", None),
        ("loop_reduce_scatter_fusion", None),
        ("softmax", None),
    ],
)
def test_hints(name: str, expected: Hint | None) -> None:
    assert hint(name) is expected
