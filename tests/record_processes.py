"""Processes that record one workload together over loopback, with four simulated devices each.

A script that starts all of them with `launch`; each of them is this script with a folder for its captures, the
workload, its rank, the number of processes, and a port that is free.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

DEVICES = 4


def launch(folder: Path, workload: str, processes: int = 2) -> None:
    """Record `workload` ("gather", "scatter" or "moe") into `folder/rank0`, `folder/rank1` and so on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, workload, f"{processes}", f"{port}"]
    running = [
        subprocess.Popen(
            [*command, f"{rank}", folder / f"rank{rank}"], stderr=subprocess.STDOUT, stdout=subprocess.PIPE
        )
        for rank in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0].decode() for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), "\n".join(outputs)


def join(rank: int, processes: int, port: int) -> int:
    """Start JAX as one of the processes; how many devices they have together."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=rank)
    return len(jax.devices())


def record(folder: Path, workload: str, devices: int) -> None:
    """Record two steps of the workload in this process."""
    from traceflow.collectors.workloads.collective_matmul import record_collective_matmul
    from traceflow.collectors.workloads.moe_jax import record_moe
    from traceflow.collectors.workloads.moe_jax_layers import Size

    if workload == "moe":
        size = Size(tokens=64, model=16, hidden=8, experts=8, choices=2, capacity_factor=1.0)
        record_moe(folder, variants=["capacity"], devices=devices, steps=2, size=size)
    else:
        record_collective_matmul(folder, layout=workload, devices=devices, size=(16, 64, 64), steps=2)


if __name__ == "__main__":
    workload, processes, port, rank, folder = sys.argv[1:]
    record(Path(folder), workload, join(int(rank), int(processes), int(port)))
