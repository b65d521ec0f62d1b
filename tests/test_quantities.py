"""Every quantity that is printed has a definition, and nothing is defined that there is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from documented import page_of

from traceflow.schemas import KINDS, schema

UNITS = ("_ns", "_bytes", "_flops", "_share", "_ratio", "_ppb")
TABLE = re.compile(r"^\| (`[^|]*) \| ([^|]+) \| ([^|]*)\|$", re.MULTILINE)
DEFINED = {
    name: (meaning, rests)
    for names, meaning, rests in TABLE.findall(page_of("quantities.md"))
    for name in re.findall(r"`(\w+)`", names)
}


def names_in(part: Any) -> Iterator[str]:
    """The names of all properties below a part of a schema."""
    for inner in part if isinstance(part, list) else part.values() if isinstance(part, dict) else ():
        yield from names_in(inner)
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        yield from part["properties"]


PRINTED = {name for kind in KINDS for name in names_in(schema(kind)) if name.endswith(UNITS)}


def test_there_are_quantities() -> None:
    assert {"exposed_ns", "live_peak_bytes", "slowdown_ratio"} <= PRINTED


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_a_quantity_that_is_printed_is_defined(name: str) -> None:
    meaning, rests = DEFINED[name]
    assert meaning.strip()
    assert set(rests.split(", ")) <= {"m", "c", "d", "r"} or rests.strip(" ,mcdr") == ""


def test_nothing_else_is_defined() -> None:
    assert DEFINED.keys() - PRINTED == set()


def test_every_count_of_a_mixture_of_experts_is_defined() -> None:
    counts = {name for name in names_in(schema("moe")) if name.endswith("_rows")} | {"assignments", "dropped"}
    assert {name for name in counts if f"`{name}`" not in page_of("moe.md")} == set()


def test_every_column_of_a_table_with_a_unit_says_what_it_rests_on() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]*) \| ([^|]*) \|", page_of("tables.md"), re.MULTILINE)
    with_unit = [(name, provenance) for name, unit, provenance in rows if unit.strip()]
    assert len(with_unit) > 40
    assert {provenance.strip() for _, provenance in with_unit} <= {
        "measured",
        "derived",
        "compiler",
        "recorded",
        "modelled",
    }
