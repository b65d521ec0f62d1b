"""What a page says of collective matmul: products that are cut into rounds, round by round, and those that could be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from traceflow.report.collective_matmul import observer, used_rows
from traceflow.report.grid import Column, Grid, bar, bars, counts, durations, names, percents, sizes, words
from traceflow.report.sections import left_out
from traceflow.result import Provenance

Row: TypeAlias = Mapping[str, Any]

_MOST_LOOPS, _MOST_ROUNDS, _MOST_CANDIDATES = 25, 64, 25
_NOT_RUN = "the trace holds no execution of it"
_NO_SIZE = "the program does not say it"
_FITS = {True: "yes", False: "no", None: "cannot be told"}


@dataclass(frozen=True, slots=True)
class RoundsSection:
    """Everything that a page says of products that are cut into rounds; `rounds` has one table for each of them."""

    loops: Grid | None
    rounds: tuple[Grid, ...]
    candidates: Grid | None


def rounds_section(result: Row) -> RoundsSection | None:
    """The section; None where no product is cut into rounds, and none could be.

    Args:
        result: The `result` of `traceflow show collective-matmul`.
    """
    loops, candidates = result["loops"], result["candidates"]
    if not loops and not candidates:
        return None
    told = [loop for loop in loops[:_MOST_LOOPS] if loop["per_round"]]
    return RoundsSection(
        _loops(loops) if loops else None,
        tuple(_rounds(loop) for loop in told),
        _candidates(candidates) if candidates else None,
    )


def _loops(loops: Sequence[Row]) -> Grid:
    shown = loops[:_MOST_LOOPS]
    took = {
        "permutes took": [loop["permute_ns"] for loop in shown],
        "exposed": [loop["exposed_ns"] for loop in shown],
        "products took": [loop["matmul_ns"] for loop in shown],
    }
    return Grid(
        "Cut into rounds",
        (
            names("name", [loop["name"] for loop in shown]),
            words("cutting", [loop["verdict"] for loop in shown]),
            words("form", [loop["form"] for loop in shown]),
            words("rounds", ["" if loop["rounds"] is None else f"{loop['rounds']:,}" for loop in shown]),
            _derived(sizes("sends", [loop["permute_bytes"] for loop in shown], absent=_NO_SIZE)),
            *durations(took, absent=_NOT_RUN),
            percents("hidden", [loop["overlapped_share"] for loop in shown], absent=_NOT_RUN),
            bars("exposed and hidden", [_split(loop, loop["permute_ns"]) for loop in shown]),
            _source([loop["source"] for loop in shown]),
        ),
        left_out(len(loops), len(shown), "loops"),
    )


def _rounds(loop: Row) -> Grid:
    """The rounds as one participant has them."""
    shown = loop["per_round"][:_MOST_ROUNDS]
    whose, at = observer(loop)
    took = {
        "permute": [one["permute_ns"] for one in shown],
        "exposed": [one["exposed_ns"] for one in shown],
        "product": [one["product_ns"] for one in shown],
    }
    longest = max((one["permute_ns"] or 0 for one in shown), default=0)
    return Grid(
        f"Rounds of {loop['name']} on {whose} {at}",
        (
            words("round", [str(one["round"]) for one in shown]),
            words("block of", [str(one["block"][at]) for one in shown]),
            words("rows", [used_rows(one, at) for one in shown]),
            words("fits", [_FITS[one["matches"]] for one in shown]),
            _derived(sizes("sends", [one["sent_bytes"] for one in shown], absent=_NO_SIZE)),
            *durations(took, absent="nothing is sent in the round, or the trace holds no execution of it"),
            bars("exposed and hidden", [_split(one, longest) for one in shown]),
            names("name", [one["product"] for one in shown]),
        ),
        left_out(len(loop["per_round"]), len(shown), "rounds"),
    )


def _candidates(candidates: Sequence[Row]) -> Grid:
    shown = candidates[:_MOST_CANDIDATES]
    took = {
        "saved": [one["saved_ns"] for one in shown],
        "exposed": [one["exposed_ns"] for one in shown],
        "product": [one["matmul_ns"] for one in shown],
    }
    saved, *measured = durations(took, absent=_NOT_RUN)
    return Grid(
        "Could be cut into rounds",
        (
            names("collective", [one["collective"] if one["program"] else one["operation"] for one in shown]),
            names("product", [one["matmul"] for one in shown]),
            counts("participants", [one["members"] for one in shown]),
            _derived(sizes("payload", [one["bytes"] for one in shown], absent=_NO_SIZE)),
            replace(saved, provenance=Provenance.MODELLED),
            *measured,
            _source([one["source"] for one in shown]),
        ),
        left_out(len(candidates), len(shown), "products"),
    )


def _derived(column: Column) -> Column:
    return replace(column, provenance=Provenance.DERIVED)


def _source(lines: Sequence[str | None]) -> Column:
    return words("source line", [PurePosixPath(line or "").name for line in lines])


def _split(row: Row, whole_ns: int | None) -> tuple[Any, ...]:
    """What is sent in the open, and what computation hides of it."""
    if row["permute_ns"] is None or row["exposed_ns"] is None:
        return ()
    parts = (("transfer", row["exposed_ns"]), ("compute", row["permute_ns"] - row["exposed_ns"]))
    return bar(parts, whole_ns or 0)
