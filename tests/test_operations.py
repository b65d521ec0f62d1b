"""Operation tables: what is read, repaired, dropped and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from traceflow.errors import TraceflowError
from traceflow.trace.operations import read_operations

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
        ("rank,step,optype,start_ns,duration\n0,1,a,0.5,0.5\n", "TF107", "not an integer"),
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
