"""The section of the report on sharding, of programs that are compiled for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_memory import executing

pytest.importorskip("jax")

from pages import Node, page_of, rows, section, table_called
from sharding_programs import CASES
from test_sharding import compiled

from traceflow.analyzers.sharding import sharding
from traceflow.evidence import Evidence
from traceflow.program.module import base_opcode
from traceflow.run import Run


def run_of(name: str, opcode: str) -> Run:
    """A run in which two devices execute an instruction of a program twice, each time for 500 ns."""
    stages = compiled(CASES[name])
    program = stages.compiled
    assert program is not None
    instruction = next(row for row in range(len(program)) if base_opcode(program.opcode[row]) == opcode)
    run = Run(Evidence(executing(program, instruction), {program.program_id: program}), ("a",))
    run.__dict__["compilations"] = (stages,)  # cached: the stages that a capture would hold
    return run


@pytest.fixture(scope="module")
def page() -> Node:
    return page_of(run_of("weight_gathered_over_another_axis", "all-gather"))


def test_a_mismatch_is_a_finding_with_its_source(page: Node) -> None:
    told = next(node for node in section(page, "findings").all("div") if "TF231" in node.text)
    assert "every device assembles all of w" in told.text
    assert "sharding_programs.py:67" in next(code.text for code in told.all("code"))


def test_a_mismatch_is_listed_with_what_it_cost(page: Node) -> None:
    [cells] = rows(table_called(page, "Not as meant"))
    code, source, instructions, sends, executions, in_all, _ = cells
    assert code == "TF231"
    assert source.endswith("sharding_programs.py:67")
    assert instructions == "collective-permute, all-gather"
    assert (sends, executions, in_all) == ("2.000", "4", "2.000")


def test_arrays_and_collectives_are_listed_with_verdicts(page: Node) -> None:
    arrays = {
        cells[0]: cells[1:7]
        for cells in rows(table_called(page, "Arrays, those that lie otherwise than intended first"))
    }
    assert arrays["w"] == ["argument", "f32[1024, 512]", "P('data')", "P('data')", "[512, 512]", "as meant"]
    gather = next(
        c for c in rows(table_called(page, "Collectives, those that are not expected first")) if c[0] == "all-gather"
    )
    assert gather[1:3] == ["model", "no"]
    assert gather[6] == "w"


def test_redundancy_is_told_with_its_reason(page: Node) -> None:
    assert "The mesh is data 2 x model 4. Redundancy: 4.00 (model splits no array)." in section(page, "sharding").text


def test_the_array_of_the_mismatch_is_drawn(page: Node) -> None:
    picture = section(page, "sharding").all("figure", "mesh")[0]
    assert picture.all("figcaption")[0].text == "w P('data'): 2 pieces of [512, 512], each on 4 devices, along model"
    labels = [title.text for title in picture.all("title")]
    assert labels[5] == "device 5 (data 1, model 1): 512:1024, :"
    colours = [rect.attributes["fill"] for rect in picture.all("rect")]
    assert len(set(colours[:4])) == len(set(colours[4:])) == 1
    assert colours[0] != colours[4]


def test_the_section_can_be_reached(page: Node) -> None:
    assert "#run0-sharding" in [link.attributes["href"] for link in page.all("nav")[0].all("a")]


def test_a_program_that_is_as_meant_has_no_mismatches() -> None:
    page = page_of(run_of("tensor_parallel_layers", "all-reduce"))
    assert "Not as meant" not in page.text
    assert [c[:3] for c in rows(table_called(page, "Collectives, those that are not expected first"))] == [
        ["all-reduce", "model", "yes"]
    ]


def test_a_run_without_divided_programs_has_no_section() -> None:
    program = compiled(CASES["tensor_parallel_layers"]).compiled
    assert program is not None
    page = page_of(Run(Evidence(executing(program), {}), ("a",)))
    assert not [node for node in page.all("section") if node.attributes["id"] == "run0-sharding"]
    assert "#run0-sharding" not in page.text


def test_a_mismatch_costs_what_ran_in_the_window() -> None:
    run = run_of("weight_gathered_over_another_axis", "all-gather")
    path = run.critical_path()
    window = replace(path.window, start_ns=int(np.median(run.trace.events.start_ns)))
    late = int((run.trace.events.start_ns >= window.start_ns).sum())
    assert 0 < late < 4
    found = sharding(run.compilations, trace=run.trace, path=replace(path, window=window))
    gather = next(row for row in found.collectives if row.operation == "all-gather")
    assert (gather.occurrences, gather.time_ns) == (late, 500 * late)


def test_what_is_found_in_a_program_without_a_mesh_is_told() -> None:
    run = run_of("experts_computed_and_masked", "dot")
    found = run.sharding()
    assert [finding.code for finding in found.findings] == ["TF244"]
    run.__dict__["sharding"] = lambda **_: replace(found, mesh=None)
    page = page_of(run)
    assert "TF244" in section(page, "findings").text
    assert not [node for node in page.all("section") if node.attributes["id"] == "run0-sharding"]
