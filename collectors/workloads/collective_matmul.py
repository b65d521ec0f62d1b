"""The collective matmul: one product on a ring of devices, computed in two ways.

`A[B, D] @ W[D, F] = C[B, F]` on N devices. Device j holds the j-th block of columns of A, W and C, so it needs all
of A and only its own columns of W:

    C_j = sum over r of A_r W_(r, j)

- `gather`: an all-gather assembles A on every device, then each multiplies once.
- `ring`: the blocks of A travel round the ring. In round t device j multiplies block (j + t) mod N, while the
  next one may be on its way: N multiplications, N - 1 permutes, and no reduction at the end.

The order of the source lets communication and computation overlap. Whether they do is for a trace to show.

As a script it records both, on devices simulated by the host:

    python -m traceflow.collectors.workloads.collective_matmul --output DIR
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh, NamedSharding

Matrix: TypeAlias = NDArray[np.float32]
Multiply: TypeAlias = "Callable[[jax.Array, jax.Array], jax.Array]"

AXIS = "ring"
WARMUP = 2  # the first run compiles, the second still warms caches and thread pools


def host_mesh(devices: int) -> Mesh:
    """A one-dimensional mesh of devices simulated by the host.

    Raises:
        TraceflowError: TF115 when JAX has started with fewer of them; it cannot add any later.
    """
    import jax

    with suppress(RuntimeError):  # JAX runs already
        jax.config.update("jax_num_cpu_devices", devices)
    found = jax.devices("cpu")[:devices]
    if len(found) < devices:
        why = f"this process has started JAX with {len(found)}"
        raise TraceflowError("TF115", f"cannot simulate {devices} devices", why, "do it in a fresh process")
    return jax.sharding.Mesh(np.array(found), (AXIS,))


def gather_multiply(mesh: Mesh) -> Multiply:
    """The product as a gather of A and one multiplication per device; the compiler places the all-gather."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    columns = _by_columns(mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())

    @partial(jax.jit, in_shardings=(columns, columns), out_shardings=columns)
    def gather(a: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("gather"):
            whole = jax.lax.with_sharding_constraint(a, everywhere)
        with jax.named_scope("multiply"):
            product: jax.Array = whole @ w
            return product

    return gather


def ring_multiply(mesh: Mesh) -> Multiply:
    """The product as a ring: each device passes on the block of A it has while it multiplies with it."""
    import jax

    def accumulate(product: jax.Array, part: jax.Array) -> jax.Array:
        with jax.named_scope("accumulate"):
            return product + part

    def ring(a: jax.Array, w: jax.Array) -> jax.Array:
        return reduce(accumulate, _parts(mesh.size, a, w))

    columns = _by_columns(mesh).spec
    return jax.jit(jax.shard_map(ring, mesh=mesh, in_specs=(columns, columns), out_specs=columns))


def _parts(devices: int, block: jax.Array, w: jax.Array) -> Iterator[jax.Array]:
    """What one device adds up, in the order of its rounds: `block` is its own of A, `w` its columns of W."""
    import jax

    device, width = jax.lax.axis_index(AXIS), block.shape[1]
    for turn in range(devices):
        with jax.named_scope(f"round_{turn}"):
            current = block
            if turn < devices - 1:
                with jax.named_scope("permute"):
                    block = jax.lax.ppermute(current, AXIS, route(devices))
            with jax.named_scope("select"):
                rows = jax.lax.dynamic_slice_in_dim(w, (device + turn) % devices * width, width)
            with jax.named_scope("multiply"):
                part = current @ rows
        yield part


def route(devices: int) -> list[tuple[int, int]]:
    """Who sends to whom in each permute, as (sender, receiver): device j receives from j + 1.

    Example:
        >>> route(4)
        [(0, 3), (1, 0), (2, 1), (3, 2)]
    """
    return [(sender, (sender - 1) % devices) for sender in range(devices)]


FORMS: dict[str, Callable[[Mesh], Multiply]] = {"gather": gather_multiply, "ring": ring_multiply}


def matrices(size: tuple[int, int, int]) -> tuple[Matrix, Matrix]:
    """A[B, D] and W[D, F] for `size` (B, D, F): small whole numbers, without symmetry.

    Every product and partial sum is a whole number below 2**24 as long as D < 2**18, so float32 is exact in any
    order of summation, and results may be compared for equality.
    """
    rows, inner, columns = size
    draw = np.random.default_rng(0)
    a = draw.integers(-8, 9, (rows, inner)).astype(np.float32)
    w = draw.integers(-8, 9, (inner, columns)).astype(np.float32)
    return a, w


def place(mesh: Mesh, *whole: Matrix) -> list[jax.Array]:
    """Matrices on the mesh, each split by columns."""
    import jax

    return [jax.device_put(matrix, _by_columns(mesh)) for matrix in whole]


def _by_columns(mesh: Mesh) -> NamedSharding:
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec(None, AXIS))


def record_collective_matmul(
    path: str | os.PathLike[str],
    *,
    devices: int = 8,
    size: tuple[int, int, int] = (1024, 1024, 2048),
    steps: int = 5,
    force: bool = False,
) -> Path:
    """Record both forms on simulated devices: the captures `path/gather` and `path/ring`.

    Every step fetches its result, which must equal numpy's.

    Args:
        path: Folder of the two captures.
        devices: How many devices the host simulates.
        size: B, D and F of `A[B, D] @ W[D, F]`; D and F must be multiples of `devices`.
        steps: Recorded steps of each form, after the warm-up.
        force: Replace the captures that are there.

    Returns:
        `path`.

    Raises:
        TraceflowError: TF110 when a capture exists; TF115 when a product is wrong or JAX has too few devices.
    """
    mesh = host_mesh(devices)
    a, w = matrices(size)
    for form, multiply in FORMS.items():
        _record(Path(path) / form, multiply(mesh), place(mesh, a, w), a @ w, steps=steps, force=force)
    return Path(path)


def _record(
    path: Path, multiply: Multiply, operands: list[jax.Array], expected: Matrix, *, steps: int, force: bool
) -> None:
    from traceflow.recording import record

    with record(path, force=force, warmup=WARMUP) as recorder:
        for _ in range(WARMUP + steps):
            with recorder.step() as step:
                product = step.fetch(multiply(*operands))
            if not np.array_equal(product, expected):
                why = "the product differs from the one that numpy computes"
                raise TraceflowError("TF115", f"cannot record {path}", why, "report this: the workload is wrong")


def main(arguments: Sequence[str] | None = None) -> None:
    """Record both forms and print the path of each capture."""
    parser = argparse.ArgumentParser(description="Record the collective matmul on simulated devices, in both forms.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the two captures")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--size", type=int, nargs=3, default=(1024, 1024, 2048), metavar=("B", "D", "F"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--force", action="store_true", help="replace captures that are there")
    given = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # only the host's devices are used: leave an accelerator alone
    size = tuple(given.size)
    record_collective_matmul(given.output, devices=given.devices, size=size, steps=given.steps, force=given.force)
    sys.stdout.writelines(f"{given.output / form}\n" for form in FORMS)


if __name__ == "__main__":
    main()
