"""The assertions that users put into their own tests."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from sharding_programs import CASES

from traceflow.intent import intent
from traceflow.testing import assert_sharding


def test_a_program_that_is_sharded_as_meant_passes_and_returns_what_was_found() -> None:
    step, arguments = CASES["tensor_parallel_layers"].build()
    found = assert_sharding(step, *arguments)
    assert [(row.operation, row.mesh_axes) for row in found.collectives] == [("all-reduce", ("model",))]


def test_one_that_is_not_fails_with_one_line_for_each_finding() -> None:
    step, arguments = CASES["weight_gathered_over_another_axis"].build()
    with pytest.raises(AssertionError) as failure:
        assert_sharding(step, *arguments)
    first, *lines = str(failure.value).splitlines()
    assert first == "not sharded as meant:"
    assert len(lines) == 1
    assert lines[0].startswith("  TF231 ")
    assert "sharding_programs.py:" in lines[0]
    assert "every device assembles all of w" in lines[0]
    assert lines[0].endswith(".")


def test_what_is_stated_beside_the_program_counts() -> None:
    step, arguments = CASES["tensor_parallel_layers"].build()
    assert_sharding(step, *arguments, intent=intent(expect=["all-reduce(model)"]))
    with pytest.raises(AssertionError, match=r"TF246 .*all-reduce"):
        assert_sharding(step, *arguments, intent=intent(expect=["reduce-scatter(model)"]))
