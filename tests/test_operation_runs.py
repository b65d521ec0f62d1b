"""Operation tables at the front doors: `traceflow show`, `what-if`, `report`, and `tf.open`."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from sources import ROOT

import traceflow as tf
from traceflow.analyzers.operation_table import OperationStragglers, operation_stragglers
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.report.workers import heat_map
from traceflow.schemas import schema
from traceflow.trace.operation_types import BACKWARD, COMMUNICATION, FORWARD
from traceflow.trace.operations import _NAMES, OperationTable, is_operation_table, read_operations

Capture = pytest.CaptureFixture[str]
Row = dict[str, Any]

BLOCKS = ("text", "console", "python")
TRACE_ST, TIMELINE_ST = "cluster/trace-ST.parquet", "cluster/timeline-ST.json.gz"
MS = 1_000_000
COLUMNS = ("rank", "step", "type", "start_ns", "duration_ns", "dp_rank", "stage", "chunk", "micro_batch", "sequence")


def two_stages(steps: Iterable[int] = (0,), *, apart_ns: int = 1_000 * MS, slow: int = 0) -> list[Row]:
    """Two stages of two workers each, two micro-batches: 10 ms a computation, 1 ms a transfer; rank 3 is slower."""
    rows = []
    for at, step in enumerate(steps):
        for copy in (0, 1):
            for row in pipeline(copy, slow if copy else 0):
                begin_ns = row["start_ns"] + at * apart_ns
                rows.append({**row, "step": step, "dp_rank": copy, "chunk": -1, "start_ns": begin_ns})
    return rows


def pipeline(copy: int, slow: int) -> Iterable[Row]:
    """The forward half of a step: batches go from rank 0 or 1 to rank 2 or 3."""
    long = 10 * MS + slow
    free = 5 * MS
    for batch in (0, 1):
        done = 10 * MS * (batch + 1)
        yield operation(copy, "forward-compute", done - 10 * MS, 10 * MS, 0, batch)
        begin = max(done, free) + MS
        yield operation(copy, "forward-send", done, begin - done, 0, batch)
        yield operation(2 + copy, "forward-recv", free, begin - free, 1, batch)
        yield operation(2 + copy, "forward-compute", begin, long, 1, batch)
        free = begin + long


def operation(rank: int, name: str, start: int, took: int, stage: int, batch: int) -> Row:
    return {
        "rank": rank,
        "type": name,
        "start_ns": start,
        "duration_ns": took,
        "stage": stage,
        "micro_batch": batch,
        "sequence": batch,
    }


def written(rows: list[Row], path: Path) -> Path:
    """A table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
    return path


def as_timeline(rows: list[Row], path: Path) -> Path:
    """The same table as Chrome JSON, which tells rank and place by the names of processes and threads."""
    threads = {row["rank"]: (row["dp_rank"], row["stage"]) for row in rows}
    events: list[Row] = [
        {
            "ph": "X",
            "name": row["type"],
            "pid": row["dp_rank"],
            "tid": row["rank"],
            "ts": row["start_ns"] / 1000,
            "dur": row["duration_ns"] / 1000,
            "args": {"step": row["step"], "mb_id": row["micro_batch"], "seq_id": row["sequence"], "model_chunk": -1},
        }
        for row in rows
    ]
    for rank, (copy, stage) in threads.items():
        events += [
            {"ph": "M", "name": "thread_name", "pid": copy, "tid": rank, "args": {"name": f"PP rank {stage}, compute"}},
            {"ph": "M", "name": "process_name", "pid": copy, "args": {"name": f"DP rank [{copy}]"}},
        ]
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


def document(capsys: Capture, *arguments: str) -> dict[str, Any]:
    """What a verb prints as JSON, which must be as its schema says."""
    assert main([*arguments, "--format", "json", "-q"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [error.message for error in Draft202012Validator(schema(found["kind"])).iter_errors(found)] == []
    return found


@pytest.mark.parametrize("name", [TRACE_ST, TIMELINE_ST])
def test_the_published_slowdown_and_its_cause(corpus: Callable[[str], Path], capsys: Capture, name: str) -> None:
    result = document(capsys, "show", "stragglers", str(corpus(name)))["result"]
    assert result["slowdown_ratio"] == pytest.approx(1.179, rel=0.02)
    assert result["slowdown_ratio"] == pytest.approx(1.178702, abs=1e-5)
    assert result["replayed_ns"] == pytest.approx(2.1727e9, rel=1e-4)
    assert result["ideal_ns"] == pytest.approx(1.8433e9, rel=1e-4)
    assert result["measured_ns"] == pytest.approx(2.214e9, rel=5e-4)
    first = result["ranking"][0]
    assert (first["rank"], first["stage"]) == (None, "3")
    assert first["evidence"]["explained_ratio"] == pytest.approx(1.22, abs=0.01)
    assert [row for row in result["ranking"] if row["rank"] is not None] == []  # no single worker is blamed
    assert max(row["explained_ratio"] for row in result["by_worker"]) == pytest.approx(0.03, abs=0.005)
    assert max(result["by_worker"], key=lambda row: int(row["cost_ns"]))["rank"] == 7


def test_the_measured_time_stands_beside_the_replayed_one(corpus: Callable[[str], Path], capsys: Capture) -> None:
    assert main(["show", "stragglers", str(corpus(TRACE_ST)), "-q"]) == 0
    text = capsys.readouterr().out
    assert "S = 1.179" in text
    lengths = {
        line.split()[0]: line.split()[1:3] for line in text.splitlines() if " modelled " in line or " measured " in line
    }
    assert lengths["measured"] == ["2,214.4", "measured"]
    assert lengths["replayed"] == ["2,172.7", "modelled"]
    assert lengths["ideal"] == ["1,843.3", "modelled"]
    assert re.search(r"401\.66 +1\.22 +stage 3 +compute +forward-compute", text)
    assert "No single worker is to blame: the costliest, rank 7, explains 0.03 of the excess." in " ".join(text.split())


def test_parquet_and_timeline_of_one_job_agree(corpus: Callable[[str], Path]) -> None:
    table, shown = (read_operations(corpus(name)) for name in (TRACE_ST, TIMELINE_ST))
    assert len(shown) == len(table) == shown.tally.kept == 6784
    for column in ("rank", "step", "dp_rank", "stage", "chunk", "micro_batch", "sequence"):
        assert sorted(getattr(shown, column).tolist()) == sorted(getattr(table, column).tolist())
    assert shown.types == table.types
    places = [set(zip(t.rank.tolist(), t.dp_rank.tolist(), t.stage.tolist(), strict=True)) for t in (table, shown)]
    assert places[0] == places[1]


def test_steps_that_overlap_stand_one_after_another(corpus: Callable[[str], Path]) -> None:
    table = read_operations(corpus(TRACE_ST))
    assert [note.code for note in table.tally.notes] == ["TF312"]
    starts, ends = zip(*((s.start_ns.min(), s.end_ns.max()) for s in by_step(table)), strict=True)
    assert [start - end for start, end in zip(starts[1:], ends[:-1], strict=True)] == [1] * 31
    assert read_operations(corpus(TIMELINE_ST)).tally.notes == ()  # there they stand apart


def by_step(table: OperationTable) -> list[OperationTable]:
    return [table.take(table.step == step) for step in np.unique(table.step)]


@pytest.mark.parametrize("name", [TRACE_ST, TIMELINE_ST])
def test_every_question_can_be_asked(corpus: Callable[[str], Path], capsys: Capture, name: str) -> None:
    table = str(corpus(name))
    run = tf.open(table)
    summary = run.summary()
    assert (summary.format, summary.event_count, len(summary.steps)) == ("operations", 6784, 32 * 8)
    for step in (None, 525):
        path = run.critical_path(step=step, slack=True)
        assert path.segments.duration_ns.sum() == path.makespan_ns
        assert path.slack is not None
        assert path.slack.slack_ns.min() >= 0
        same = run.what_if(step=step)
        assert (same.predicted_ns, same.exact) == (path.makespan_ns, True)
    document(capsys, "show", "critical-path", table, "--step", "525")
    document(capsys, "what-if", table, "--step", "525", "--scale", "optimizer=0")
    communication = document(capsys, "show", "communication", table, "--step", "525")["result"]
    met = [collective for collective in communication["collectives"] if collective["group"] == "all ranks"]
    assert [len(collective["participants"]) for collective in met] == [8]
    assert len(communication["point_to_point"]) == 2 * 2 * 3 * 4  # directions, copies, boundaries, micro-batches


def test_transfers_without_their_waits_are_remarked_where_waits_are_asked_for(
    corpus: Callable[[str], Path], capsys: Capture
) -> None:
    codes = {}
    for name in (TRACE_ST, TIMELINE_ST):
        for verb in ("critical-path", "stragglers"):
            found = document(capsys, "show", verb, str(corpus(name)), "--step", "525")
            codes[name, verb] = {note["code"] for note in found["data_quality"]["notes"]} - {"TF312"}
    assert codes == {
        (TRACE_ST, "critical-path"): set(),
        (TRACE_ST, "stragglers"): set(),
        (TIMELINE_ST, "critical-path"): {"TF315"},
        (TIMELINE_ST, "stragglers"): set(),
    }


def test_a_what_if_by_type_and_rank_is_what_the_schedule_gives(tmp_path: Path) -> None:
    run = tf.open(written(two_stages(slow=5 * MS), tmp_path / "job.csv"))
    assert run.critical_path().makespan_ns == 42 * MS
    assert run.what_if(tf.Scale("forward-compute", 0.5), ranks=[3]).predicted_ns == 32 * MS  # the other copy's
    assert run.what_if(tf.Scale("^forward-compute$", 0.5)).predicted_ns == 22 * MS
    assert run.critical_path().by_rank_ns == {1: 10 * MS, 3: 32 * MS}


def test_waits_and_transfers_are_told_apart(tmp_path: Path) -> None:
    found = tf.open(written(two_stages(), tmp_path / "job.csv")).communication()
    waits = [(message.source, message.destination, message.wait_ns) for message in found.messages]
    assert waits == [(*ends, wait) for wait in (5 * MS, 0) for ends in (((0, 0), (2, 0)), ((1, 0), (3, 0)))]
    assert (found.unmatched, found.removable_transfer_ns) == ((), 2 * MS)


def test_a_collective_waits_for_its_last_participant(tmp_path: Path) -> None:
    arrivals = {0: 40, 1: 41, 2: 45, 3: 43}
    norms = [
        {
            **operation(rank, "optimizer-clip-main-grad", at * MS, (47 - at) * MS, rank // 2, 0),
            "step": 0,
            "dp_rank": rank % 2,
        }
        for rank, at in arrivals.items()
    ]
    (found,) = tf.open(written([*two_stages(), *norms], tmp_path / "job.csv")).communication().collectives
    assert (found.op, found.group, found.last) == ("all-reduce", "all ranks", (2, 0))
    assert {c.participant[0]: (c.wait_ns, c.transfer_ns) for c in found.calls} == {
        rank: ((45 - at) * MS, 2 * MS) for rank, at in arrivals.items()
    }


def test_the_path_of_all_steps_is_the_paths_of_each(tmp_path: Path) -> None:
    run = tf.open(written(two_stages([5, 6, 9], apart_ns=100 * MS), tmp_path / "job.csv"))
    of_steps = [run.critical_path(step=step) for step in (5, 6, 9)]
    assert {path.by_kind_ns["compute"] for path in of_steps} == {30 * MS}
    whole = run.critical_path()
    assert whole.makespan_ns == 232 * MS
    assert whole.by_kind_ns == {"compute": 90 * MS, "transfer": 6 * MS, "idle": 2 * 68 * MS}


def test_python_gets_the_slowdown_too(tmp_path: Path) -> None:
    run = tf.open(written(two_stages(slow=10 * MS), tmp_path / "job.csv"))
    found = run.stragglers()
    assert isinstance(found, OperationStragglers)
    assert (found.measured_ns, found.replayed_ns) == (52 * MS, 52 * MS)
    assert found.ranking[0].rank == 3
    assert repr(run) == f"<Run {tmp_path / 'job.csv'}: 4 ranks, 16 events>"


def test_one_step_is_judged_by_itself(tmp_path: Path, capsys: Capture) -> None:
    slow = [row | {"step": 4} for row in two_stages(slow=10 * MS)]
    table = written(two_stages([3]) + slow, tmp_path / "job.csv")
    results = {step: document(capsys, "show", "stragglers", str(table), "--step", step)["result"] for step in "34"}
    assert [results[step]["measured_ns"] for step in "34"] == [32 * MS, 52 * MS]
    assert results["3"]["slowdown_ratio"] == 1
    assert results["3"]["ranking"] == []
    assert [row["step"] for row in results["4"]["by_step"]] == [4]
    assert main(["show", "stragglers", str(table), "--step", "5"]) == 1
    assert "TF111: no step 5: the table has these steps: 3, 4" in capsys.readouterr().err


def test_content_tells_a_table_whatever_it_is_called(tmp_path: Path) -> None:
    rows = two_stages(slow=123)
    named = tmp_path / "anything.json"
    assert is_operation_table(written(rows, named))
    timeline = as_timeline(rows, tmp_path / "timeline.parquet")
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(timeline.read_bytes()))
    lengths = [tf.open(path).critical_path().makespan_ns for path in (named, timeline, packed)]
    assert lengths == [32 * MS + 2 * 123] * 3
    for content in (
        "",
        "[]",
        '[{"ph": "X", "name": "a", "args": {"step_num": 1}}]',
        "rank and step\n",
        "\x00\x01,\x02",
    ):
        named.write_text(content)
        assert not is_operation_table(named)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(0, 2**60), st.integers(2, 1000))
def test_order_shift_and_scale_change_nothing(tmp_path: Path, seed: int, shift: int, scale: int) -> None:
    chance = random.Random(seed)
    rows = two_stages([1, 2, 7], slow=chance.randrange(20 * MS))
    moved = [
        row | {"start_ns": row["start_ns"] * scale + shift, "duration_ns": row["duration_ns"] * scale} for row in rows
    ]
    chance.shuffle(moved)
    one, other = (tf.open(written(some, tmp_path / "job.csv")).stragglers() for some in (rows, moved))
    assert isinstance(one, OperationStragglers)
    assert isinstance(other, OperationStragglers)
    assert other.measured_ns == one.measured_ns * scale
    assert other.replayed_ns == one.replayed_ns * scale
    assert other.slowdown_ratio == pytest.approx(one.slowdown_ratio)  # typical durations are rounded to ns
    assert [(cause.rank, cause.name) for cause in other.ranking] == [(cause.rank, cause.name) for cause in one.ranking]
    costs = zip(one.by_worker, other.by_worker, strict=True)
    assert all(b.cost_ns == pytest.approx(a.cost_ns * scale, abs=4 * scale) for a, b in costs)


def test_a_step_that_lacks_operations_is_limited_and_says_so(tmp_path: Path, capsys: Capture) -> None:
    rows = two_stages([1, 2], slow=MS)
    lost = next(row for row in rows if row["step"] == 2 and row["type"] == "forward-send")
    table = written([row for row in rows if row is not lost], tmp_path / "job.csv")
    found = document(capsys, "show", "stragglers", str(table))
    assert found["data_quality"]["verdict"] == "limited"
    assert [note["code"] for note in found["data_quality"]["notes"]] == ["TF305"]
    assert [row["measured_ns"] for row in found["result"]["by_step"]] == [34 * MS, 34 * MS]
    assert not document(capsys, "what-if", str(table), "--scale", "forward-compute=0.5")["result"]["exact"]
    alone = tf.open(table).communication(step=2).unmatched
    assert [(call.participant, call.name) for call in alone] == [((2, 0), "forward-recv")]


def test_bad_rows_are_dropped_and_counted_at_the_front_door(tmp_path: Path, capsys: Capture) -> None:
    good = two_stages()
    bad = [good[0] | {"duration_ns": -1}, good[1] | {"rank": -1}, good[2] | {"start_ns": ""}, good[3]]
    quality = document(capsys, "show", "stragglers", str(written(good + bad, tmp_path / "t.csv")))["data_quality"]
    assert (quality["events_read"], quality["events_kept"]) == (20, 16)
    assert quality["dropped_by_reason"] == {
        "without a time": 1,
        "without a rank, step or type": 1,
        "negative duration": 1,
        "twice in the table": 1,
    }


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"rank": "first"}, "TF107", "rank"),
        ({"duration_ns": 0.5}, "TF107", "duration_ns is double"),
        ({"stage": 7}, "TF108", "rank 0 has more than one stage"),
        ({"duration_ns": 2**59}, "TF107", "its steps take"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, capsys: Capture, change: Row, code: str, said: str) -> None:
    rows = two_stages([0, 1], apart_ns=0)
    spoilt = [row | change if row["sequence"] == 0 else row for row in rows]
    assert main(["show", "stragglers", str(written(spoilt, tmp_path / "t.csv")), "-q"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {code}: ")
    assert said in error
    assert error.count("\n") == 1


def test_transfers_need_stages(tmp_path: Path, capsys: Capture) -> None:
    table = written([row | {"stage": ""} for row in two_stages()], tmp_path / "t.csv")
    assert main(["show", "stragglers", str(table), "-q"]) == 1
    assert "TF107: cannot follow the schedule of the table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("half.json", b'[{"ph": "X", "name": "a", "ts": 1, "dur": 1, "args": {"step": 1, "rank": 0}}, {"ph"', "TF103"),
        ("none.json", b'[{"ph": "X", "name": "a", "args": {"step": 1, "rank": 0}}]', "TF104"),
        (
            "cut.json.gz",
            gzip.compress(b'[{"ph": "X", "args": {"step": 1, "rank": 0}}]' + bytes(range(256)) * 9)[:200],
            "TF105",
        ),
        ("half.parquet", b"PAR1 and no more", "TF103"),
        ("twice.csv", b"rank,rank,step,type,start,duration\n0,0,1,a,0,1\n", "TF107"),
        ("short.csv", b"rank,step,type\n0,0,a\n", "TF107"),
    ],
)
def test_files_that_are_no_tables_after_all_are_refused(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceflowError) as refused:
        tf.open(path)
    assert refused.value.code == code


def test_gaps_that_numpy_writes_as_nan_are_unknown(tmp_path: Path) -> None:
    import pandas as pd

    rows = pd.DataFrame(two_stages())
    rows["chunk"] = float("nan")
    rows.loc[3, "sequence"] = float("nan")
    rows.to_parquet(tmp_path / "t.parquet")
    table = read_operations(tmp_path / "t.parquet")
    assert set(table.chunk.tolist()) == {-1}
    assert sorted(table.sequence.tolist())[:2] == [-1, 0]
    assert operation_stragglers(table).measured_ns == 32 * MS


def test_a_job_without_pipeline_or_copies_is_judged_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{rank},{step},work,{step}.0,{0.1 + 0.1 * (rank == 2)}" for rank in range(4) for step in range(3)]
    path.write_text("\n".join(["rank,step,type,start,duration", *rows]) + "\n")
    found = tf.open(path).stragglers()
    assert isinstance(found, OperationStragglers)
    assert (found.replayed_ns, found.ideal_ns) == (200 * MS, 125 * MS)
    assert [cause.rank for cause in found.ranking] == [2]
    cells = heat_map(found.to_dict()["by_worker"]).cells  # type: ignore[arg-type]
    assert [(cell.column, cell.row, cell.kind) for cell in cells] == [
        (0, 0, "faster"),
        (0, 1, "faster"),
        (0, 2, "slower"),
        (0, 3, "faster"),
    ]


def test_the_report_maps_every_worker(corpus: Callable[[str], Path], tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "st.html"
    assert main(["report", str(corpus(TRACE_ST)), "-o", str(page), "-q"]) == 0
    capsys.readouterr()
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"<title>rank \d: slowdown 1\.\d{3}, costs [^<]+, explains [^<]+</title>", text)) == 8
    assert "S = 1.179: a step takes 17.9 % longer" in text
    slower = re.findall(r'<g class="slower deep"><rect x="(\d+)"', text)
    assert len(slower) == 2
    assert len(set(slower)) == 1  # both workers of the last stage, in one column
    assert all(f"<caption>{title}</caption>" in text for title in ("To blame", "By stage", "By worker"))
    assert all(f"<summary>{title}</summary>" in text for title in ("By type", "By step"))


def test_a_map_of_many_workers_is_drawn_without_figures(tmp_path: Path) -> None:
    path, page = tmp_path / "job.csv", tmp_path / "job.html"
    rows = [
        f"{20 * stage + copy},0,work,0,{1 + (stage == copy == 7)},{copy},{stage}"
        for stage in range(25)
        for copy in range(20)
    ]
    path.write_text("\n".join(["rank,step,type,start,duration,dp_rank,stage", *rows]) + "\n")
    text = tf.open(path).report(page).read_text(encoding="utf-8")
    assert text.count('<g class="') == 500
    assert re.findall(r'deep"><rect[^>]*><title>(rank \d+):', text) == ["rank 147"]
    assert text.count('<text class="head"') == 13  # every other stage has room for its name


def test_a_report_of_a_trace_has_no_workers(tmp_path: Path) -> None:
    from handmade import two_rounds

    text = two_rounds().run().report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'class="heat"' not in text
    assert "-workers" not in text


def test_a_lag_that_the_schedule_does_not_explain_is_measured_and_not_replayed(tmp_path: Path) -> None:
    last = {"rank": 2, "type": "forward-compute", "sequence": 1}
    late = [
        row | {"start_ns": row["start_ns"] + 7 * MS} if last.items() <= row.items() else row for row in two_stages()
    ]
    found = operation_stragglers(read_operations(written(late, tmp_path / "t.csv")))
    assert (found.measured_ns, found.replayed_ns) == (39 * MS, 32 * MS)


def test_the_documented_example_runs_and_says_what_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    page = (ROOT / "docs" / "operation-tables.md").read_text(encoding="utf-8")
    table, commands, program = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in BLOCKS)
    (tmp_path / "job.csv").write_text(table, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in commands.splitlines():
        words = line.removeprefix("$ ").partition("#")[0].split()
        assert main([*words[1:], "-q"]) == 0, line
    assert re.search(r"rank 3 +compute +forward-compute", capsys.readouterr().out)
    assert (tmp_path / "traceflow-report-job.html").exists()
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102  # what a reader would copy
    stated = dict(re.findall(r"found\.(\S+)  # ([\d.]+)\n", program))
    assert f"{names['found'].slowdown_ratio:.2f}" == stated["slowdown_ratio"]
    assert str(names["found"].ranking[0].rank) == stated["ranking[0].rank"]


def test_every_accepted_column_and_type_is_documented() -> None:
    page = (ROOT / "docs" / "operation-tables.md").read_text(encoding="utf-8")
    columns = [name for names in _NAMES.values() for name in names]
    assert [name for name in (*columns, *COMMUNICATION, FORWARD, BACKWARD) if f"`{name}`" not in page] == []
