"""Several JAX processes that record to one path: one capture of all ranks.

As a script, this is one of the processes: a path to record to, its rank, the number of processes, and a free port.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from record_processes import DEVICES, join

import traceflow
from traceflow.capture import Capture

PROCESSES = 2


def record(capture: Path) -> None:
    """Record two steps that sum over all devices of all processes, and then record them again in their place."""
    import jax

    mesh = jax.make_mesh((len(jax.devices()),), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    given = jax.sharding.NamedSharding(mesh, jax.P("all"))
    numbers = np.arange(len(jax.devices()), dtype=np.float32)
    x = jax.make_array_from_callback(numbers.shape, given, lambda index: numbers[index])
    total = traceflow.instrument(jax.jit(lambda x: x.sum()), name=f"total{jax.process_index()}")
    for force in (False, True):
        with traceflow.record(capture, framework="jax", steps=2, force=force) as recorder:
            sums = [float(total(x)) for _ in range(3)]
            fetched = recorder.step().fetch({"parts": x, "total": total(x)})
            recorder.attach("parts.npz", {"parts": np.concatenate(fetched["parts"])})
        assert sums == [numbers.sum()] * 3
        assert fetched["total"] == numbers.sum()


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes with four devices each recorded together."""
    pytest.importorskip("jax", reason="recording needs JAX")
    path = tmp_path_factory.mktemp("together") / "a"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, str(path)]
    running = [
        subprocess.Popen(
            [*command, f"{rank}", f"{PROCESSES}", f"{port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0].decode() for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * PROCESSES, "\n".join(outputs)
    return path


def test_there_is_one_complete_capture_and_nothing_else(capture: Path) -> None:
    assert [path.name for path in capture.parent.iterdir()] == ["a"]
    attached = {f"rank{rank:05d}.parts.npz" for rank in range(PROCESSES)}
    assert {path.name for path in capture.iterdir()} == {"manifest.json", "plugins", "program", *attached}
    manifest = Capture.open(capture).manifest
    assert manifest is not None
    assert manifest.complete
    assert [one.process.rank for one in (manifest, *manifest.peers)] == [0, 1]
    assert [len(one.steps) for one in (manifest, *manifest.peers)] == [2, 2]


def test_tensorboard_finds_one_run_with_a_trace_of_each_rank(capture: Path) -> None:
    (run,) = (capture / "plugins" / "profile").iterdir()
    host = socket.gethostname()
    spaces = sorted(file.name for file in run.glob("*.xplane.pb"))
    assert spaces == [f"rank{rank:05d}.{host}.xplane.pb" for rank in range(PROCESSES)]


def test_each_process_fetches_its_own_parts_of_an_array_and_attaches_them(capture: Path) -> None:
    for rank in range(PROCESSES):
        with np.load(capture / f"rank{rank:05d}.parts.npz") as attached:
            assert attached["parts"].tolist() == list(range(rank * DEVICES, (rank + 1) * DEVICES))


def test_it_opens_as_one_run_of_all_ranks(capture: Path) -> None:
    run = traceflow.open(capture)
    assert [rank.rank for rank in run.trace.ranks] == [0, 1]
    lanes = run.trace.lanes
    devices = {(int(rank), int(device)) for rank, device in zip(lanes.rank, lanes.device, strict=True) if device >= 0}
    assert len(devices) == PROCESSES * DEVICES
    assert [sum(1 for rank, _ in devices if rank == one) for one in range(PROCESSES)] == [DEVICES] * PROCESSES
    assert sorted(run.trace.marks.step[run.trace.marks.step >= 0].tolist()) == [1, 1, 2, 2]


def test_the_program_is_there_once(capture: Path) -> None:
    files = [file.name.partition(".") for file in (capture / "program").iterdir()]
    assert {suffix for _, _, suffix in files} == {
        "json",
        "stablehlo.txt",
        "before_optimizations.hlo.pb",
        "hlo.txt",
        "hlo.pb",
    }
    assert len({name for name, _, _ in files}) == 1  # each process gave it another name


if __name__ == "__main__":
    place, rank, processes, port = sys.argv[1:]
    join(int(rank), int(processes), int(port))
    record(Path(place))
