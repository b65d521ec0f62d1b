"""Ranges of nsys-jax as input: small tables that tell a situation, and a real job of four processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import traceflow
from traceflow.errors import TraceflowError
from traceflow.run import Run
from traceflow.trace.model import ABSENT, Kind, Trace

FSDP = "hlo/fsdp4_a100"
STEP = "pjit__wrapped_step_fn#2"

Range = tuple[str | None, int, int, int, int]  # name, start and end on the device, number, number of the parent
NO_PARENT = 0

MODULE = "TSL:XlaModule:#prefix=jit(f)/jit(main),hlo_module=jit_f,program_id=8#"
RUN: tuple[Range, ...] = (
    (MODULE, 1_000, 9_000, 1, NO_PARENT),
    ("TSL:Thunk:#name=jit(f)/mul[x=(0,)],hlo_op=fusion.1#", 1_000, 3_000, 2, 1),
    ("TSL:Thunk:#hlo_op=all-reduce-start#", 3_000, 8_000, 3, 1),
    ("NCCL:ncclGroupEnd", 3_000, 8_000, 4, 3),
    ("TSL:Thunk:#hlo_op=fusion.2#", 8_500, 9_000, 5, 1),
)


def table(ranges: Sequence[Range], **more: Sequence[Any]) -> pa.Table:
    """What the older recipe writes; the host launches each range 500 ns before it is on the device."""
    names, starts, ends, numbers, parents = zip(*ranges, strict=True)
    columns: dict[str, Sequence[Any]] = {
        "Name": names,
        "Projected Start": starts,
        "Projected Duration": [end - start for start, end in zip(starts, ends, strict=True)],
        "Orig Start": [float(start - 500) for start in starts],
        "Orig Duration": [400.0] * len(names),
        "Style": ["PushPop"] * len(names),
        "PID": [4000] * len(names),
        "TID": [4000] * len(names),
        "NumGPUOps": [1] * len(names),
        "RangeId": list(map(float, numbers)),
        "ParentId": [float(parent) if parent else None for parent in parents],
        "Rank": [0] * len(names),
    }
    return pa.table({**columns, **more})


def write(folder: Path, ranges: pa.Table, *devices: str, threads: Mapping[int, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(ranges, folder / "trace.parquet")
    if devices:
        names = {
            "('TARGET_INFO_NVTX_CUDA_DEVICE', 'name')": devices,
            "('TARGET_INFO_GPU', 'name')": ["A100"] * len(devices),
        }
        pq.write_table(pa.table(names), folder / "device-metadata.parquet")
    if threads:
        pq.write_table(pa.table({"PID": [4000] * len(threads), "TID": list(threads), "Name": list(threads.values())}), folder / "thread-metadata.parquet")  # fmt: skip
    return folder / "trace.parquet"


def device(number: int) -> str:
    return f"Xla:#global={number},local=0,process={number},slice=0#"


def on_device(trace: Trace) -> list[tuple[int, int, str, Kind, int, int]]:
    """Rank, device, name, kind, start and end of what devices did."""
    e, lanes = trace.events, trace.lanes
    rows = np.flatnonzero(lanes.device[e.lane] != ABSENT)
    rows = rows[np.argsort(e.start_ns[rows], kind="stable")]
    return [
        (int(lanes.rank[e.lane[i]]), int(lanes.device[e.lane[i]]), trace.strings[e.name[i]], Kind(e.kind[i]), int(e.start_ns[i]), int(e.end_ns[i]))
        for i in rows.tolist()
    ]  # fmt: skip


def refusal(path: Path) -> TraceflowError:
    with pytest.raises(TraceflowError) as refused:
        traceflow.open(path)
    return refused.value


# ---- what a table becomes ----


def test_ranges_of_instructions_are_work_of_the_device_and_calls_of_the_host(tmp_path: Path) -> None:
    trace = traceflow.open(write(tmp_path, table(RUN), device(3))).trace
    assert on_device(trace) == [
        (3, 3, "fusion.1", Kind.COMPUTE, 500, 2_500),
        (3, 3, "all-reduce-start", Kind.COMMUNICATION, 2_500, 7_500),
        (3, 3, "fusion.2", Kind.COMPUTE, 8_000, 8_500),
    ]
    host = trace.lanes.device[trace.events.lane] == ABSENT
    assert sorted(trace.strings[code] for code in trace.events.name[host & (trace.events.kind == Kind.CALL)]) == [
        "all-reduce-start",
        "fusion.1",
        "fusion.2",
    ]
    assert "jit_f" in [trace.strings[code] for code in trace.events.name[host & (trace.events.kind == Kind.HOST)]]
    assert trace.lanes.name == ("4000", "Stream #0 (computation)", "Stream #1 (communication)")
    assert trace.metadata["device"] == "A100"
    assert [note.code for note in trace.tally.notes] == ["TF318"]


def test_every_row_is_kept_or_counted(tmp_path: Path) -> None:
    ranges = (*RUN, (None, 0, 90_000, 9, NO_PARENT), ("TSL:Thunk:#hlo_op=f#", 5_000, 4_000, 10, 1))
    tally = traceflow.open(write(tmp_path, table(ranges), device(0))).trace.tally
    assert tally.dropped == {
        "work in no range": 1,
        "without a valid time": 1,
        "projection of a range other than an instruction's": 2,
    }
    assert tally.read == tally.kept + sum(tally.dropped.values())


def test_the_later_recipe_reads_the_same(tmp_path: Path) -> None:
    names, starts, ends, numbers, parents = zip(*RUN, strict=True)
    later = pa.table(
        {
            "Text": [name.removeprefix("TSL:") for name in names if name],
            "Start": starts,
            "End": ends,
            "Children Count": [0] * len(names),
            "Range ID": numbers,
            "Parent ID": [parent or None for parent in parents],
            "PID": [4000] * len(names),
            "Range Stack": [[]] * len(names),
            "Stack Level": [0] * len(names),
            "TID": [4000] * len(names),
        }
    )
    trace = traceflow.open(write(tmp_path / "later", later, device(0))).trace
    earlier = traceflow.open(write(tmp_path / "earlier", table(RUN), device(0))).trace
    assert [row[2:4] for row in on_device(trace)] == [row[2:4] for row in on_device(earlier)]
    assert len(trace.events) == 3


def test_an_instruction_within_another_is_what_ran(tmp_path: Path) -> None:
    inner = ("TSL:Thunk:#hlo_op=fusion.7#", 8_600, 8_900, 6, 5)
    trace = traceflow.open(write(tmp_path, table((*RUN, inner)), device(0))).trace
    assert [name for _, _, name, *_ in on_device(trace)] == ["fusion.1", "all-reduce-start", "fusion.7"]


def test_trials_of_the_autotuner_execute_no_program(tmp_path: Path) -> None:
    trial: tuple[Range, ...] = (
        ("TSL:XlaAutotunerMeasurement:#hlo_op=fusion.1#", 10_000, 20_000, 10, NO_PARENT),
        ("TSL:XlaModule:#hlo_module=trial,program_id=8#", 10_000, 20_000, 11, 10),
        ("TSL:Thunk:#hlo_op=fusion.1#", 10_000, 20_000, 12, 11),
    )
    trace = traceflow.open(write(tmp_path, table((*RUN, *trial)), device(0))).trace
    assert len(on_device(trace)) == 4
    assert len(trace.hlo.event) == 3


def test_a_step_annotation_is_a_mark(tmp_path: Path) -> None:
    around = [(name, start, end, number + 1, parent + 1) for name, start, end, number, parent in RUN]
    ranges = (("TSL:train#step_num=7,_r=1#", 1_000, 9_000, 1, NO_PARENT), *around)
    assert traceflow.open(write(tmp_path, table(ranges), device(0))).trace.marks.step.tolist() == [7]


# ---- several processes and devices ----


def moved(ranges: Sequence[Range], by_ns: int, first: int = 0) -> list[Range]:
    return [
        (name, start + by_ns, end + by_ns, number + first, parent + first if parent else NO_PARENT)
        for name, start, end, number, parent in ranges
    ]


def test_the_same_run_of_a_program_on_each_rank_is_one_collective(tmp_path: Path) -> None:
    for rank in range(2):
        twice = [*moved(RUN, rank * 1_000_000), *moved(RUN, rank * 1_000_000 + 50_000, first=100)]
        write(tmp_path / f"proc{rank}", table(twice), device(rank))
    trace = traceflow.open(tmp_path).trace
    keys, times = np.unique(trace.communications.key, return_counts=True)
    assert (len(keys), times.tolist()) == (2, [2, 2])
    assert [(rank.rank, rank.clock) for rank in trace.ranks] == [(0, 0), (1, 1)]


def test_threads_tell_the_devices_of_one_process(tmp_path: Path) -> None:
    both = [*RUN, *moved(RUN, 100, first=100)]
    threads = [4001] * len(RUN) + [4002] * len(RUN)
    named = {
        4001: "XlaLauncher:#global=4,local=0,process=1,slice=0#",
        4002: "XlaLauncher:#global=5,local=1,process=1,slice=0#",
    }
    trace = traceflow.open(write(tmp_path, table(both, TID=threads), threads=named)).trace
    assert sorted({row[:2] for row in on_device(trace)}) == [(1, 4), (1, 5)]
    assert np.unique(trace.communications.key).size == 1


def test_devices_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    threads = [4001, 4001, 4002, 4002, 4002]
    file = write(tmp_path, table(RUN, TID=threads), device(0), device(1))
    assert (refusal(file).code, "2 devices" in refusal(file).why) == ("TF107", True)


def test_without_metadata_the_rank_is_that_of_the_folder_and_a_note_says_so(tmp_path: Path) -> None:
    trace = traceflow.open(write(tmp_path / "rank3", table(RUN))).trace
    assert {row[:2] for row in on_device(trace)} == {(3, 3)}
    assert "taken to be" in trace.tally.notes[0].text


# ---- hostile ----


def test_parents_in_a_circle_are_no_parents(tmp_path: Path) -> None:
    circle: tuple[Range, ...] = (
        ("TSL:Thunk:#hlo_op=a#", 10_000, 11_000, 20, 21),
        ("TSL:Thunk:#hlo_op=b#", 11_000, 12_000, 21, 20),
        ("TSL:Thunk:#hlo_op=c#", 12_000, 13_000, 22, 22),
    )
    trace = traceflow.open(write(tmp_path, table((*RUN, *circle)), device(0))).trace
    assert {"b", "c"} < {name for _, _, name, *_ in on_device(trace)}


@pytest.mark.parametrize("column", ["Projected Start", "Projected Duration", "Orig Start", "Orig Duration", "RangeId", "ParentId", "TID", "NumGPUOps"])  # fmt: skip
@pytest.mark.parametrize("value", [-1, 2**63 - 1, -(2**63), float("inf"), float("nan"), None])
def test_no_number_breaks_the_rest(tmp_path: Path, column: str, value: float | None) -> None:
    ranges = (("TSL:Thunk:#hlo_op=odd#", 20_000, 21_000, 50, 1), *RUN)
    whole = table(ranges)
    kept = whole.column(column).to_pylist()[1:]
    kind = pa.float64() if isinstance(value, float) else pa.int64()
    numbers = pa.array([value, *kept], kind)
    trace = traceflow.open(
        write(tmp_path, whole.set_column(whole.column_names.index(column), column, numbers), device(0))
    ).trace
    assert {"fusion.1", "fusion.2", "all-reduce-start"} <= {name for _, _, name, *_ in on_device(trace)}
    assert trace.tally.read == trace.tally.kept + sum(trace.tally.dropped.values())


def test_a_column_of_words_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, table(RUN).set_column(1, "Projected Start", pa.array(["soon"] * len(RUN))), device(0))
    assert refusal(file).code == "TF107"


def test_a_table_that_was_cut_short_does_not_vanish_from_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "proc0", table(RUN), device(0))
    other = write(tmp_path / "proc1", table(RUN), device(1))
    other.write_bytes(other.read_bytes()[:-100])
    assert refusal(tmp_path).code == "TF103"


def test_a_table_without_rows_holds_nothing(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, table(RUN).slice(0, 0), device(0))).code == "TF104"


def test_an_operation_table_stays_one(tmp_path: Path) -> None:
    columns = {"rank": [0], "step": [0], "optype": ["forward-compute"], "start_ns": [0], "duration_ns": [5]}
    pq.write_table(pa.table(columns), tmp_path / "job.parquet")
    assert traceflow.open(tmp_path / "job.parquet").trace.format == "operations"


# ---- a real job: four processes of one device each ----


@cache
def opened(folder: Path) -> Run:
    return traceflow.open(folder)


@pytest.fixture
def job(corpus: Callable[[str], Path]) -> Run:
    return opened(corpus(FSDP))


def ranges_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"proc{rank}" / "trace.parquet").to_pylist()
    return rows


def test_each_process_is_a_rank_with_one_device(job: Run) -> None:
    lanes = job.trace.lanes
    on_device = lanes.device != ABSENT
    pairs = zip(lanes.rank[on_device].tolist(), lanes.device[on_device].tolist(), strict=True)
    assert sorted(set(pairs)) == [(rank, rank) for rank in range(4)]
    assert len({rank.clock for rank in job.evidence.trace.ranks}) == 4


def test_every_instruction_of_a_program_is_joined_to_it(job: Run) -> None:
    assert len(job.trace.hlo.event) == 13_519 + 3 * 13_516
    assert (job.trace.hlo.instruction >= 0).all()
    assert {job.programs[int(key)].name for key in np.unique(job.trace.hlo.program)} >= {
        "pjit__wrapped_step_fn",
        "jit__psum",
    }


def test_time_in_collectives_is_what_the_tables_say(job: Run, corpus: Callable[[str], Path]) -> None:
    trace, words = job.trace, ("all-gather", "all-reduce", "reduce-scatter")
    for rank in range(4):
        told = sum(
            row["Projected Duration"]
            for row in ranges_of(corpus(FSDP), rank)
            if "Thunk" in (row["Name"] or "") and any(f"hlo_op={word}" in row["Name"] for word in words)
        )
        own = (trace.events.kind == Kind.COMMUNICATION) & (trace.lanes.rank[trace.events.lane] == rank)
        assert int((trace.events.end_ns - trace.events.start_ns)[own].sum()) == told
        assert int(own.sum()) == 120


def test_all_collectives_are_matched_across_the_four(job: Run) -> None:
    found = job.communication(window=STEP)
    assert not found.unmatched
    assert len(found.collectives) == 23
    assert {len(one.calls) for one in found.collectives} == {4}
    assert {share.dimension for share in found.shares} == {"data"}


def test_clocks_are_aligned_by_the_collectives(job: Run) -> None:
    clocks = job.clocks()
    assert (clocks.unaligned, set(clocks.offset_ns)) == ((), {0, 1, 2, 3})
    assert clocks.residual_ns < 100_000


def test_the_path_of_a_step_runs_through_collectives_and_tiles_it(job: Run) -> None:
    path = job.critical_path(window=STEP)
    assert sum(path.by_kind_ns.values()) == path.makespan_ns
    assert path.by_kind_ns["transfer"] > path.by_kind_ns["launch"]
    assert path.by_kind_ns["compute"] > 0.9 * path.makespan_ns


def test_what_follows_a_done_waits_for_what_it_began(job: Run) -> None:
    """No compute of the step begins just after a collective by chance: the gaps before are spent on the collective."""
    path = job.critical_path(window=STEP)
    assert path.by_kind_ns["idle"] < 0.03 * path.makespan_ns


def test_shardings_are_told_with_the_time_of_their_collectives(job: Run) -> None:
    found = job.sharding()
    weights = [one for one in found.arrays if one.program == "pjit__wrapped_step_fn" and one.matches]
    assert len(weights) > 100
    assert found.mesh is not None
    assert dict(found.mesh.axes) == {"replica": 1, "data": 4, "mdl": 1}
    timed = {
        one.name: (one.occurrences, one.time_ns) for one in found.collectives if one.program == "pjit__wrapped_step_fn"
    }
    assert all(occurrences == 5 * 4 and time_ns for occurrences, time_ns in timed.values())
