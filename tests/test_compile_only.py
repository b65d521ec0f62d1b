"""Compiling without running: every stage of a program, and the warnings that only standard error tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from traceflow.program.compilation import Stage, staged

pytest.importorskip("jax")

PROGRAM = """
import json, os
os.environ["JAX_NUM_CPU_DEVICES"] = "12"
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from traceflow.collectors.jax import compile_only
from traceflow.intent.intent import written_intent

mesh = jax.make_mesh((3, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
lies = lambda *axes: NamedSharding(mesh, P(*axes))

@jax.jit
def f(x):
    y = jax.lax.with_sharding_constraint(jnp.sin(x), lies("a", "b"))
    return jax.lax.with_sharding_constraint(y * 2, lies("b", "a"))

def argument(module):
    return next(module.shape[row] for row, opcode in enumerate(module.opcode)
                if opcode == "parameter" and module.computation[row] == module.entry)

found = compile_only(f, jax.ShapeDtypeStruct((24, 24), jnp.float32, sharding=lies("a", "b")))
print(json.dumps({
    "name": found.name,
    "written": [str(a.spec) for a in written_intent(found.written).arrays],
    "shapes": {stage: argument(getattr(found, stage)) for stage in ("written", "propagated", "partitioned", "compiled")},
    "warnings": found.warnings,
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], str]:
    """What the program says of its stages, and its standard error. A cache of compiled programs is warm already."""
    cache = tmp_path_factory.mktemp("cache")
    caching = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **caching},
        )
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_every_stage_is_kept_with_the_shapes_that_it_has(told: tuple[dict[str, object], str]) -> None:
    said, _ = told
    assert said["name"] == "jit_f"
    assert said["shapes"] == {
        "written": "f32[24,24]",
        "propagated": "f32[24,24]",
        "partitioned": "f32[8,6]",
        "compiled": "f32[8,6]",
    }
    assert said["written"] == ["P('a', 'b')", "P('a', 'b')", "P('b', 'a')"]


def test_the_partitioners_warning_is_kept_and_passed_on(told: tuple[dict[str, object], str]) -> None:
    said, error = told
    warnings = said["warnings"]
    assert isinstance(warnings, list)
    [line] = [line for line in warnings if "Involuntary full rematerialization" in line]
    assert line in error.splitlines()


def test_stages_are_told_by_the_names_of_passes_not_by_their_numbers() -> None:
    module = "module_0042.jit_train.step"
    names = [
        f"{module}.before_optimizations.hlo.pb",
        f"{module}.0004.spmd-partitioner.after_x.before_shardy-xla.hlo.pb",
        f"{module}.0009.spmd-partitioner.after_shardy-xla.before_spmd-partitioning.hlo.pb",
        f"{module}.0011.spmd-partitioner.after_spmd-partitioning.before_control-dep-rewriter.hlo.pb",
        f"{module}.sm_8.0_gpu_after_optimizations.hlo.pb.xz",
        f"{module}.sm_8.0_gpu_after_optimizations.txt",
        f"{module}.debug_options",
    ]
    assert staged([Path(name).name for name in names]) == {
        module: {
            Stage.WRITTEN: names[1],
            Stage.PROPAGATED: names[2],
            Stage.PARTITIONED: names[3],
            Stage.COMPILED: names[4],
        }
    }
