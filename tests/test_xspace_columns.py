"""Lines of an XSpace by columns: the same events and statistics as protobuf reads, and the same refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from traceflow.program.schema import message
from traceflow.trace._xla_columns import WANTED, Stats, Texts, first_of_pairs, numbered_pairs
from traceflow.trace._xla_decoded import plane_lines
from traceflow.trace._xla_lines import LONGEST, Count

KINDS = {0: "zero", 1: "dot", 2: "end: dot", 7: "mm"}
NAMES = {1: "hlo_op", 2: "run_id", 3: "not read", 4: "program_id", 5: "run_id", 9: "dot.1"}
SHARED = {7: ("flops", 8), 1: ("run_id", 3)}

Told = list[tuple[str, int, int, list[tuple[str, str]]]]


def plane(*lines: bytes) -> Any:
    made = message("XPlaneOfBytes")(name="/host:CPU", lines=lines)
    for key, name in {**NAMES, 11: "flops"}.items():
        made.stat_metadata.add(key=key).value.name = name
    for key, name in KINDS.items():
        kind = made.event_metadata.add(key=key)
        kind.value.name = name
        if key in SHARED:
            kind.value.stats.add(metadata_id=11 if key == 7 else 2, int64_value=SHARED[key][1])
    return made


def texts() -> dict[int, str]:
    return {**NAMES, 11: "flops"}


def by_columns(content: bytes) -> tuple[Told, dict[str, int]]:
    count = Count()
    (line,) = plane_lines(plane(content), texts(), count)
    events = zip(line.names.listed(), line.start_ns.tolist(), line.end_ns.tolist(), range(len(line)), strict=True)
    told = [(name, start, end, spelled(line.stats.said(row))) for name, start, end, row in events]
    return told, dict(count.dropped)


def by_objects(content: bytes) -> tuple[Told, dict[str, int]]:
    """Event by event, as protobuf has them."""
    line, told, dropped = message("XLine").FromString(content), Told(), dict[str, int]()
    for event in line.events:
        name = KINDS.get(event.metadata_id, "")
        timed = abs(event.offset_ps) < LONGEST and 0 <= event.duration_ps < LONGEST and abs(line.timestamp_ns) < LONGEST
        if why := {"": "without a name", "end: dot": "end marker"}.get(name) or (not timed and "without a valid time"):
            dropped[why] = dropped.get(why, 0) + 1
            continue
        stats: dict[str, object] = dict([SHARED[event.metadata_id]]) if event.metadata_id in SHARED else {}
        stats |= {
            texts()[stat.metadata_id]: held(stat) for stat in event.stats if texts().get(stat.metadata_id) in WANTED
        }
        start_ns = line.timestamp_ns + event.offset_ps // 1000
        end_ns = line.timestamp_ns + (event.offset_ps + event.duration_ps) // 1000
        told.append((name, start_ns, end_ns, spelled(stats)))
    return told, dropped


def held(stat: Any) -> object:
    which = stat.WhichOneof("value")
    return texts().get(stat.ref_value, "") if which == "ref_value" else getattr(stat, which) if which else None


def spelled(stats: dict[str, object]) -> list[tuple[str, str]]:
    """Comparable even where a value is no number."""
    return sorted((name, repr(value)) for name, value in stats.items())


def both(content: bytes) -> tuple[Told, dict[str, int]] | None:
    """What columns and objects agree on; None where both refuse."""
    try:
        expected = by_objects(content)
    except DecodeError:
        with pytest.raises(DecodeError):
            by_columns(content)
        return None
    assert by_columns(content) == expected
    return expected


def test_an_event_written_byte_by_byte() -> None:
    stat = bytes([0x22, 5, 0x08, 2, 0x20, 0xAC, 0x02])  # field 4: number 2, signed 300
    event = bytes([0x08, 7, 0x10, 0xE8, 0x07, 0x18, 0xD0, 0x0F]) + stat  # kind 7, 1000 ps, for 2000 ps
    line = bytes([0x08, 4, 0x12, 1, 0x61, 0x18, 5, 0x22, len(event)]) + event
    assert by_columns(line) == ([("mm", 6, 8, [("flops", "8"), ("run_id", "300")])], {})


ODD = {
    "group": b"\x0b\x08\x01\x0c",
    "number of ten bytes": b"\x18" + b"\x80" * 9 + b"\x01",
    "number of ten bytes, one bit too high": b"\x18" + b"\x80" * 9 + b"\x02",
    "number of eleven bytes": b"\x18" + b"\x80" * 10 + b"\x01",
    "tag in more bytes than it needs": b"\x88\x80\x00\x05",
    "tag of no field": b"\x00\x01",
    "length beyond the end": b"\x22\xff\xff\xff\xff\x07",
    "negative length": b"\x22" + b"\xff" * 9 + b"\x01",
    "text that is no UTF-8": b"\x12\x01\xc3",
    "text of a statistic that is no UTF-8": b"\x2a\x01\xc3",
    "text that is": b"\x12\x02\xc3\xa9",
    "field that nobody knows": b"\x92\x01\x01a",
    "known field, written in another way": b"\x20\x05\x0d1234",
    "end of a group that never began": b"\x0c",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_is_odd_is_taken_or_refused_as_protobuf_does(odd: bytes, depth: int) -> None:
    for _ in range(depth):
        odd = b"\x22" + bytes([len(odd)]) + odd
    both(b"\x22\x02\x08\x01" + odd + b"\x22\x02\x08\x07")


def test_a_line_cut_anywhere_is_taken_or_refused_as_protobuf_does() -> None:
    line = message("XLine")(id=300, name="python", timestamp_ns=7)
    stats = [{"metadata_id": 1, "str_value": "dot.1"}, {"metadata_id": 2, "double_value": 1.5}]
    line.events.add(metadata_id=7, offset_ps=1_000_000, duration_ps=-1, stats=stats)
    content = line.SerializeToString()
    assert [both(content[:end]) is None for end in (len(content) - 1, len(content))] == [True, False]
    for end in range(len(content)):
        both(content[:end])


INT = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 12))
WORD = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 12))
VALUES = st.one_of(
    st.builds(lambda value: {"double_value": value}, st.floats()),
    st.builds(lambda value: {"uint64_value": value}, WORD),
    st.builds(lambda value: {"int64_value": value}, INT),
    st.builds(lambda value: {"str_value": value}, st.text(max_size=4)),
    st.builds(lambda value: {"bytes_value": value}, st.binary(max_size=4)),
    st.builds(lambda value: {"ref_value": value}, WORD),
    st.just({}),
)
STAT = st.builds(
    lambda key, value: message("XStat")(metadata_id=key, **value), st.sampled_from([*NAMES, 0, 77]), VALUES
)
EVENT = st.builds(
    lambda kind, offset, duration, stats: message("XEvent")(
        metadata_id=kind, offset_ps=offset, duration_ps=duration, stats=stats
    ),
    st.sampled_from([*KINDS, 99]),
    INT,
    INT,
    st.lists(STAT, max_size=4),
)
LINE = st.builds(
    lambda number, name, at, events: bytes(
        message("XLine")(id=number, name=name, timestamp_ns=at, events=events).SerializeToString()
    ),
    INT,
    st.text(max_size=3),
    st.one_of(st.just(0), INT),
    st.lists(EVENT, max_size=5),
)


@settings(max_examples=300, deadline=None)
@given(LINE)
def test_columns_hold_what_objects_hold(content: bytes) -> None:
    assert both(content) is not None


@settings(max_examples=300, deadline=None)
@given(LINE, st.data())
def test_damage_is_refused_where_protobuf_refuses_it(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content or b"\x22")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        damaged = damaged or bytearray(b"\x08")
    both(bytes(damaged))


NUMBERS = st.lists(st.tuples(st.one_of(st.integers(-2, 2), INT), st.one_of(st.integers(-2, 2), INT)), max_size=20)


@given(NUMBERS)
def test_pairs_are_numbered_in_their_order(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs, np.int64).reshape(-1, 2).T
    number, first = numbered_pairs(one, other)
    assert [sorted(set(pairs))[at] for at in number.tolist()] == pairs
    assert [pairs.index(pair) for pair in sorted(set(pairs))] == first.tolist()
    assert first_of_pairs(one, other).tolist() == sorted(first.tolist())


VALUE = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=3), st.booleans(), st.none(), st.just([1]))


@given(st.lists(st.dictionaries(st.sampled_from(["run_id", "hlo_op", "else"]), VALUE), max_size=6))
def test_statistics_given_one_by_one_are_kept_as_they_are(said: list[dict[str, object]]) -> None:
    stats = Stats.of(said)
    known = [{name: value for name, value in one.items() if name != "else"} for one in said]
    assert [spelled(stats.said(row)) for row in range(len(said))] == [spelled(one) for one in known]
    assert stats.has("hlo_op").tolist() == ["hlo_op" in one for one in known]
    assert stats.holds("hlo_op").tolist() == [bool(one.get("hlo_op")) for one in known]
    having = np.array(["hlo_op" in one for one in known], bool)
    assert stats.take(having).texts("hlo_op").listed() == [str(one["hlo_op"]) for one in known if "hlo_op" in one]


@given(st.lists(st.sampled_from("abc")))
def test_texts_are_numbered_in_the_order_of_the_rows(listed: list[str]) -> None:
    made, places = Texts.of(listed), {"c": 0}
    code = made.coded_in(places)
    assert [list(places)[at] for at in code.tolist()] == listed
    assert list(places) == list(dict.fromkeys(["c", *listed]))
    assert made.counted() == {text: listed.count(text) for text in dict.fromkeys(listed)}


def test_a_double_keeps_its_bits() -> None:
    line = message("XLine")()
    line.events.add(metadata_id=1, stats=[{"metadata_id": 1, "double_value": -0.0}])
    ((_, _, _, stats),), _ = by_columns(line.SerializeToString())
    assert stats == [("hlo_op", "-0.0"), ("run_id", "3")]
