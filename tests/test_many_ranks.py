"""Traces of many ranks: whoever reads them, and wherever they lie, the answers are the same to the byte."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from simulator.engine import simulate
from simulator.kineto import write
from simulator.random_programs import Recipe, random_program

import traceflow
from traceflow import executors
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.executors import Processes, each, worth
from traceflow.report.json import dumps, envelope
from traceflow.run import Run
from traceflow.spread import open_spread

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

pytestmark = pytest.mark.xdist_group("many_ranks")
SEED = 5  # eight ranks on two hosts
QUESTIONS = ("summary", "clocks", "critical_path", "communication", "stragglers")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces of several ranks."""
    outcome = simulate(random_program(SEED, Recipe(clocks_ns=50_000)))
    assert len(outcome.program.threads) > 3
    return write(outcome, tmp_path_factory.mktemp("ranks") / "run")


def answers(source: Path | str, executor: Executor | None = None) -> list[str]:
    """What scripts get, for every question across ranks."""
    run = traceflow.open(source, executor=executor)
    return [dumps(envelope(getattr(run, question)(), run)) for question in QUESTIONS]


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of ranks that do nothing together but collectives in which everybody waits for everybody."""
    outcome = simulate(random_program(SEED, Recipe(symmetric=True, clocks_ns=50_000)))
    return write(outcome, tmp_path_factory.mktemp("even") / "run")


# Executors.


def processes() -> Executor:
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(3), processes], ids=["threads", "processes"])
def test_any_executor_gives_the_same_answers(traces: Path, make: Callable[[], Executor]) -> None:
    with make() as executor:
        assert answers(traces, executor) == answers(traces)


def test_processes_are_used_where_there_is_enough_to_do(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, asked = sorted(traces.iterdir()), list[str]()
    submit = Processes.submit

    def noted(self: Processes, *task: Any) -> Future[Any]:
        asked.append(Path(task[1]).name)
        return submit(self, *task)

    monkeypatch.setattr(Processes, "submit", noted)
    with Processes() as executor:
        assert worth(files, executor) is executor.threads
        assert worth(files[:1], executor) is None
    assert main(["show", "clocks", str(traces), "--format", "json"]) == 0
    here = capsys.readouterr().out
    assert not asked
    monkeypatch.setattr(executors, "_WORTH_BYTES", 1)
    assert main(["show", "clocks", str(traces), "--format", "json"]) == 0
    assert capsys.readouterr().out == here
    assert asked == [file.name for file in files]


def test_packed_files_count_as_what_they_hold(tmp_path: Path) -> None:
    for name, size in (("a.json", 10_000_000), ("b.json.gz", 30_000_000), ("c.json.gz", 20_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    with Processes() as executor:
        packed = [tmp_path / "b.json.gz", tmp_path / "b.json.gz"]
        assert worth(packed, executor) is executor
        # one process would wait for the other
        assert worth([tmp_path / "a.json", tmp_path / "c.json.gz"], executor) is executor.threads
        # and an interrupt for a thread
        assert worth([tmp_path / "a.json", tmp_path / "b.json.gz"], executor) is None


@pytest.mark.parametrize("damaged", [1, 2], ids=["one", "two"])
def test_the_first_error_is_told_in_its_one_line(traces: Path, tmp_path: Path, damaged: int) -> None:
    for file in sorted(traces.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for file in sorted(tmp_path.iterdir())[1 : 1 + damaged]:
        file.write_bytes(file.read_bytes()[:-400])
    told = []
    with ThreadPoolExecutor(2) as threads:
        for executor in (None, threads):
            with pytest.raises(TraceflowError) as error:
                traceflow.open(tmp_path, executor=executor)
            told.append(str(error.value))
    assert told[0].startswith(f"TF103: cannot read {sorted(tmp_path.iterdir())[1]}")
    assert len(set(told)) == 1


def ends(_: int) -> None:
    os._exit(1)


def test_a_process_that_ends_is_told_in_one_line() -> None:
    with processes() as executor, pytest.raises(TraceflowError, match="TF127: cannot read the traces"):
        each(ends, [(1,), (2,)], executor)


class Ended(Executor):
    """Whose processes end while tasks are still handed in."""

    def __init__(self) -> None:
        self.first: Future[Any] = Future()
        self.asked = 0

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        self.asked += 1
        if self.asked > 1:
            raise BrokenExecutor
        return self.first


def test_processes_that_end_before_all_tasks_are_handed_in_are_told_in_one_line() -> None:
    executor = Ended()
    with pytest.raises(TraceflowError, match="TF127: cannot read the traces"):
        each(ends, [(1,), (2,)], executor)
    assert executor.first.cancelled()


def column_bytes(table: Any) -> int:
    """Bytes of all arrays in a trace and its tables."""
    held = [getattr(table, field.name) for field in fields(table)]
    arrays = sum(part.nbytes for part in held if isinstance(part, np.ndarray))
    return arrays + sum(column_bytes(part) for part in held if hasattr(part, "__dataclass_fields__"))


def test_what_crosses_between_processes_is_columns(corpus: Callable[[str], Path]) -> None:
    trace = traceflow.open(corpus("kineto/a100_event_sync.json.gz")).evidence.trace
    texts = sum(map(len, (*trace.strings, *trace.lanes.name)))
    per_text = 12 * (len(trace.strings) + len(trace.lanes) + len(trace.groups))
    assert len(pickle.dumps(trace, 5)) < column_bytes(trace) + texts + per_text + 20_000  # nothing for each event


# Object stores.


@pytest.fixture
def stored(traces: Path) -> Iterator[str]:
    """The URL of the same folder in a store in memory."""
    import fsspec

    store = fsspec.filesystem("memory")
    for file in traces.iterdir():
        store.pipe(f"/many-ranks/run/{file.name}", file.read_bytes())
    yield "memory://many-ranks/run"
    store.rm("/many-ranks", recursive=True)


def without_input(answer: str) -> str:
    return answer.partition('"request"')[2]


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/rank*.json", "memory://many-*/run"])
def test_a_url_is_read_as_its_folder_is(stored: str, traces: Path, form: str) -> None:
    there, here = answers(form.format(stored)), answers(traces)
    assert list(map(without_input, there)) == list(map(without_input, here))


def test_a_url_may_name_one_file_or_a_folder_of_this_machine(stored: str, traces: Path) -> None:
    one = answers(traces / "rank1.pt.trace.json")
    assert list(map(without_input, answers(f"{stored}/rank1.pt.trace.json"))) == list(map(without_input, one))
    assert list(map(without_input, answers(traces.as_uri()))) == list(map(without_input, answers(traces)))


class Web:
    """A store that calls its files by whole URLs, as that of https does."""

    protocol = ("http", "https")

    def __init__(self, folder: Path, url: str) -> None:
        self.files = {f"{url}/{file.name}": file for file in folder.iterdir()}

    def find(self, path: str) -> list[str]:
        return [name for name in self.files if f"{name}/".startswith(f"{path}/")]

    def get(self, names: list[str], places: list[str]) -> None:
        for name, place in zip(names, places, strict=True):
            Path(place).write_bytes(self.files[name].read_bytes())


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/rank1.pt.trace.json"])
def test_files_that_are_called_by_whole_urls_keep_their_names(
    traces: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://traces.example.org/run"
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda asked: (Web(traces, url), asked))
    run = traceflow.open(form.format(url))
    assert {rank.source for rank in run.trace.ranks} <= {file.name for file in traces.iterdir()}
    assert len(run.trace.ranks) == (1 if form.endswith("json") else len(list(traces.iterdir())))


def test_an_address_with_a_query_names_one_file(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, query = "https://traces.example.org/run/rank1.pt.trace.json", "?key=a/b&kind=*"
    store = Web(traces, "https://traces.example.org/run")
    store.files[url + query] = store.files[url]
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda asked: (store, asked))
    assert [rank.source for rank in traceflow.open(url + query).trace.ranks] == ["rank1.pt.trace.json"]


def test_what_a_store_raises_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoCredentialsError(Exception):
        pass

    def refuse(_: str) -> list[str]:
        raise NoCredentialsError("unable to locate credentials\nsee the manual")

    store = Web(tmp_path, "s3://bucket")
    monkeypatch.setattr(store, "find", refuse)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda asked: (store, asked))
    assert main(["show", "clocks", "s3://bucket/run"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: TF101: cannot read s3://bucket/run: unable to locate credentials (NoCredentialsE")
    assert told.count("\n") == 1


def test_copies_go_with_the_run(stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = traceflow.open(stored)
    assert [folder.stat().st_mode & 0o077 for folder in tmp_path.iterdir()] == [0]
    del run
    assert not list(tmp_path.iterdir())
    with pytest.raises(TraceflowError):
        traceflow.open("memory://many-ranks/nothing")
    assert not list(tmp_path.iterdir())


def test_every_answer_about_a_url_on_the_command_line(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "all", stored]) == 0
    assert stored in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("memory://many-ranks/nothing", "TF101: cannot read memory://many-ranks/nothing: no such file or folder"),
        ("memory://many-ranks/bad/rank0.json", "TF103: cannot read memory://many-ranks/bad/rank0.json: it"),
        ("nosuch://bucket/run", "TF128: cannot reach nosuch://bucket/run: Protocol not known: nosuch"),
        ("abfs://bucket/run", "TF128: cannot reach abfs://bucket/run: "),
    ],
)
def test_what_cannot_be_reached_is_told_in_one_line(
    stored: str, url: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import fsspec

    del stored
    fsspec.filesystem("memory").pipe("/many-ranks/bad/rank0.json", b'{"traceEvents": [{"ph": "X"')
    assert main(["show", "clocks", url]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


# A cluster of two workers on loopback.


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two processes that wait for work."""
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    quiet = {"distributed.admin.system-monitor.gil.enabled": False, "distributed.worker.profile.enabled": False}
    dask = pytest.importorskip("dask", reason="the extra `cluster` is not installed")
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1", silence_logs=50
        ) as started,
    ):
        yield started


class Unlucky(Executor):
    """Passes tasks on, and kills a worker that has done one of them as soon as there is one."""

    def __init__(self, client: Client) -> None:
        self.client, self.executor, self.killed = client, client.get_executor(), 0

    def submit(self, function: Callable[..., Any], /, *task: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = self.executor.submit(function, *task, **options)
        if not self.killed:
            future.result()
            holding = [worker for worker, keys in self.client.has_what().items() if keys]
            self.killed = self.client.run(os.getpid, workers=holding[:1])[holding[0]]
            os.kill(self.killed, signal.SIGKILL)
        return future


@contextmanager
def client_of(cluster: LocalCluster) -> Iterator[Client]:
    from distributed import Client

    with Client(cluster.scheduler_address, set_as_default=False) as client:
        yield client


def test_a_cluster_gives_the_same_answers(
    traces: Path, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with client_of(cluster) as client:
        assert answers(traces, client.get_executor()) == answers(traces)
    for verb in ("clocks", "critical-path", "stragglers", "communication"):
        assert main(["show", verb, str(traces), "--format", "json"]) == 0
        here = capsys.readouterr().out
        assert main(["show", verb, str(traces), "--format", "json", "--cluster", cluster.scheduler_address]) == 0
        assert capsys.readouterr().out == here


def documents(run: Run, step: int | None) -> list[str]:
    """What scripts get of what is answered where the ranks are."""
    clocks, path, late = run.clocks(), run.critical_path(step=step), run.stragglers(step=step)
    return [dumps(envelope(result, run.subject)) for result in (clocks, path, late)]


@pytest.mark.parametrize("step", [None, 1], ids=["whole", "step"])
def test_what_crosses_ranks_is_answered_where_they_are(cluster: LocalCluster, even: Path, step: int | None) -> None:
    run = open_spread(even, cluster.scheduler_address)
    assert documents(run, step) == documents(traceflow.open(even), step)
    assert not run.is_here
    assert run.summary().ranks == traceflow.open(even).summary().ranks  # and the rest after they were brought here
    assert run.is_here


def test_ranks_are_done_again_where_a_worker_is_lost_midway(cluster: LocalCluster, even: Path) -> None:
    run = open_spread(even, cluster.scheduler_address)
    told = [dumps(envelope(run.clocks(), run.subject))]
    with client_of(cluster) as client:
        worker = next(worker for worker, keys in client.has_what().items() if keys)
        os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)
    assert [*told, *documents(run, None)[1:]] == documents(traceflow.open(even), None)
    assert not run.is_here


def test_ranks_that_need_more_of_each_other_are_brought_here(cluster: LocalCluster, traces: Path) -> None:
    run = open_spread(traces, cluster.scheduler_address)  # it holds transfers from rank to rank
    assert documents(run, None) == documents(traceflow.open(traces), None)
    assert run.is_here


def test_errors_on_a_cluster_are_those_of_one_process(cluster: LocalCluster, even: Path, tmp_path: Path) -> None:
    for file in sorted(even.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "again.json").write_bytes((tmp_path / "rank1.pt.trace.json").read_bytes())
    with pytest.raises(TraceflowError) as here:
        traceflow.open(tmp_path)
    with pytest.raises(TraceflowError) as there:
        open_spread(tmp_path, cluster.scheduler_address).clocks()
    assert str(there.value) == str(here.value)
    assert here.value.code == "TF108"


def test_a_lost_worker_changes_nothing(traces: Path, cluster: LocalCluster) -> None:
    with client_of(cluster) as client:
        unlucky = Unlucky(client)
        assert answers(traces, unlucky) == answers(traces)
        assert unlucky.killed


@pytest.mark.parametrize(
    ("address", "told"),
    [("127.0.0.1:1", "no scheduler answers there"), ("nosuch://x:1", "no cluster has such an address")],
)
def test_a_cluster_that_is_not_there(
    traces: Path, address: str, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    monkeypatch.setattr("traceflow.cluster._PATIENCE_S", 0.5)
    assert main(["show", "clocks", str(traces), "--cluster", address]) == 1
    assert f"TF127: cannot reach {address}: {told}" in capsys.readouterr().err


def test_a_cluster_without_its_package(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert main(["show", "clocks", str(traces), "--cluster", "127.0.0.1:1"]) == 1
    assert "TF128: cannot reach 127.0.0.1:1: distributed is not installed" in capsys.readouterr().err
