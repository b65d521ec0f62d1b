"""Compile a JAX program without running it, and keep every stage: a whole audit of its sharding, in CI as well.

What only values tell, whether copies of an array are alike, is asked of the results of a program that has run.

The compiler's own warnings go to the process's standard error from C++. They are caught there, at the level of the
file descriptor, kept, and passed on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from traceflow.errors import TraceflowError
from traceflow.program.compilation import Compilation, compilation, staged
from traceflow.result import Finding, Provenance, Severity

_DUMP = {"xla_dump_hlo_as_proto": True, "xla_dump_hlo_pass_re": "spmd|shard"}


def compile_only(fn: Callable[..., Any], *abstract_args: Any, **abstract_kwargs: Any) -> Compilation:
    """Compile a function for arguments that need not exist, and keep the program at every stage.

    Nothing runs and no array is made, so that a host with as many virtual devices as the mesh is enough
    (`XLA_FLAGS=--xla_force_host_platform_device_count=8`).

    Args:
        fn: What is compiled, jitted or not.
        abstract_args: Arrays, or `jax.ShapeDtypeStruct` with the sharding they are meant to have.
        abstract_kwargs: The same, by name.

    Returns:
        The program as written, propagated, partitioned and compiled, with what the compiler printed.

    Raises:
        TraceflowError: TF145 where XLA wrote no dump.
        Exception: Whatever JAX raises for a function that it cannot trace or compile.

    Example:
        >>> import jax, jax.numpy as jnp                                                      # doctest: +SKIP
        >>> compile_only(jnp.sin, jax.ShapeDtypeStruct((8,), jnp.float32)).compiled.opcode     # doctest: +SKIP
    """
    import jax

    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    lowered = jitted.lower(*abstract_args, **abstract_kwargs)
    with tempfile.TemporaryDirectory(prefix="traceflow-") as folder:
        with _uncached(), _standard_error() as printed:
            lowered.compile(compiler_options={"xla_dump_to": folder, **_DUMP})
        found = staged([file.name for file in Path(folder).iterdir()])
        if not found:
            why = "XLA wrote no dump"
            raise TraceflowError("TF145", "cannot keep the stages of a program", why, "update jaxlib")
        module, files = next(iter(found.items()))
        contents = {stage: (Path(folder) / name).read_bytes() for stage, name in files.items()}
    return compilation(module.partition(".")[2], contents, tuple(printed))


def differing_replicas(tree: Any) -> tuple[Finding, ...]:
    """Arrays whose copies on several devices should be the same, and are not.

    JAX takes one copy for the value of all. They can differ where `shard_map` claims replication that it does not
    check (`check_vma=False`), and where arrays are made of parts of single devices. Copies are compared exactly, with
    NaN equal to itself; those of other processes are not seen.

    Args:
        tree: Arrays in any structure, such as the results of a step; what is no array is passed over.

    Returns:
        A finding (TF249) for each array of which two copies of one piece differ.

    Example:
        >>> import jax.numpy as jnp                                                           # doctest: +SKIP
        >>> assert not differing_replicas(step(state, batch))                                 # doctest: +SKIP
    """
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    found = (_differing(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, jax.Array))
    return tuple(finding for finding in found if finding is not None)


def _differing(name: str, array: Any) -> Finding | None:
    import jax
    import numpy as np
    from jax import numpy as jnp

    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    numeric = jnp.issubdtype(array.dtype, np.inexact)
    first: dict[object, Any] = {}
    differing = []
    for shard in array.addressable_shards:
        one, other = first.setdefault(str(shard.index), shard), shard
        if not np.array_equal(np.asarray(one.data), np.asarray(other.data), equal_nan=numeric):
            differing += [one.device.id, other.device.id]
    if not differing:
        return None
    devices = sorted(set(differing))
    return Finding(
        code="TF249",
        severity=Severity.ERROR,
        title=f"copies of {name or 'the array'} differ between devices {', '.join(map(str, devices))}",
        provenance=Provenance.MEASURED,
        suggestion="Reduce what devices compute from different data (psum), or name the axis in out_specs.",
        evidence={"array": name, "source": "", "devices": [*devices], "shape": list(array.shape)},
    )


@contextmanager
def _uncached() -> Generator[None]:
    """Compile anew: a program from the persistent cache leaves no dump."""
    import jax

    enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", val=False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)


@contextmanager
def _standard_error() -> Generator[list[str]]:
    """The lines that the process prints to its standard error meanwhile; they appear there once it is over."""
    lines: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as caught:
            os.dup2(caught.fileno(), 2)
            try:
                yield lines
            finally:
                sys.stderr.flush()
                os.dup2(kept, 2)
                caught.seek(0)
                content = caught.read()
                lines.extend(content.decode(errors="replace").splitlines())
                os.write(2, content)
    finally:
        os.close(kept)
