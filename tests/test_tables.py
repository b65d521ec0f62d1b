"""The tables of a run: known answers, the page that documents them, and what reads them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from handmade import MS, Builder, two_cards
from jsonschema import Draft202012Validator
from sources import ROOT

import traceflow as tf
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.export.schema import TABLES
from traceflow.export.subject import Answers
from traceflow.export.tables import table
from traceflow.schemas import schema
from traceflow.trace.model import Kind

duckdb = pytest.importorskip("duckdb", reason="it answers queries")
pl = pytest.importorskip("polars", reason="it reads tables, too")

PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Card 0 computes until 4 ms and card 1 until 9, then both reduce until 11; step 3 is marked on rank 0."""
    build = two_cards()
    build.mark(3, 0, 0, 12 * MS)
    return build.run().to_parquet(tmp_path / "tables")


def test_the_page_documents_every_column() -> None:
    sections = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^### |\Z)", PAGE, re.DOTALL | re.MULTILINE))
    assert sections.keys() == TABLES.keys()
    for name, about in TABLES.items():
        rows = re.findall(
            r"^\| `(\w+)` \| (\w+)(, may be null)? \| (\w*) \| (\w+) \| ?(.*?) ?\|$", sections[name], re.MULTILINE
        )
        told = [(c.name, c.type, c.nullable, c.unit, c.provenance, c.about) for c in about.columns]
        assert [(n, t, bool(null), u, p, a) for n, t, null, u, p, a in rows] == told
        assert sections[name].startswith(f"{about.about}\n\n")


@pytest.mark.parametrize("name", TABLES)
def test_units_stand_in_names(name: str) -> None:
    columns = TABLES[name].columns
    assert {c.unit for c in columns} <= {"", "ns", "bytes"}
    assert {c.provenance for c in columns} <= {"recorded", "measured", "derived", "compiler"}
    assert [c.name for c in columns if c.unit and not c.name.endswith(f"_{c.unit}")] == []
    assert [c.name for c in columns if not c.unit and c.name.endswith(("_ns", "_bytes"))] == []


def test_files_say_what_they_are(tables: Path) -> None:
    assert {path.stem for path in tables.iterdir()} == TABLES.keys()
    for name, about in TABLES.items():
        schema = pq.read_schema(tables / f"{name}.parquet")
        assert schema.metadata[b"traceflow.table"] == name.encode()
        assert schema.names == [column.name for column in about.columns]
        for column in about.columns:
            told = schema.field(column.name)
            assert (told.metadata[b"unit"], told.nullable) == (column.unit.encode(), column.nullable)


def test_polars_and_duckdb_read_the_same(tables: Path) -> None:
    for name in TABLES:
        file = tables / f"{name}.parquet"
        assert pl.read_parquet(file).rows() == duckdb.sql(f"SELECT * FROM '{file}'").fetchall()  # noqa: S608  # a fixed name


def test_known_answers(tables: Path) -> None:
    events = pl.read_parquet(tables / "events.parquet")
    rows = events.select("rank", "device", "name", "kind", "start_ns", "duration_ns", "step", "launched_by").rows()
    assert rows == [
        (0, 0, "a", "compute", 0, 4 * MS, 3, None),
        (0, 0, "all-reduce", "communication", 4 * MS, 7 * MS, 3, None),
        (1, 0, "b", "compute", 0, 9 * MS, None, None),
        (1, 0, "all-reduce", "communication", 9 * MS, 2 * MS, None, None),
    ]
    calls = pl.read_parquet(tables / "participants.parquet")
    assert calls.select("rank", "arrival_ns", "wait_ns", "transfer_ns", "exposed_ns", "payload_bytes").rows() == [
        (0, 4 * MS, 5 * MS, 2 * MS, 7 * MS, 1 << 20),
        (1, 9 * MS, 0, 2 * MS, 2 * MS, 1 << 20),
    ]
    (collective,) = pl.read_parquet(tables / "collectives.parquet").to_dicts()
    assert (collective["last_rank"], collective["start_skew_ns"], collective["participants"]) == (1, 5 * MS, 2)
    segments = pl.read_parquet(tables / "segments.parquet")
    assert segments.select("kind", "rank", "duration_ns").rows() == [("compute", 1, 9 * MS), ("transfer", 0, 2 * MS)]
    assert pl.read_parquet(tables / "steps.parquet").select("step", "rank", "start_ns").rows() == [(3, 0, 0)]
    assert pl.read_parquet(tables / "programs.parquet").height == 0


def test_edges_lead_to_what_waited(tables: Path, capsys: Capture) -> None:
    assert main(["query", str(tables), QUERIES[5], "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == []  # two cards meet in a join, which belongs to no event
    edges = "SELECT kind, count(*) AS edges FROM edges WHERE binds GROUP BY kind ORDER BY kind"
    assert main(["query", str(tables), edges, "--format", "csv"]) == 0
    assert "rendezvous" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["xplane/mi300_gemm.xplane.pb", "cluster/trace-ST.parquet", "hlo/conv3d_gpu.hlo.pb"])
def test_tables_of_recorded_runs_agree_with_results(name: str, corpus: Callable[[str], Path]) -> None:
    run = tf.open(corpus(name))
    of = Answers(run)
    assert table(of, "events").num_rows == len(run.trace.events)
    assert table(of, "instructions").num_rows == sum(map(len, run.programs.values()))
    if of.works:
        assert sum(table(of, "segments")["duration_ns"].to_pylist()) == run.critical_path().makespan_ns
        exposed = [row.exposed_ns for row in run.communication().participants]
        assert table(of, "communication")["exposed_ns"].to_pylist() == exposed
    else:
        assert table(of, "segments").num_rows == 0
    edges = table(of, "edges").to_pydict()
    assert max(edges["source_slice"], default=-1) < table(of, "slices").num_rows or not edges["source_slice"]
    joined = run.query("SELECT count(*) FROM events JOIN instructions USING (program, instruction)").rows
    assert joined == ((int(np.count_nonzero(run.trace.hlo.instruction >= 0)) if run.programs else 0,),)


def test_what_collectives_are_for_is_null_where_nothing_tells(corpus: Callable[[str], Path]) -> None:
    run = tf.open(corpus("cluster/trace-ST.parquet"))
    told = {collective.to_dict()["purpose"] for collective in run.communication().collectives}
    found = run.query("SELECT DISTINCT purpose FROM collectives").rows
    assert {"unknown" if purpose is None else purpose for (purpose,) in found} == told
    assert run.query("SELECT purpose, dimension FROM messages").rows


@pytest.mark.parametrize("sql", QUERIES, ids=range(len(QUERIES)))
def test_the_queries_of_the_page_are_answered(sql: str, tables: Path, capsys: Capture) -> None:
    for form in ("text", "csv", "json"):
        assert main(["query", str(tables), sql, "--format", form]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [*Draft202012Validator(schema("query")).iter_errors(document)] == []
    assert document["result"]["columns"]


def test_the_commands_of_the_page_do_what_it_says(
    tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    block = re.search(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    lines = [line.removeprefix("$ traceflow ") for line in block[1].splitlines()]
    (tmp_path / "runs").mkdir()
    tables.rename(tmp_path / "runs" / "a")
    monkeypatch.chdir(tmp_path)
    (asked,) = (line for line in lines if line.startswith("query"))
    verb, source, sql = re.match(r'(\w+) (\S+) "(.*)"', asked).groups()  # type: ignore[union-attr]
    assert main([verb, source, sql]) == 0
    assert "compute" in capsys.readouterr().out


def test_figures_are_exact_in_every_form(tables: Path, capsys: Capture) -> None:
    sql = "SELECT kind, sum(duration_ns) AS total_ns, NULL AS nothing FROM segments GROUP BY kind ORDER BY kind"
    assert main(["query", str(tables), sql]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["compute", "9000000"]
    assert main(["query", str(tables), sql, "--format", "csv"]) == 0
    assert capsys.readouterr().out == "kind,total_ns,nothing\ncompute,9000000,\ntransfer,2000000,\n"
    assert main(["query", str(tables), sql, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["result"]["rows"]
    assert rows[0] == {"kind": "compute", "total_ns": 9_000_000, "nothing": None}


def test_a_wide_answer_fits_the_line_and_says_what_it_leaves_out(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["query", str(tables), "SELECT * FROM events", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "all-reduce" in out
    assert "11000000" in out
    assert "and 2 more rows" in out
    assert "instruction, run: the line is too short" in " ".join(out.split())


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM read_text('{file}')", "SELECT * FROM '{file}'", "COPY ranks TO '{file}'", "INSTALL httpfs",
            "SET enable_external_access = true", "SELECT 1; SELECT 2", "", "SELEC 1", "SELECT x FROM ranks"]
)  # fmt: skip
def test_a_query_sees_the_tables_alone(sql: str, tables: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("mine\n")
    assert main(["query", str(tables), sql.format(file=file)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: TF112: cannot answer ")
    assert captured.out == ""
    assert file.read_text() == "mine\n"


def test_only_what_is_asked_for_is_made() -> None:
    run = two_cards().run()
    assert run.query("SELECT name FROM lanes").rows == (("stream 7",), ("stream 7",))
    assert "dependencies" not in vars(run)
    assert len(run.query("SHOW TABLES").rows) == len(TABLES)
    assert run.query("SELECT 1 AS one").to_pandas()["one"].tolist() == [1]


def test_names_that_no_encoding_holds_are_escaped(tmp_path: Path) -> None:
    build = Builder()
    build.event(build.lane(0, "stream \udcff", 0), 0, 5, "k\ud800", Kind.COMPUTE)
    folder = build.run("runs/\udcff").to_parquet(tmp_path / "tables")
    assert pl.read_parquet(folder / "events.parquet")["name"].to_list() == ["k\\ud800"]
    assert pl.read_parquet(folder / "segments.parquet")["lane"].to_list() == ["stream \\udcff"]


def test_without_duckdb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(TraceflowError, match=r"TF123.*traceflow-ml\[query\]"):
        two_cards().run().query("SELECT 1")


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    run, folder = two_cards().run(), tmp_path / "tables"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(TraceflowError, match="TF110"):
        run.to_parquet(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    run.to_parquet(folder, force=True)
    assert (folder / "mine.txt").read_text() == "mine"
    assert {path.stem for path in folder.glob("*.parquet")} == TABLES.keys()
    with pytest.raises(TraceflowError, match="TF110"):
        run.to_parquet(folder / "mine.txt", force=True)
    with pytest.raises(TraceflowError, match="TF114"):
        run.to_parquet(tmp_path / "none" / "tables")


def test_the_command_writes_a_folder_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Callable[[str], Path], capsys: Capture
) -> None:
    source = str(corpus("kineto/a100_event_sync.json.gz"))
    monkeypatch.chdir(tmp_path)
    assert main(["export", "parquet", source]) == 0
    assert main(["export", "parquet", source]) == 1
    assert "TF110" in capsys.readouterr().err
    counted = "SELECT kind, count(*) AS events FROM events GROUP BY kind ORDER BY kind"
    answers = []
    for given in (source, "traceflow-a100_event_sync"):
        assert main(["query", given, counted, "--format", "csv"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert "compute" in answers[0]
