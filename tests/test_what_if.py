"""What-if against a simulator that runs the changed program anew, and by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from kineto_builder import Event as Recorded
from kineto_builder import KinetoTrace, opened

from traceflow.analyzers.changes import Drop, Scale
from traceflow.errors import TraceflowError
from traceflow.run import Run

CALL_NS = 50  # how long a call into the runtime keeps the host
STREAMS = (7, 8, 9)
WORKS = ("host", "kernel", "graph", "copy")

Operation = tuple[str, int, int]  # what, which stream or event, how long


@dataclass
class Program:
    """A host thread that works, launches kernels, records events, lets streams wait, and synchronises."""

    operations: list[Operation]
    launch_ns: int  # from the launch call to the earliest start of the kernel
    gap_ns: int  # between two things the host does
    return_ns: int  # from the end of what was waited for to the return of the call
    step_at: int | None = None  # the operation with which step 2 begins
    factor: Mapping[str, int] = field(default_factory=dict)
    dropped: str | None = None

    def named(self) -> list[str]:
        """Its work, by names of which none is part of another; of step 2 where there is one."""
        return [
            f"{what}{i}."
            for i, (what, _, _) in enumerate(self.operations)
            if what in WORKS and i >= (self.step_at or 0)
        ]

    def changed(self, change: Scale | Drop) -> Program:
        """The same program with some work, or with all launch latencies, scaled, or with some work gone."""
        name = change.pattern.replace("\\", "")
        return (
            replace(self, dropped=name)
            if isinstance(change, Drop)
            else replace(self, factor={name: int(change.factor)})
        )

    def trace(self) -> KinetoTrace:
        """What the profiler sees of it."""
        return _Machine(self).run()


class _Machine:
    """Runs a program; every rule of the device is written down here once, from the manual and not from the graph."""

    def __init__(self, program: Program) -> None:
        self.program, self.trace = program, KinetoTrace()
        self.now = 0  # of the host
        self.free = dict.fromkeys(STREAMS, 0)  # when all that was queued on a stream is done
        self.events: list[tuple[Recorded, int]] = []  # and when what they stand for is done
        self.launch_ns = program.launch_ns * program.factor.get("@launch", 1)

    def run(self) -> KinetoTrace:
        began = None
        for number, (what, which, duration) in enumerate(self.program.operations):
            if number == self.program.step_at:
                self.trace.step(1, 0, self.now)
                began = self.now
            name = f"{what}{number}."
            getattr(self, what)(name, which, duration * self.program.factor.get(name, 1))
            self.now += self.program.gap_ns
        self._block(max(self.free.values()), self.trace.device_synchronize)
        self.host("end", 0, 10)  # so that whatever ends the program lies within its step
        if began is not None:
            self.trace.step(2, began, self.now)
        return self.trace

    def host(self, name: str, _which: int, work: int) -> None:
        self.trace.host(name, self.now, self.now + work)
        self.now += work

    def kernel(self, name: str, which: int, work: int) -> None:
        start, stop = self._queue(name, STREAMS[which % 3], work)
        self.trace.kernel(name, start, stop, stream=STREAMS[which % 3], call=(self.now, self.now + CALL_NS))
        self.now += CALL_NS

    def graph(self, name: str, which: int, work: int) -> None:
        spans = [self._queue(name, STREAMS[which % 3], work) for _ in range(2)]
        self.trace.graph_launch(
            (self.now, self.now + CALL_NS), [(name, start, stop, STREAMS[which % 3]) for start, stop in spans]
        )
        self.now += CALL_NS

    def copy(self, name: str, which: int, work: int) -> None:
        start, stop = self._queue(name, STREAMS[which % 3], work)
        pageable, call = name + "Memcpy HtoD (Pageable -> Device)", self.now
        self._block(
            stop,
            lambda _, until: self.trace.copy(start, stop, stream=STREAMS[which % 3], call=(call, until), name=pageable),
        )

    def record(self, _name: str, which: int, _work: int) -> None:
        stream = STREAMS[which % 3]
        self.events.append((self.trace.record_event(self.now, stream=stream), self.free[stream]))
        self.now += 100

    def wait(self, _name: str, which: int, work: int) -> None:
        if self.events:
            event, done = self.events[work % len(self.events)]
            self.trace.stream_wait(self.now, event, stream=STREAMS[which % 3])
            self.free[STREAMS[which % 3]] = max(self.free[STREAMS[which % 3]], done)
            self.now += 100

    def sync_event(self, _name: str, which: int, _work: int) -> None:
        if self.events:
            event, done = self.events[which % len(self.events)]
            self._block(done, lambda start, stop: self.trace.event_synchronize(start, stop, event))

    def sync_stream(self, _name: str, which: int, _work: int) -> None:
        stream = STREAMS[which % 3]
        self._block(self.free[stream], lambda start, stop: self.trace.stream_synchronize(start, stop, stream=stream))

    def _queue(self, name: str, stream: int, work: int) -> tuple[int, int]:
        gone = name == self.program.dropped
        start = max(self.now + (0 if gone else self.launch_ns), self.free[stream])
        self.free[stream] = start + (0 if gone else work)
        return start, self.free[stream]

    def _block(self, done: int, call: Callable[[int, int], object]) -> None:
        until = max(self.now, done) + self.program.return_ns
        call(self.now, until)
        self.now = until


@st.composite
def programs(draw: st.DrawFn, *, steps: bool) -> Program:
    what = st.sampled_from([*WORKS, "kernel", "kernel", "record", "wait", "sync_event", "sync_stream"])
    operation = st.tuples(what, st.integers(0, 5), st.sampled_from([0, 50, 200, 500, 900]))
    operations = draw(st.lists(operation, min_size=1, max_size=12))
    return Program(
        [("host", 0, 60), *operations],
        launch_ns=draw(st.sampled_from([CALL_NS, 120, 400])),
        gap_ns=draw(st.sampled_from([1, 1, 30])),  # calls of one instant cannot be told apart, nor which came first
        return_ns=draw(st.sampled_from([0, 20])),
        step_at=draw(st.integers(1, len(operations))) if steps else None,
    )


def agrees(program: Program, change: Scale | Drop) -> bool:
    """Whether a prediction that calls itself exact is what the changed program takes."""
    step = None if program.step_at is None else 2
    with TemporaryDirectory() as before, TemporaryDirectory() as after:
        predicted = opened(Path(before), program.trace()).what_if(change, step=step)
        really = opened(Path(after), program.changed(change).trace()).critical_path(step=step).makespan_ns
    event(f"exact: {predicted.exact}, right: {predicted.predicted_ns == really}")
    return not predicted.exact or predicted.predicted_ns == really


@settings(max_examples=100)
@given(programs(steps=False), st.data(), st.sampled_from([0, 2, 3]))
def test_an_exact_prediction_is_what_the_changed_program_takes(
    program: Program, data: st.DataObject, factor: int
) -> None:
    assert agrees(program, Scale(data.draw(st.sampled_from(program.named())).replace(".", r"\."), factor))


@settings(max_examples=60)
@given(programs(steps=True), st.data(), st.sampled_from([0, 2, 3]))
def test_so_is_one_for_a_step(program: Program, data: st.DataObject, factor: int) -> None:
    if names := program.named():
        assert agrees(program, Scale(data.draw(st.sampled_from(names)).replace(".", r"\."), factor))


@settings(max_examples=60)
@given(programs(steps=False), st.sampled_from([0, 2, 3]))
def test_so_is_one_for_all_launches(program: Program, factor: int) -> None:
    assert agrees(program, Scale("@launch", factor))


@settings(max_examples=60)
@given(programs(steps=False), st.data())
def test_so_is_one_for_work_that_is_gone(program: Program, data: st.DataObject) -> None:
    if names := [name for name in program.named() if not name.startswith("host")]:
        assert agrees(program, Drop(data.draw(st.sampled_from(names)).replace(".", r"\.")))


# ---- by hand ----


def pair(folder: Path) -> Run:
    """Two ranks that compute, meet, and compute again; each kernel is launched and each launch is seen."""
    cards = KinetoTrace(0, 2), KinetoTrace(1, 2)
    for card, ready in zip(cards, (4_000, 9_000), strict=True):
        card.host("forward", 0, 1_000)
        card.kernel("matmul", 2_000, ready, call=(1_000, 1_500))
        card.all_reduce(ready, 11_000, sequence=0, stream=7)
        card.kernel("softmax", 11_000, 15_000)
    return opened(folder, *cards)


def test_nothing_changed_changes_nothing(tmp_path: Path) -> None:
    run = pair(tmp_path)
    for changes in ((), (Scale("matmul", 1),), (Scale("no such name", 7),)):
        answer = run.what_if(*changes)
        assert (answer.predicted_ns, answer.saved_ns, answer.exact) == (15_000, 0, True)
        assert answer.segments.to_dicts() == run.critical_path().segments.to_dicts()


@pytest.mark.parametrize(
    ("pattern", "saved_ns"),
    [
        ("matmul", 7_000),
        ("^mat", 7_000),
        ("max$", 4_000),
        ("m", 11_000),
        ("allreduce", 2_000),
        ("@transfer", 2_000),
        ("@compute", 11_000),
        ("@host", 1_000),
        ("@launch", 1_000),
        ("@copy", 0),
    ],
)
def test_a_pattern_selects_what_it_names(tmp_path: Path, pattern: str, saved_ns: int) -> None:
    assert pair(tmp_path).what_if(Scale(pattern, 0)).saved_ns == saved_ns


def test_changes_add_up_and_may_cost_time(tmp_path: Path) -> None:
    run = pair(tmp_path)
    assert run.what_if(Scale("matmul", 0), Scale("softmax", 0.25)).saved_ns == 10_000
    assert run.what_if(Scale("softmax", 0.5), Scale("softmax", 0.5)).saved_ns == 3_000
    assert run.what_if(Scale("@transfer", 3)).saved_ns == -4_000


def test_only_the_given_ranks_change(tmp_path: Path) -> None:
    run = pair(tmp_path)
    assert [run.what_if(Scale("matmul", 0), ranks=ranks).saved_ns for ranks in ([0], [1], [0, 1], [])] == [
        0,
        5_000,
        7_000,
        0,
    ]
    assert run.what_if(Scale("@launch", 0), ranks=[1]).saved_ns == 1_000


def test_waits_follow_and_are_never_scaled(tmp_path: Path) -> None:
    """Rank 0's call is wait for the most part: without its transfer it still ends with rank 1's arrival."""
    assert pair(tmp_path).what_if(Scale("allreduce", 0), ranks=[0]).saved_ns == 0


def test_without_rendezvous_nobody_waits_for_anybody(tmp_path: Path) -> None:
    answer = pair(tmp_path).what_if(Drop("@rendezvous"), Scale("matmul", 0), ranks=[1])
    assert (answer.predicted_ns, answer.exact) == (10_000, True)
    assert answer.segments.rank[-1] == 0


def test_drop_takes_the_lag_too_and_leaves_the_launch(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.host("forward", 0, 1_000)
    card.kernel("matmul", 5_000, 9_000, call=(1_000, 3_000))
    card.host("backward", 4_000, 8_000)
    run = opened(tmp_path, card)
    assert run.what_if(Scale("matmul", 0)).predicted_ns == 8_000
    assert run.what_if(Scale("backward", 0), Scale("matmul", 0)).predicted_ns == 5_000
    assert run.what_if(Scale("backward", 0), Drop("matmul")).predicted_ns == 4_000, "the call is made all the same"
    assert run.what_if(Drop("backward"), Drop("matmul")).predicted_ns == 3_000


def test_a_blocking_call_has_no_work_to_scale(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.kernel("long", 2_000, 9_000, call=(0, 1_000))
    card.device_synchronize(1_000, 10_000)
    assert opened(tmp_path, card).what_if(Scale("Synchronize", 0), Scale("@host", 1)).saved_ns == 0


def test_the_predicted_path_tiles_the_predicted_window(tmp_path: Path) -> None:
    run = pair(tmp_path)
    for change in (
        Scale("matmul", 0),
        Scale("@transfer", 5),
        Drop("softmax"),
        Drop("@rendezvous"),
        Scale("@launch", 3),
    ):
        answer = run.what_if(change)
        ends = (answer.segments.start_ns + answer.segments.duration_ns).tolist()
        assert [0, *ends[:-1]] == answer.segments.start_ns.tolist()
        assert ends[-1] == answer.predicted_ns


def test_a_launch_that_hides_behind_a_kernel_makes_longer_launches_a_bound(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.kernel("before", 0, 56_000)
    card.kernel("queued", 56_000, 60_000, call=(50_000, 51_000))
    run = opened(tmp_path, card)
    assert not run.what_if(Scale("@launch", 2)).exact, "if it takes 6 us, twice that is seen"
    assert run.what_if(Scale("@launch", 0)).exact, "shorter, it stays hidden"


def test_a_gap_behind_a_kernel_may_be_the_launch(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.kernel("before", 0, 57_000)
    card.kernel("next", 60_000, 64_000, call=(50_000, 51_000))
    run = opened(tmp_path, card)
    for factor in (0, 0.5, 2):
        assert not run.what_if(Scale("@launch", factor)).exact
    assert not run.what_if(Scale("before", 2)).exact


@pytest.mark.parametrize(
    "change",
    [
        Scale("@nothing", 0),
        Scale("(", 0),
        Scale("matmul", -1),
        Scale("matmul", float("inf")),
        Scale("matmul", float("nan")),
        Scale("@rendezvous", 0),
    ],
)
def test_a_change_that_means_nothing_is_refused(tmp_path: Path, change: Scale) -> None:
    with pytest.raises(TraceflowError) as refused:
        pair(tmp_path).what_if(change)
    assert refused.value.code == "TF112"
