"""A parallel plan, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN, size_text

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_SHOWN = 4  # members of a group, before the last


def plan_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """Sizes, groups, shapes, payloads, weights and factors.

    Args:
        result: The `result` of `traceflow plan`.
        top: Longest tables, in rows.
    """
    yield Text("\n".join(_sizes(result)))
    yield from _groups(result["groups"])
    yield from _shapes(result["shapes"], top)
    yield from _payload(result["payload"], top)
    yield from _dispatchers(result["dispatchers"])
    yield from _weights(result["weights"], top)
    yield from _scaling(result["gradient_scaling"])
    yield from _moves(result["moves"], top)


def _sizes(result: Row) -> Iterator[str]:
    sizes = result["sizes"]
    ranks = f"{result['ranks_per_stage']:,} ranks"
    dense = f"TP {sizes['tp']} x GTP {sizes['gtp']} x CP {sizes['cp']} x DP {result['data_parallel']:,}"
    expert = f"ETP {sizes['etp']} x EGTP {sizes['egtp']} x EP {sizes['ep']} x EDP {result['expert_data_parallel']:,}"
    stages = f"{sizes['pp']} stages of {ranks} each" if sizes["pp"] > 1 else ranks
    yield f"{stages}: dense {dense}, experts {expert}"
    in_turn = "" if result["micro_batches"] is None else f", {result['micro_batches']:,} in turn for a step"
    yield f"{result['batch_parallel']:,} micro-batches at once{in_turn}; sequences cut in {result['context_parallel_runtime']:,}"
    if (held := result["experts_per_rank"]) is not None:
        yield f"{held:,} of {result['model']['experts']:,} experts per rank and layer"
    if (tokens := result["tokens"]) is not None:
        yield f"{tokens['per_rank']:,} tokens per rank, {tokens['sent_rows']:,} rows sent to experts{_room(tokens)}"


def _room(tokens: Row) -> str:
    if tokens["capacity"] is None:
        return f"; {tokens['rows_per_expert']:,} per expert if balanced"
    return f", {tokens['capacity']:,} for each expert; at least {tokens['least_padding_rows']:,} of them empty"


def _groups(groups: Mapping[str, Sequence[Sequence[int]]]) -> Iterator[RenderableType]:
    """One row per kind with more than one member; the members are those of rank 0."""
    rows = [
        (name, f"{len(of[0]):,}", f"{len(of):,}", _members(next(ranks for ranks in of if 0 in ranks)))
        for name, of in groups.items()
        if len(of[0]) > 1
    ]
    if rows:
        yield heading("Groups, those that rank 0 is in")
        yield Rows(("kind", "size", "count", "name"), rows)


def _members(ranks: Sequence[int]) -> str:
    """Ranks of a group: the first few, and the last.

    Example:
        >>> _members([0, 2, 4, 6, 8, 10]), _members([0, 64])
        ('0, 2, 4, 6, ..., 10', '0, 64')
    """
    if len(ranks) <= _SHOWN + 1:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:_SHOWN]))}, ..., {ranks[-1]}"


def _shapes(shapes: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if shapes:
        rows = [(_shape(row), row["dtype"], f"{row['stage']}: {row['name']}") for row in shapes[:top]]
        yield heading("Shapes on one rank, of one layer and micro-batch (~ if routing is balanced)")
        yield Rows(("shape", "type", "name"), rows)
        yield from left_out(shapes, top, "others")


def _shape(row: Row) -> str:
    sizes = ",".join(UNKNOWN if size is None else str(size) for size in row["shape"])
    return f"{'~' if row['expected'] else ''}[{sizes}]"


def _payload(payload: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if payload:
        rows = [
            (
                size_text(row["bytes"]),
                _leaving(row),
                row["group"],
                _way(row),
                f"{row['operation']} ({row['collective']})",
            )
            for row in payload[:top]
        ]
        yield heading("Payload of one rank, per layer and micro-batch or step (~ if routing is balanced)")
        yield Rows(("puts in", "leaves", "group", "way", "name"), rows)
        yield from left_out(payload, top, "others")


def _leaving(row: Row) -> str:
    return f"{'~' if row['expected'] else ''}{size_text(row['remote_bytes'])}"


def _way(row: Row) -> str:
    """Through a layer, or once a step."""
    return "step" if row["per"].endswith("step") else str(row["direction"])


def _dispatchers(dispatchers: Sequence[Row]) -> Iterator[RenderableType]:
    if dispatchers:
        rows = [
            (
                f"{'~' if row['expected'] else ''}{row['rows']:,}",
                size_text(row["bytes"]),
                f"{row['topk']} of {row['destinations']:,}",
                row["name"],
            )
            for row in dispatchers
        ]
        yield heading("What a rank has before its experts begin, by dispatcher")
        yield Rows(("rows", "bytes", "destinations", "name"), rows)


def _weights(weights: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if weights:
        rows = [
            (f"{row['parameters']:,}", size_text(row["bytes"]), row["of"], row["name"].replace("_", " "))
            for row in weights[:top]
        ]
        yield heading("What a rank keeps")
        yield Rows(("parameters", "bytes", "of", "name"), rows)
        yield from left_out(weights, top, "others")


def _scaling(scaling: Mapping[str, Row]) -> Iterator[RenderableType]:
    names = {"sum": "the reduction adds up", "avg": "it averages", "per_token": "the loss counts per token"}
    rows = [(f"{scaling[way]['dense']:g}", f"{scaling[way]['expert']:g}", names[way]) for way in names]
    yield heading("Factors of gradients before their reduction, where")
    yield Rows(("dense", "expert", "name"), rows)


def _moves(moves: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if moves:
        rows = [
            (str(row["expert"]), f"{row['ep_rank']}.{row['local']}", f"{row['next_ep_rank']}.{row['next_local']}")
            for row in moves[:top]
        ]
        yield heading("Experts when EP changes (rank of EP, and number there)")
        yield Rows(("expert", "before", "after"), rows)
        yield from left_out(moves, top, "others")
