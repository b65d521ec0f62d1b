"""The collective matmul: one product on a ring of devices, in two layouts, each computed in two ways.

`A[B, D] @ W[D, F] = C[B, F]` on N devices. Device j holds the j-th block of columns of A, and of C:

    C_j = sum over r of A_r W_(r, j)

In the layout `gather` device j also has its own columns of W. It computes all terms of C_j, and needs all of A:

- `gather`: an all-gather assembles A on every device, then each multiplies once.
- `ring`: the blocks of A travel round the ring. In round t device j multiplies block (j + t) mod N, while the
  next one may be on its way: N multiplications, N - 1 permutes, and no reduction at the end.

In the layout `scatter` device r has its own rows of W. It computes the r-th term of every C_j, so that what remains
is to add up terms of different devices:

- `scatter`: each multiplies once, then a reduce-scatter adds up the products and leaves to each its own columns.
- `scatter_ring`: partial sums travel round the ring. In round t device r adds its term of C_(r + t + 1 mod N) to the
  sum that arrives, which may have been on its way while the term was computed; the last one is that of its own C_r.

The order of the source lets communication and computation overlap. Whether they do is for a trace to show.

As a script it records both forms of a layout, on devices simulated by the host:

    python -m traceflow.collectors.workloads.collective_matmul --output DIR --layout scatter
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.collectors.workloads import script
from traceflow.collectors.workloads.checks import check_product
from traceflow.collectors.workloads.line_mesh import line_mesh

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh, NamedSharding

Matrix: TypeAlias = NDArray[np.float32]
Multiply: TypeAlias = "Callable[[jax.Array, jax.Array], jax.Array]"

AXIS = "ring"
SAMPLED = 16  # of so many rows of the product, one is kept in the capture
WARMUP = 2  # the first run compiles, the second still warms caches and thread pools


def gather_multiply(mesh: Mesh) -> Multiply:
    """The product as a gather of A and one multiplication per device; the compiler places the all-gather."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    columns = _split(mesh, 1)
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

    return _on_each_device(mesh, ring, w_axis=1)


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


def scatter_multiply(mesh: Mesh) -> Multiply:
    """The product as one multiplication per device and a reduce-scatter.

    The reduce-scatter is asked for: left to itself, the compiler may add up all of C on every device and then cut.
    """
    import jax

    def scatter(a: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("multiply"):
            terms = a @ w
        with jax.named_scope("scatter"):
            own: jax.Array = jax.lax.psum_scatter(terms, AXIS, scatter_dimension=1, tiled=True)
            return own

    return _on_each_device(mesh, scatter, w_axis=0)


def scatter_ring_multiply(mesh: Mesh) -> Multiply:
    """The product as a ring: each device adds its term to the sum that arrives, and passes that on."""
    import jax

    def scatter_ring(a: jax.Array, w: jax.Array) -> jax.Array:
        terms = _terms(mesh.size, a, w)
        total = next(terms)
        for turn, term in enumerate(terms, start=1):
            with jax.named_scope(f"round_{turn}"):
                with jax.named_scope("permute"):
                    arrived = jax.lax.ppermute(total, AXIS, route(mesh.size))
                with jax.named_scope("accumulate"):
                    total = arrived + term
        return total

    return _on_each_device(mesh, scatter_ring, w_axis=0)


def _terms(devices: int, a: jax.Array, w: jax.Array) -> Iterator[jax.Array]:
    """What one device contributes, in the order of its rounds: `a` is its columns of A, `w` its rows of W."""
    import jax

    device, width = jax.lax.axis_index(AXIS), w.shape[1] // devices
    for turn in range(devices):
        with jax.named_scope(f"round_{turn}"):
            with jax.named_scope("select"):
                columns = jax.lax.dynamic_slice_in_dim(w, (device + turn + 1) % devices * width, width, axis=1)
            with jax.named_scope("multiply"):
                term = a @ columns
        yield term


def _on_each_device(mesh: Mesh, program: Multiply, *, w_axis: int) -> Multiply:
    import jax

    specs = (_split(mesh, 1).spec, _split(mesh, w_axis).spec)
    return jax.jit(jax.shard_map(program, mesh=mesh, in_specs=specs, out_specs=_split(mesh, 1).spec))


def route(devices: int) -> list[tuple[int, int]]:
    """Who sends to whom in each permute, as (sender, receiver): device j receives from j + 1.

    Example:
        >>> route(4)
        [(0, 3), (1, 0), (2, 1), (3, 2)]
    """
    return [(sender, (sender - 1) % devices) for sender in range(devices)]


@dataclass(frozen=True, slots=True)
class Layout:
    """How W lies on the devices, A and C being split by columns, and the ways to compute with that."""

    w_axis: int  # the dimension of W that is split
    forms: dict[str, Callable[[Mesh], Multiply]]


LAYOUTS = {
    "gather": Layout(1, {"gather": gather_multiply, "ring": ring_multiply}),
    "scatter": Layout(0, {"scatter": scatter_multiply, "scatter_ring": scatter_ring_multiply}),
}


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


def place(mesh: Mesh, layout: Layout, a: Matrix, w: Matrix) -> list[jax.Array]:
    """A and W on the mesh, split as the layout has it."""
    import jax

    return [jax.device_put(a, _split(mesh, 1)), jax.device_put(w, _split(mesh, layout.w_axis))]


def _split(mesh: Mesh, axis: int) -> NamedSharding:
    """A matrix split by rows (axis 0) or by columns (axis 1)."""
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def record_collective_matmul(
    path: str | os.PathLike[str],
    *,
    layout: str = "gather",
    devices: int = 8,
    size: tuple[int, int, int] = (1024, 1024, 2048),
    steps: int = 5,
    platform: str = "cpu",
    force: bool = False,
) -> Path:
    """Record both forms of a layout: the captures `path/gather` and `path/ring`, or `path/scatter` and its ring.

    Every step fetches its result, which must equal numpy's. Some rows of it stay in the capture, as `outputs.npz`.

    Args:
        path: Folder of the two captures, each named after its form.
        layout: "gather" or "scatter".
        devices: How many devices to use.
        size: B, D and F of `A[B, D] @ W[D, F]`; D and F must be multiples of `devices`.
        steps: Recorded steps of each form, after the warm-up.
        platform: Whose devices; those of "cpu" are simulated.
        force: Replace the captures that are there.

    Returns:
        `path`.

    Raises:
        TraceflowError: TF110 when a capture exists; TF115 when a product is wrong or JAX has too few devices.
    """
    mesh = line_mesh(devices, AXIS, platform=platform)
    a, w = matrices(size)
    for form, multiply in LAYOUTS[layout].forms.items():
        operands = place(mesh, LAYOUTS[layout], a, w)
        _record(Path(path) / form, multiply(mesh), operands, a @ w, steps=steps, force=force)
    return Path(path)


def _record(
    path: Path, multiply: Multiply, operands: list[jax.Array], expected: Matrix, *, steps: int, force: bool
) -> None:
    from traceflow.recording import record

    with record(path, force=force, warmup=WARMUP) as recorder:
        for _ in range(WARMUP + steps):
            with recorder.step() as step:
                # Of several processes, each can fetch what its own devices hold.
                shards = multiply(*operands).addressable_shards
                blocks = step.fetch([shard.data for shard in shards])
            equal = (np.array_equal(block, expected[shard.index]) for block, shard in zip(blocks, shards, strict=True))
            check_product(path, right=all(equal))
        recorder.attach("outputs.npz", {"product": np.concatenate([block[::SAMPLED] for block in blocks], axis=1)})


def main(arguments: Sequence[str] | None = None) -> None:
    """Record both forms of a layout and print the path of each capture."""
    what = "Record the collective matmul in both forms of a layout."
    parser = script.parser(what, output="the two captures", steps=5, platforms=script.JAX_PLATFORMS)
    parser.add_argument("--layout", choices=LAYOUTS, default="gather", help="gather the input or scatter the output")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--size", type=int, nargs=3, default=(1024, 1024, 2048), metavar=("B", "D", "F"))
    given = vars(parser.parse_args(arguments))
    if given["platform"] == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # leave an accelerator alone
    folder = record_collective_matmul(given.pop("output"), **given)
    sys.stdout.writelines(f"{folder / form}\n" for form in LAYOUTS[given["layout"]].forms)


if __name__ == "__main__":
    main()
