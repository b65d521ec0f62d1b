"""The flight recorder joined with traces of gloo: files written by hand, a law, and a recorded run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources import ROOT

from traceflow.analyzers.matching import match
from traceflow.trace._gloo import Call, Operators, Record, find_collectives
from traceflow.trace.canonical import merge
from traceflow.trace.flight_recorder import with_flight_recorder, with_recording_beside
from traceflow.trace.kineto import read_kineto
from traceflow.trace.model import ABSENT, Group, Trace

US = 1_000
BASE_NS = 1_790_857_026_000_000_000
BEGIN_US = 5_000_000
RECORDED = ROOT / "tests" / "data" / "gloo"  # by torch_scripts/collectives.py with four processes
MAIN = 50  # number of the thread that issues

WORLD = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
PAIR = {"name": "5", "desc": "pair", "ranks": "[2, 3]"}


def event(name: str, thread: int, start_us: int, length_us: int, **arguments: object) -> str:
    """An event as Kineto spells it; times count from the beginning of the trace."""
    category = "cpu_op" if name.startswith("c10d") else "user_annotation"
    head = f'"ph": "X",\n    "cat": "{category}",\n    "name": "{name}",\n    "pid": 50,\n    "tid": {thread}'
    said = json.dumps({key.replace("_", " "): value for key, value in arguments.items()})
    times = f'"ts": {BEGIN_US + start_us}.000,\n    "dur": {length_us}.000\n    '
    return f'  {{\n    {head},\n    {times},\n    "args": {{\n      {said[1:-1]}\n    }}\n  }}'


def executed(name: str, thread: int, start_us: int, shape: Sequence[int] = (4,), length_us: int = 10) -> str:
    return event(f"gloo:{name}", thread, start_us, length_us, Input_Dims=[list(shape)])


def issued(name: str, start_us: int, *values: str) -> str:
    return event(f"c10d::{name}", MAIN, start_us, 2, Concrete_Inputs=["", "", *values])


def noted(
    name: str, group: dict[str, str], sequence: int, at_us: int, position: int = 0, **said: Any
) -> dict[str, Any]:
    """An entry of the recorder."""
    return {
        "pg_id": 0 if group is WORLD else 1,
        "process_group": [group["name"], group["desc"]],
        "collective_seq_id": sequence,
        "op_id": position or sequence,
        "profiling_name": f"gloo:{name}",
        "time_created_ns": BASE_NS + (BEGIN_US + at_us) * US,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        **said,
    }


def written(folder: Path, events: Iterable[str], entries: Iterable[dict[str, Any]] | None) -> Path:
    """Write the trace of rank 2, which starts with an event at 0, and a dump beside it."""
    body = ",\n".join([event("begin", MAIN, 0, 1), *events])
    file = folder / "rank00002.pt.trace.json"
    file.write_text(
        f'{{\n  "schemaVersion": 1,\n  "distributedInfo": {{"rank": 2, "world_size": 4}},\n'
        f'  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": [\n{body}\n  ]\n}}\n'
    )
    if entries is not None:
        dump = {"version": "2.10", "entries": list(entries), "pg_config": {"0": WORLD, "5": PAIR}}
        (folder / "rank00002.flight_recorder.json").write_text(json.dumps(dump))
    return file


def read(file: Path) -> Trace:
    return with_recording_beside(read_kineto(file), file)


def calls(trace: Trace) -> list[tuple[str, str | None, int]]:
    """(name, group, sequence) of each communication, in order of start."""
    c, events = trace.communications, trace.events
    order = np.argsort(events.start_ns[c.event], kind="stable")
    groups = [trace.groups[g].name if g >= 0 else None for g in c.group]
    return [(trace.strings[events.name[c.event[i]]], groups[i], int(c.sequence[i])) for i in order]


def test_a_collective_gets_its_group_its_number_and_its_payload(tmp_path: Path) -> None:
    events = [issued("allreduce_", 10), executed("all_reduce", 60, 30), executed("all_gather", 61, 60)]
    entries = [
        noted("all_reduce", WORLD, 7, 11, input_sizes=[[2], [2]], input_dtypes=["Float", "Double"]),
        noted("all_gather", WORLD, 8, 51),
    ]
    trace = read(written(tmp_path, events, entries))
    assert calls(trace) == [("gloo:all_reduce", "0", 7), ("gloo:all_gather", "0", 8)]
    assert trace.groups == (Group("0", (0, 1, 2, 3), 4),)
    assert sorted(trace.communications.payload_bytes) == [16, 24]
    assert trace.tally.notes == ()


def test_a_flow_leads_from_the_operator_to_its_execution(tmp_path: Path) -> None:
    events = [issued("allreduce_", 10), executed("all_reduce", 60, 30)]
    trace = read(written(tmp_path, events, [noted("all_reduce", WORLD, 1, 11)]))
    names = [trace.strings[code] for code in trace.events.name]
    assert [(names[a], names[b]) for a, b in zip(trace.flows.source, trace.flows.target, strict=True)] == [
        ("c10d::allreduce_", "gloo:all_reduce")
    ]


def test_threads_tell_groups_that_do_the_same_apart(tmp_path: Path) -> None:
    # The pair's thread is the first to start, although its collective was the second to be issued.
    events = [executed("all_reduce", 70, 30), executed("all_reduce", 60, 40), executed("all_reduce", 61, 55)]
    entries = [noted("all_reduce", WORLD, 1, 11), noted("all_reduce", PAIR, 4, 12), noted("all_reduce", WORLD, 2, 13)]
    trace = read(written(tmp_path, events, entries))
    assert [call[1:] for call in calls(trace)] == [("5", 4), ("0", 1), ("0", 2)]


def test_what_groups_did_before_the_trace_claims_no_thread(tmp_path: Path) -> None:
    events = [executed("all_reduce", thread, at) for thread, at in ((60, 30), (70, 31), (71, 32))]
    entries = [noted("all_reduce", PAIR, k, k - 100) for k in range(1, 9)]
    entries += [noted("all_reduce", group, k, 10 + k) for group, k in ((WORLD, 1), (PAIR, 9), (PAIR, 10))]
    assert [call[1:] for call in calls(read(written(tmp_path, events, entries)))] == [("0", 1), ("5", 9), ("5", 10)]


def test_sizes_tell_executions_apart_that_overtook_each_other(tmp_path: Path) -> None:
    events = [executed("all_reduce", 60, 30, (8,)), executed("all_reduce", 61, 31, (4,))]
    entries = [noted("all_reduce", WORLD, 1, 11), noted("all_reduce", WORLD, 2, 12, input_sizes=[[8]])]
    assert [call[2] for call in calls(read(written(tmp_path, events, entries)))] == [2, 1]


def test_what_was_issued_before_the_trace_may_be_executed_in_it(tmp_path: Path) -> None:
    events = [executed("all_reduce", 60, 5), executed("all_reduce", 60, 30)]
    entries = [noted("all_reduce", WORLD, k, at) for k, at in ((1, -30), (2, -20), (3, 11))]
    assert [call[2] for call in calls(read(written(tmp_path, events, entries)))] == [2, 3]


def test_what_was_issued_last_may_not_be_executed_in_the_trace(tmp_path: Path) -> None:
    events = [executed("all_reduce", 60, 30)]
    entries = [noted("all_reduce", WORLD, k, at) for k, at in ((1, -30), (2, 11), (3, 12))]
    assert [call[2] for call in calls(read(written(tmp_path, events, entries)))] == [2]


def test_what_the_recorder_has_forgotten_was_first(tmp_path: Path) -> None:
    events = [executed("all_reduce", 60, at) for at in (30, 50, 70)]
    entries = [noted("all_reduce", WORLD, k, at) for k, at in ((8, 40), (9, 60))]
    trace = read(written(tmp_path, events, entries))
    assert [call[1:] for call in calls(trace)] == [(None, ABSENT), ("0", 8), ("0", 9)]
    (note,) = trace.tally.notes
    assert note.code == "TF310"
    assert "1 of 3" in note.text
    assert note.affects


def test_contradicting_times_are_left_alone(tmp_path: Path) -> None:
    events = [executed("all_reduce", 60, 30), executed("barrier", 60, 50)]
    entries = [noted("all_reduce", WORLD, 1, 45), noted("barrier", WORLD, 2, 46)]
    assert calls(read(written(tmp_path, events, entries))) == [("gloo:all_reduce", None, -1), ("gloo:barrier", "0", 2)]


def test_splits_and_roots_are_those_of_the_operator(tmp_path: Path) -> None:
    events = [
        issued("alltoall_base_", 10, "", "[5, 3]", "[2, 6]", "False"),
        executed("all_to_all", 60, 15, (8, 4)),
        issued("alltoall_base_", 30, "", "[]", "[]", "False"),
        executed("all_to_all", 60, 35, (8, 4)),
        issued("broadcast_", 50, "1", "0"),
        executed("broadcast", 60, 55),
    ]
    entries = [
        noted("all_to_all", PAIR, 1, 11, input_sizes=[[8, 4]]),
        noted("all_to_all", PAIR, 2, 31, input_sizes=[[8, 4]]),
        noted("broadcast", PAIR, 3, 51),
    ]
    trace = read(written(tmp_path, events, entries))
    c = trace.communications
    splits = [[trace.strings[k] if k >= 0 else None for k in column] for column in (c.in_splits, c.out_splits)]
    assert splits == [["[2, 6]", None, None], ["[5, 3]", None, None]]
    assert c.source.tolist() == [ABSENT, ABSENT, 3]


def test_a_transfer_gets_its_ends_and_its_tag(tmp_path: Path) -> None:
    events = [
        *(issued("send", 10, "1", "7"), executed("send", MAIN, 11)),
        *(issued("recv_", 30, "1", "9"), executed("recv", MAIN, 31)),
    ]
    # Two positions are left out between the collectives of the pair, and none between those of the world.
    entries = [
        *(noted("barrier", WORLD, 1, -10), noted("all_reduce", PAIR, 1, -9)),
        *(noted("barrier", WORLD, 2, 60), noted("all_reduce", PAIR, 2, 61, position=4)),
    ]
    trace = read(written(tmp_path, events, entries))
    c = trace.communications
    assert (c.source.tolist(), c.destination.tolist(), c.key.tolist()) == ([2, 3], [3, 2], [7, 9])
    assert [(trace.events.start_ns[row], trace.events.end_ns[row]) for row in c.event] == [
        (10 * US, 21 * US),
        (32 * US, 41 * US),  # from the end of its operator on, its thread does nothing else
    ]
    assert trace.tally.repaired == {
        "transfer begins where it was posted": 2,
        "receive begins where its thread waited for it": 1,
    }


def transfers(tmp_path: Path, events: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
    """When sends and receives are said to begin and to end, in us, where there is no group but all."""
    file = written(tmp_path, events, None)
    (tmp_path / "rank00002.flight_recorder.json").write_text(json.dumps({"entries": [], "pg_config": {"0": WORLD}}))
    trace = read(file)
    spans: dict[str, list[tuple[int, int]]] = {"send": [], "recv": []}
    for row in trace.communications.event.tolist():
        name = trace.strings[trace.events.name[row]].removeprefix("gloo:")
        spans[name].append((int(trace.events.start_ns[row]) // US, int(trace.events.end_ns[row]) // US))
    return {name: sorted(times) for name, times in spans.items()}


def test_a_transfer_does_not_cover_what_its_thread_did_before_it_waited(tmp_path: Path) -> None:
    events = [
        *(issued("send", 10, "3", "0"), executed("send", MAIN, 11, length_us=31)),
        *(issued("recv_", 13, "1", "0"), executed("recv", MAIN, 14, length_us=46)),
        event("aten::mm", MAIN, 20, 20),
    ]
    assert transfers(tmp_path, events) == {"send": [(10, 13)], "recv": [(42, 60)]}


def test_receives_on_one_channel_are_awaited_one_after_another(tmp_path: Path) -> None:
    events = [
        *(issued("recv_", 10, "1", "0"), executed("recv", MAIN, 11, length_us=39)),
        *(issued("recv_", 13, "1", "0"), executed("recv", MAIN, 14, length_us=56)),
        event("aten::mm", MAIN, 20, 20),
    ]
    assert transfers(tmp_path, events) == {"send": [], "recv": [(40, 50), (50, 70)]}


def test_receives_on_one_channel_keep_their_order(tmp_path: Path) -> None:
    events = [
        *(issued("recv_", 10, "1", "0"), executed("recv", MAIN, 11, length_us=59)),
        *(issued("recv_", 13, "1", "0"), executed("recv", MAIN, 14, length_us=36)),  # the later one is awaited first
    ]
    assert transfers(tmp_path, events) == {"send": [], "recv": [(10, 70), (13, 50)]}


def test_a_group_with_room_for_as_many_transfers_as_there_are_has_them(tmp_path: Path) -> None:
    events = [issued("send", 10, "3", "0"), executed("send", MAIN, 11)]
    entries = [noted("barrier", WORLD, 1, -10), noted("barrier", WORLD, 2, 60, position=3)]
    trace = read(written(tmp_path, events, entries))  # the pair has no collectives, but might have transfers
    assert [group.name for group in trace.groups] == ["0"]
    assert trace.communications.destination.tolist() == [3]


def test_a_group_without_room_for_a_transfer_has_not_made_it(tmp_path: Path) -> None:
    events = [issued("send", 10, "1", "0"), executed("send", MAIN, 11)]
    trace = read(written(tmp_path, events, [noted("barrier", WORLD, 1, -10), noted("barrier", WORLD, 2, 60)]))
    assert [group.name for group in trace.groups] == ["5"]
    assert trace.communications.destination.tolist() == [3]


def test_without_collectives_the_only_group_has_the_transfers(tmp_path: Path) -> None:
    file = written(tmp_path, [issued("send", 10, "1", "0"), executed("send", MAIN, 11)], None)
    (tmp_path / "rank00002.flight_recorder.json").write_text(json.dumps({"entries": [], "pg_config": {"0": WORLD}}))
    assert read(file).communications.destination.tolist() == [1]


def test_a_transfer_that_several_groups_may_have_made_is_left_alone(tmp_path: Path) -> None:
    events = [issued("send", 10, "1", "0"), executed("send", MAIN, 11)]
    trace = read(written(tmp_path, events, [noted("barrier", WORLD, 1, -10)]))
    assert calls(trace) == [("gloo:send", None, ABSENT)]
    assert "1 of 1" in trace.tally.notes[0].text


def test_without_arguments_names_and_order_have_to_do(tmp_path: Path) -> None:
    events = [issued("allreduce_", 10), executed("all_reduce", 60, 30)]
    trace = read_kineto(written(tmp_path, events, None))
    dump: dict[str, Any] = {
        "entries": [noted("all_reduce", WORLD, 1, 11, input_sizes=[[99]])],
        "pg_config": {"0": WORLD},
    }
    for form in (dump, json.dumps(dump).encode()):
        assert calls(with_flight_recorder(trace, form, rank=2)) == [("gloo:all_reduce", "0", 1)]
    assert calls(with_flight_recorder(trace, dump, rank=1)) == calls(trace)  # no such rank is in the trace


def test_a_trace_without_a_dump_stays_as_it_is(tmp_path: Path) -> None:
    file = written(tmp_path, [executed("all_reduce", 60, 30)], None)
    trace = read_kineto(file)
    assert with_recording_beside(trace, file) is trace


def test_a_trace_without_gloo_stays_as_it_is(tmp_path: Path) -> None:
    file = written(tmp_path, [issued("allreduce_", 10)], [noted("all_reduce", WORLD, 1, 11)])
    trace = read_kineto(file)
    assert with_recording_beside(trace, file) is trace


@pytest.mark.parametrize(
    "dump", [b"", b"{", b"[]", b"[" * 5000, b'{"entries": [{"profiling_name": 3}]}', b'{"entries": 7}']
)
def test_a_damaged_dump_is_noted(tmp_path: Path, dump: bytes) -> None:
    file = written(tmp_path, [executed("all_reduce", 60, 30)], [])
    (tmp_path / "rank00002.flight_recorder.json").write_bytes(dump)
    trace = read(file)
    assert calls(trace) == [("gloo:all_reduce", None, ABSENT)]
    assert [note.code for note in trace.tally.notes] == ["TF310"]


LABELS = st.tuples(st.sampled_from(["gloo:all_reduce", "gloo:all_gather"]), st.integers(1, 2))
ISSUED = st.lists(st.tuples(st.integers(0, 2), LABELS, st.booleans(), st.integers(0, 30)), max_size=40)


@given(ISSUED)
def test_every_execution_is_found_however_groups_interleave(what: list[tuple[int, tuple[str, int], bool, int]]) -> None:
    """Three groups with two threads each, which take what their group is given in order, at their leisure."""
    records, executions, truth, free_ns = [], [], {}, [0, 0, 0]
    for k, (group, (name, size), second, delay_ns) in enumerate(what):
        records.append(Record(group, name, k, k, 10 * k, size, 4 * size))
        start_ns = free_ns[group] = max(10 * k, free_ns[group]) + 1 + delay_ns
        executions.append(Call(k, name, 100 + 2 * group + second, start_ns, start_ns + 1, size, ()))
        truth[k] = group, k
    executions.sort(key=lambda call: call.start_ns)
    groups = [Group(str(name), (0, 1), 2) for name in range(3)]
    found = {
        one.event: (one.group, one.sequence) for one in find_collectives(executions, Operators([]), records, groups, 0)
    }
    assert found == truth


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """A run of four processes, recorded on gloo."""
    return merge([read(file) for file in sorted((RECORDED / "torch").iterdir())])


def test_in_a_recorded_run_every_call_is_found(recorded: Trace) -> None:
    assert (recorded.communications.group >= 0).all()
    assert recorded.tally.notes == ()
    sizes = Counter(len(recorded.groups[g].members) for g in recorded.communications.group)
    of_pair, of_data, of_world = 3 + 4, 4, 1 + 4 + 2 + 1 + 2  # of the world: one, bursts, ring, barrier, gradients
    assert sizes == {2: 4 * 2 * of_pair, 4: 4 * 2 * (of_data + of_world)}


def test_in_a_recorded_run_calls_of_a_group_agree_on_all_members(recorded: Trace) -> None:
    assert (match(recorded).instance >= 0).all()
    c = recorded.communications
    said: dict[tuple[Group, int], set[tuple[int, int]]] = {}
    for g, sequence, operation, payload in zip(c.group, c.sequence, c.operation, c.payload_bytes, strict=True):
        if recorded.strings[operation] == "allreduce":
            said.setdefault((recorded.groups[g], int(sequence)), set()).add((int(operation), int(payload)))
    assert {len(what) for what in said.values()} == {1}


def test_in_a_recorded_run_splits_are_those_of_the_program(recorded: Trace) -> None:
    c, found = recorded.communications, Counter[tuple[int, str, str]]()
    for row in np.flatnonzero(c.in_splits >= 0):
        found[int(c.member[row]), recorded.strings[c.in_splits[row]], recorded.strings[c.out_splits[row]]] += 1
    expected = Counter[tuple[int, str, str]]()
    for k in (1, 2):
        for first in (0, 2):
            expected[first, f"[{k + 1}, 2]", f"[{k + 1}, 3]"] += 1
            expected[first + 1, f"[3, {k + 2}]", f"[2, {k + 2}]"] += 1
    assert found == expected


def test_in_a_recorded_run_nobody_ends_before_the_last_has_come(recorded: Trace) -> None:
    matches, events = match(recorded), recorded.events
    end_ns = events.end_ns[recorded.communications.event]
    sends = np.array([recorded.strings[code] == "send" for code in recorded.communications.operation])
    assert (end_ns >= matches.last_ns)[~sends].all()  # a send may end before it is received
    assert 0 < sends.sum() < len(sends)


def test_in_a_recorded_run_each_execution_follows_its_operator(recorded: Trace) -> None:
    flows, names = recorded.flows, np.array(recorded.strings, object)[recorded.events.name]
    issuing = np.array([name.startswith("c10d::") for name in names[flows.source]])
    target = flows.target[issuing]
    executed_rows = recorded.communications.event
    collectives = [row for row in executed_rows if not names[row].endswith(("send", "recv"))]
    assert sorted(target) == sorted(collectives)
    assert (recorded.events.start_ns[target] > recorded.events.start_ns[flows.source[issuing]]).all()
