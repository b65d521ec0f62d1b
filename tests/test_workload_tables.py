"""Tables of what a run computed: operations, routing of experts, sharding and memory, against known answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handmade import MS, two_cards
from jsonschema import Draft202012Validator

from traceflow.cli import main
from traceflow.export.schema import TABLES
from traceflow.run import Run
from traceflow.schemas import schema

pytest.importorskip("duckdb", reason="queries need DuckDB")


def rows_of(run: Run, sql: str) -> list[tuple[object, ...]]:
    """What a query finds."""
    return [*run.query(sql).rows]


def test_operations_took_what_their_events_did() -> None:
    sql = "SELECT name, kind, executions, measured_ns, flops, payload_bytes, waits FROM operations ORDER BY name"
    assert rows_of(two_cards().run(), sql) == [
        ("a", "kernel", 1, 4 * MS, None, 0, False),
        # 2 ms on each card, after the last had arrived; of its 1 MiB each sends 2 (n - 1) / n
        ("all-reduce", "collective", 2, 4 * MS, 0, 2 << 20, False),
        ("b", "kernel", 1, 9 * MS, None, 0, False),
    ]


def test_without_hardware_there_are_no_bounds() -> None:
    sql = "SELECT count(*), count(compute_bound_ns), count(memory_bound_ns), count(link_bound_ns) FROM operations"
    assert rows_of(two_cards().run(), sql) == [(3, 0, 0, 0)]


def test_every_expert_of_a_layer_has_its_assignments() -> None:
    from test_moe import shown

    run = shown()
    sql = "SELECT layer, assignments, dropped, executed_rows, capacity_padding_rows, hot_expert FROM moe_layers"
    assert rows_of(run, sql) == [(0, 100, 20, 240, 160, 0)]
    assert rows_of(run, "SELECT assignments FROM moe_experts ORDER BY expert") == [(80,), (10,), (4,), (6,)]
    assert rows_of(run, "SELECT sum(executed_rows) FROM moe_experts") == [(240,)]
    stages = rows_of(run, "SELECT stage, direction, sum(work_ns) FROM moe_stages GROUP BY ALL")
    assert {(stage, direction) for stage, direction, _ in stages} == {
        (one.stage, one.direction) for one in run.moe().stages
    }


def test_arrays_and_collectives_that_are_not_as_meant_are_found() -> None:
    pytest.importorskip("jax")
    from test_sharding_report import run_of

    run = run_of("weight_gathered_over_another_axis", "all-gather")
    found = rows_of(
        run, "SELECT op, executions, total_ns FROM program_collectives WHERE NOT expected AND executions > 0"
    )
    assert found == [("all-gather", 4, 2000)]  # two devices, twice, 500 ns each
    arrays = rows_of(run, "SELECT name, global_shape, local_shape FROM arrays WHERE role = 'argument' ORDER BY name")
    assert {name for name, _, _ in arrays} >= {"w"}
    assert all(str(shape).startswith("[") for _, shape, _ in arrays)


def test_what_allocators_had_handed_out_at_most() -> None:
    from test_perfetto import remembering

    sql = "SELECT rank, device, source, events, peak_bytes, reserved_peak_bytes FROM allocators"
    assert rows_of(remembering(), sql) == [(0, 0, "snapshot", 2, 64, None)]


def test_tables_of_an_earlier_version_still_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = two_cards().run().to_parquet(tmp_path / "tables")
    (folder / "operations.parquet").unlink()
    assert main(["query", str(folder), "SELECT count(*) AS n FROM segments", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["result"]["rows"] == [{"n": 2}]
    assert [*Draft202012Validator(schema("query")).iter_errors(document)] == []
    assert main(["query", str(folder), "SELECT * FROM operations"]) == 1
    told = capsys.readouterr().err
    assert "TF112" in told
    assert "the tables are ranks, lanes" in told
    assert "operations," not in told.partition("the tables are")[2]


def test_a_schema_notices_what_is_wrong() -> None:
    validator = Draft202012Validator(schema("query"))
    good = {
        "schema_version": 1,
        "kind": "query",
        "inputs": ["a"],
        "request": {"sql": "SELECT 1 AS n"},
        "data_quality": None,
        "result": {"columns": [{"name": "n", "type": "INTEGER"}], "rows": [{"n": 1}]},
    }
    assert [*validator.iter_errors(good)] == []
    assert [*validator.iter_errors({**good, "data_quality": {}})] != []
    assert [*validator.iter_errors({**good, "result": {"columns": [], "rows": []}})] != []


def test_every_table_of_work_is_there_without_rows_where_nothing_is_told() -> None:
    run = two_cards().run()
    for name in ("allocators", "moe_layers", "moe_experts", "moe_stages", "arrays", "program_collectives"):
        assert name in TABLES
        assert rows_of(run, f"SELECT count(*) FROM {name}") == [(0,)]  # noqa: S608  # a fixed name
