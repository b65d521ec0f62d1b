"""Record three steps of a program with collectives on eight host devices, and count what the profiler wrote.

Run as a script: the folder to record into is its argument, and what it prints is JSON. The counts are made with
JAX's own reader of traces. The mesh numbers its devices backwards, so that a position in it is no device id.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.profiler import ProfileData
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

STEPS, LOOPS = 3, 4


def program(mesh: Mesh) -> Any:
    def body(x: Any) -> Any:
        y = jax.lax.pcast(jax.lax.psum(x, "b"), ("b",), to="varying")  # all-reduce over pairs
        z = jax.lax.ppermute(y, "a", [(i, (i + 1) % 4) for i in range(4)])
        return jax.lax.fori_loop(0, LOOPS, lambda _, c: jax.lax.all_gather(c, "a").sum(0) + x, z)

    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b")))


def record(folder: Path) -> dict[str, Any]:
    mesh = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("a", "b"))
    step = program(mesh)
    x = jax.device_put(np.ones((16, 16), np.float32), NamedSharding(mesh, P("a", "b")))
    jax.block_until_ready(step(x))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    before_ns = time.time_ns()
    jax.profiler.start_trace(folder, profiler_options=options)
    for number in range(STEPS):
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            result = step(x)
            with jax.profiler.TraceAnnotation("traceflow.ready"):
                jax.block_until_ready(result)
    jax.profiler.stop_trace()
    after_ns = time.time_ns()
    return {
        "mesh": [[device.id for device in row] for row in mesh.devices],
        "between_ns": [before_ns, after_ns],
        **counted(next(folder.rglob("*.xplane.pb"))),
    }


def counted(path: Path) -> dict[str, Any]:
    """Events of all lines, and HLO operations by name and device."""
    read = 0
    operations: Counter[tuple[str, int]] = Counter()
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                read += 1
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    operations[stats["hlo_op"], stats["device_ordinal"]] += 1
    return {"read": read, "operations": [[*key, count] for key, count in operations.items()]}


if __name__ == "__main__":
    print(json.dumps(record(Path(sys.argv[1]))))
