"""Operation tables: what is read, repaired, dropped and refused, and what makes a job slow."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from traceflow.analyzers.operation_graph import operation_graph
from traceflow.analyzers.operation_table import operation_stragglers
from traceflow.errors import TraceflowError
from traceflow.graph import SliceKind
from traceflow.schemas import schema
from traceflow.trace.operation_types import BACKWARD, COMMUNICATION, FORWARD
from traceflow.trace.operations import OperationTable, read_operations

HEADER = "rank,step,optype,start_ts,duration,dp_rank,stage,mc,mb_id,seq_id"
TRACE_ST = "cluster/trace-ST.parquet"


def written(folder: Path, *rows: str, header: str = HEADER) -> Path:
    """A table as CSV."""
    path = folder / "table.csv"
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def test_the_published_table_is_read_whole(corpus: Callable[[str], Path]) -> None:
    table = read_operations(corpus(TRACE_ST))
    assert len(table) == table.tally.kept == table.tally.read == 6784
    assert table.tally.repaired == {"seconds rounded to ns": 6784}
    assert table.resolution_ns == 239  # the floats between 2 and 4 s are 2 ** -22 s apart
    assert len(np.unique(table.rank)) == 8
    assert len(np.unique(table.step)) == 32
    assert set(table.stage.tolist()) == {0, 1, 2, 3}
    by_step = [table.take(table.step == step) for step in np.unique(table.step)]
    mean_ns = np.mean([step.end_ns.max() - step.start_ns.min() for step in by_step])
    assert mean_ns == pytest.approx(2.214e9, rel=5e-4)


def test_seconds_are_rounded_once_and_rows_are_sorted(tmp_path: Path) -> None:
    path = written(tmp_path, "1,7,b,0.5,1e-9,0,1,0,2,1", "0,7,a,0.1,0.2,0,0,-1,-1,0")
    table = read_operations(path)
    assert table.rank.tolist() == [0, 1]
    assert table.types == ("a", "b")
    assert table.start_ns.tolist() == [100_000_000, 500_000_000]
    assert table.duration_ns.tolist() == [200_000_000, 1]
    assert (table.micro_batch.tolist(), table.chunk.tolist()) == ([-1, 2], [-1, 0])


def test_integer_nanoseconds_are_exact(tmp_path: Path) -> None:
    path = written(tmp_path, f"0,1,a,{2**60 + 1},3", header="rank,step,type,start_ns,duration_ns")
    table = read_operations(path)
    assert table.start_ns.tolist() == [2**60 + 1]
    assert (table.resolution_ns, table.tally.repaired) == (0, {})
    assert (table.stage.tolist(), table.dp_rank.tolist()) == ([-1], [-1])


def test_whole_seconds_are_seconds(tmp_path: Path) -> None:
    table = read_operations(written(tmp_path, "0,1,a,2,3", header="rank,step,type,start,duration"))
    assert (table.start_ns.tolist(), table.duration_ns.tolist()) == ([2_000_000_000], [3_000_000_000])


def test_rows_of_no_use_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = ["0,1,a,0.1,0.2", "0,1,a,0.1,0.2", "0,1,a,nan,0.2", "0,1,a,0.5,-0.2", ",1,a,0.7,0.2", "0,1,,0.8,0.2"]
    table = read_operations(written(tmp_path, *rows, header="rank,step,optype,start_ts,duration"))
    assert (table.tally.read, table.tally.kept) == (6, 1)
    assert table.tally.dropped == {
        "without a time": 1,
        "without a rank, step or type": 2,
        "negative duration": 1,
        "twice in the table": 1,
    }


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", "TF102", "empty"),
        ("PAR1 and nothing else", "TF103", "table.csv"),
        ("a,b\n1,2,3\n", "TF103", "columns"),
        ("rank,step,start_ts,duration\n0,1,0.5,0.5\n", "TF107", "optype or type"),
        ("rank,step,optype,start_ts,duration\n0,1,a,soon,0.5\n", "TF107", "seconds"),
        ("rank,step,optype,start_ts,duration\n0.5,1,a,0.5,0.5\n", "TF107", "rank"),
        ("rank,step,optype,start_ns,duration\n0,1,a,0.5,0.5\n", "TF107", "double, not an integer"),
        ("rank,step,optype,start_ts,duration\n", "TF104", "no row"),
        ("rank,step,optype,start_ts,duration\n0,1,a,0.5,-1.5\n", "TF104", "1 negative duration"),
        ("rank,step,optype,start_ts,duration,stage\n0,1,a,0.5,1.5,0\n0,1,b,3.5,1.5,1\n", "TF108", "rank 0"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, code: str, said: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceflowError) as refused:
        read_operations(path)
    assert refused.value.code == code
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(TraceflowError, match="TF101"):
        read_operations(tmp_path / "none.parquet")


def test_the_published_slowdown_and_its_cause_are_reproduced(corpus: Callable[[str], Path]) -> None:
    found = operation_stragglers(read_operations(corpus(TRACE_ST)))
    assert found.measured_ns == pytest.approx(2.2144e9, rel=1e-4)
    assert found.replayed_ns == pytest.approx(2_172_696_813, abs=1_000)
    assert found.ideal_ns == pytest.approx(1_843_295_824, abs=1_000)
    assert found.slowdown_ratio == pytest.approx(1.1787021836556841, abs=1e-6)
    assert found.by_stage[3].explained_ratio == pytest.approx(1.2193563788811714, abs=1e-5)
    worst = max(found.by_worker, key=lambda part: part.cost_ns)
    assert worst.rank == 7
    assert worst.explained_ratio == pytest.approx(0.031404269124045224, abs=1e-5)
    assert [(cause.part.stage, cause.part.rank) for cause in found.ranking] == [(3, None)]
    assert found.notes == ()


def test_the_result_of_the_published_table_is_as_the_schema_says(corpus: Callable[[str], Path]) -> None:
    result = operation_stragglers(read_operations(corpus(TRACE_ST))).to_dict()
    whole = schema("stragglers")
    shape = {**whole["properties"]["result"], "$defs": whole["$defs"]}
    assert [error.message for error in Draft202012Validator(shape).iter_errors(result)] == []
    assert result["ranking"]


STAGES, BATCHES, COPIES = 3, 4, 2
WORKERS = [(dp_rank, stage) for dp_rank in range(COPIES) for stage in range(STAGES)]
What = tuple[str, int, int, int]  # type, dp rank, stage, how many of the type came before


class Job:
    """One step of a pipeline, all forward and then all backward, simulated operation by operation."""

    def __init__(self, took: Callable[[What], int]) -> None:
        self.took = took
        self.work: dict[What, int] = {}
        self.times: dict[What, tuple[int, int]] = {}
        for worker in WORKERS:
            self.add(("params-all-gather", *worker, 0), 0, 0)
        for dp_rank in range(COPIES):
            for batch in range(BATCHES):
                for stage in range(STAGES):
                    self.compute(FORWARD, dp_rank, stage, batch, stage - 1)
            for batch in range(BATCHES):
                for stage in reversed(range(STAGES)):
                    self.compute(BACKWARD, dp_rank, stage, batch, stage + 1)
        for stage in range(STAGES):
            self.meet("grads-reduce-scatter", (BACKWARD, BATCHES - 1), [w for w in WORKERS if w[1] == stage])
        self.meet("optimizer-clip-main-grad", ("grads-reduce-scatter", 0), WORKERS)
        for worker in WORKERS:
            ready = self.end(("optimizer-clip-main-grad", *worker, 0))
            self.add(("optimizer", *worker, 0), ready, ready)

    def end(self, what: What) -> int:
        return self.times[what][1] if what in self.times else 0

    def add(self, what: What, start: int, met: int) -> None:
        self.work[what] = self.took(what)
        self.times[what] = (start, met + self.work[what])

    def meet(self, name: str, after: tuple[str, int], workers: list[tuple[int, int]]) -> None:
        starts = {worker: self.end((after[0], *worker, after[1])) for worker in workers}
        for worker, start in starts.items():
            self.add((name, *worker, 0), start, max(starts.values()))

    def compute(self, name: str, dp_rank: int, stage: int, batch: int, source: int) -> None:
        before = (name, batch - 1) if batch or name == FORWARD else (FORWARD, BATCHES - 1)
        free = self.end((before[0], dp_rank, stage, before[1]))
        start = max(free, self.end(("params-all-gather", dp_rank, stage, 0)))
        if 0 <= source < STAGES:
            direction = name.removesuffix("compute")
            send, receive = direction + "send", direction + "recv"
            sent = max(self.end((name, dp_rank, source, batch)), self.end((send, dp_rank, source, batch - 1)))
            posted = max(free, self.end((receive, dp_rank, stage, batch - 1)))
            self.add((send, dp_rank, source, batch), sent, max(sent, posted))
            self.add((receive, dp_rank, stage, batch), posted, max(sent, posted))
            start = max(start, self.end((receive, dp_rank, stage, batch)))
        self.add((name, dp_rank, stage, batch), start, start)

    @property
    def makespan(self) -> int:
        return max(end for _, end in self.times.values())

    def rows(self, step: int = 0, shift: int = 0) -> list[str]:
        return [
            f"{dp_rank * STAGES + stage},{step},{name},{start + shift},{end - start},{dp_rank},{stage},0,-1,{index}"
            for (name, dp_rank, stage, index), (start, end) in self.times.items()
        ]

    def typical(self) -> dict[str, int]:
        """The mean of computations and the median of transfers."""
        found = {}
        for name in {what[0] for what in self.work}:
            all_of = [work for what, work in self.work.items() if what[0] == name]
            found[name] = round((statistics.median if name in COMMUNICATION else statistics.fmean)(all_of))
        return found

    def with_typical(self, part: object) -> Job:
        """The job with one type or worker (data parallel rank and stage) at the typical durations."""
        typical = self.typical()
        return Job(lambda what: typical[what[0]] if part in (what[0], what[1:3]) else self.work[what])


def table_of(folder: Path, rows: list[str]) -> OperationTable:
    header = HEADER.replace("start_ts", "start_ns").replace("duration", "duration_ns")
    return read_operations(written(folder, *rows, header=header))


def at_random(seed: int) -> Job:
    chance = random.Random(seed)
    return Job(lambda _: chance.randrange(1, 1_000_000))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_replay_ideal_and_repairs_are_what_the_simulator_gives(tmp_path: Path, seed: int) -> None:
    job = at_random(seed)
    typical = job.typical()
    found = operation_stragglers(table_of(tmp_path, job.rows()))
    assert (found.measured_ns, found.replayed_ns) == (job.makespan, job.makespan)
    assert found.ideal_ns == Job(lambda what: typical[what[0]]).makespan
    for part in found.by_worker:
        assert part.cost_ns == job.makespan - job.with_typical((part.dp_rank, part.stage)).makespan
    for part in found.by_type:
        assert part.cost_ns == job.makespan - job.with_typical(part.type).makespan


def test_one_slow_worker_is_blamed_and_its_stage_is_not(tmp_path: Path) -> None:
    job = Job(lambda what: 3_000_000 if what[:3] == (BACKWARD, 1, 1) else 1_000_000)
    found = operation_stragglers(table_of(tmp_path, job.rows()))
    assert [(cause.part.rank, cause.name) for cause in found.ranking] == [(4, BACKWARD)]
    assert "rank 4" in found.findings[0].title
    assert found.to_pandas().set_index("rank").cost_ns.idxmax() == 4


def test_one_long_stage_is_blamed_and_no_worker_is(tmp_path: Path) -> None:
    job = Job(lambda what: 3_000_000 if what[0] == FORWARD and what[2] == 2 else 1_000_000)
    found = operation_stragglers(table_of(tmp_path, job.rows()))
    assert [(cause.part.rank, cause.part.stage, cause.name) for cause in found.ranking] == [(None, 2, FORWARD)]


def test_a_job_of_equal_workers_has_no_straggler(tmp_path: Path) -> None:
    found = operation_stragglers(table_of(tmp_path, Job(lambda _: 1_000_000).rows()))
    assert (found.slowdown_ratio, found.ranking) == (1.0, ())
    assert [skipped.what for skipped in found.skipped] == ["/result/ranking"]


def test_order_of_rows_and_time_of_a_step_change_nothing(tmp_path: Path) -> None:
    one, other = at_random(1), at_random(2)
    rows, moved = one.rows(3) + other.rows(9), other.rows(9, 7 * 10**15) + one.rows(3)
    random.Random(3).shuffle(moved)
    first, second = (operation_stragglers(table_of(tmp_path, some)) for some in (rows, moved))
    assert [step.measured_ns for step in first.by_step] == [one.makespan, other.makespan]
    assert replace(first, window=second.window) == second


def test_a_lost_send_shifts_no_other_transfer(tmp_path: Path) -> None:
    rows = at_random(4).rows()
    lost = next(row for row in rows if "forward-send" in row and row.endswith(",1"))
    whole, part = (operation_graph(table_of(tmp_path, some)) for some in (rows, [r for r in rows if r != lost]))
    transfers = [int((found.graph.slices.kind == SliceKind.TRANSFER).sum()) for found in (whole, part)]
    assert transfers[1] == transfers[0] - 2
    assert [note.code for note in part.notes] == ["TF305"]
    assert "1 communication operation" in part.notes[0].text


def test_transfers_without_stages_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "0,0,forward-send,0.1,0.2", header="rank,step,optype,start_ts,duration")
    with pytest.raises(TraceflowError, match=r"TF107.*stage"):
        operation_stragglers(read_operations(path))


def in_ms(folder: Path, operations: list[tuple[int, str, int, int, int]], stages: int) -> OperationTable:
    """Operations as (rank, type, start, end, chunk), in order of time on each rank; ranks fill the stages in turn."""
    ms = 1_000_000
    return table_of(
        folder,
        [
            f"{r},0,{name},{a * ms},{(b - a) * ms},{r // stages},{r % stages},{c},-1,-1"
            for r, name, a, b, c in operations
        ],
    )


def test_gradients_that_are_reduced_beside_the_computation_bind_what_follows(tmp_path: Path) -> None:
    schedule = [
        ("params-all-gather", 0, 0, 0),
        (FORWARD, 0, 10, 0),
        (FORWARD, 10, 20, 1),
        (BACKWARD, 20, 40, 1),
        (BACKWARD, 40, 60, 0),
        ("grads-reduce-scatter", 40, 70, 1),
        ("grads-reduce-scatter", 70, 75, 0),
        ("layernorm-grads-all-reduce", 75, 76, -1),
        ("separate-grads-all-reduce", 76, 80, -1),
        ("optimizer", 80, 90, -1),
    ]
    found = operation_graph(in_ms(tmp_path, [(rank, *rest) for rank in (0, 1) for rest in schedule], stages=1))
    assert found.notes == ()
    assert found.replay_ns(found.work_ns).tolist() == [90_000_000]
    faster = np.where(found.work_ns == 30_000_000, 10_000_000, found.work_ns)
    assert found.replay_ns(faster).tolist() == [80_000_000]  # now the last gradients wait for their computation


def test_interleaved_stages_pass_a_batch_on_from_the_last_to_the_first(tmp_path: Path) -> None:
    send, receive = "forward-send", "forward-recv"
    first = [(FORWARD, 0, 10, 0), (send, 10, 12, -1), (receive, 10, 24, -1), (FORWARD, 24, 34, 1), (send, 34, 36, -1)]
    last = [
        (receive, 0, 12, -1),
        (FORWARD, 12, 22, 0),
        (send, 22, 24, -1),
        (receive, 22, 36, -1),
        (FORWARD, 36, 46, 1),
        (send, 46, 46, -1),  # recorded, though the last chunk has nobody to send to
    ]
    rows = [(rank, *rest) for rank, some in enumerate((first, last)) for rest in some]
    found = operation_graph(in_ms(tmp_path, rows, stages=2))
    assert found.notes == ()
    assert int((found.graph.slices.kind == SliceKind.TRANSFER).sum()) == 6
    assert found.replay_ns(found.work_ns).tolist() == [46_000_000]
    at_once = np.where(found.work_ns == 2_000_000, 0, found.work_ns)
    assert found.replay_ns(at_once).tolist() == [40_000_000]
