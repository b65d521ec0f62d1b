"""The matrix product of tensor parallelism in PyTorch, in two layouts, each computed in two ways.

`A[B, D] @ W[D, F] = C[B, F]` on N processes. In the layout `gather` process j has the j-th block of rows of A and of
columns of W, and computes the j-th block of columns of C, for which it needs all of A:

- `gather`: an all-gather assembles A on every process, then each multiplies once.
- `ring`: the blocks of A travel round the ring. In round t process j multiplies block (j + t) mod N, while the next
  one may be on its way: N multiplications, N - 1 transfers.

In the layout `scatter` process r has the r-th block of columns of A and of rows of W. Its product is one term of all
of C; what it keeps of the sum is the r-th block of rows:

- `scatter`: each multiplies once, then a reduce-scatter adds up the products.
- `scatter_ring`: partial sums travel round the ring. In round t process r computes its term of block (r + t + 1)
  mod N, while the sum that it belongs to may be on its way.

As a script it records both forms of a layout, in processes that it starts:

    python -m traceflow.collectors.workloads.ring_matmul_torch --output DIR --layout scatter
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from traceflow.collectors.workloads import script, torch_processes
from traceflow.collectors.workloads.checks import check_product
from traceflow.collectors.workloads.collective_matmul import Matrix, matrices
from traceflow.collectors.workloads.torch_stages import all_gather, reduce_scatter, scope

if TYPE_CHECKING:
    import torch

Multiply: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"

WARMUP = 2


def gather_multiply(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """All of A, then one multiplication: `a` is a block of rows, `w` one of columns."""
    import torch.distributed as dist

    with scope("gather"):
        whole = all_gather(a, dist.group.WORLD)
    with scope("multiply"):
        return whole @ w


def ring_multiply(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same, with the blocks of A passed on while they are multiplied."""
    import torch
    import torch.distributed as dist

    rank, processes, block = dist.get_rank(), dist.get_world_size(), a
    product = a.new_empty(processes * len(a), w.shape[1])
    rows = product.chunk(processes)
    for turn in range(processes):
        with scope(f"round_{turn}"):
            arriving, transfers = _pass_on(block) if turn < processes - 1 else (block, [])
            with scope("multiply"):
                torch.mm(block, w, out=rows[(rank + turn) % processes])
            _await(transfers)
        block = arriving
    return product


def scatter_multiply(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One multiplication, then the sum: `a` is a block of columns, `w` one of rows."""
    import torch.distributed as dist

    with scope("multiply"):
        terms = a @ w
    with scope("scatter"):
        return reduce_scatter(terms, dist.group.WORLD)


def scatter_ring_multiply(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same, with sums passed on while the next term of each is computed."""
    import torch.distributed as dist

    rank, processes = dist.get_rank(), dist.get_world_size()
    blocks = a.chunk(processes)
    with scope("round_0"), scope("multiply"):
        total = blocks[(rank + 1) % processes] @ w
    for turn in range(1, processes):
        with scope(f"round_{turn}"):
            arriving, transfers = _pass_on(total)
            with scope("multiply"):
                term = blocks[(rank + turn + 1) % processes] @ w
            _await(transfers)
            with scope("accumulate"):
                total = term.add_(arriving)
    return total


def _pass_on(block: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """Start to send a block to the process before and to receive the one of the process after."""
    import torch
    import torch.distributed as dist

    rank, processes = dist.get_rank(), dist.get_world_size()
    with scope("permute"):
        arriving = torch.empty_like(block)
        send = dist.P2POp(dist.isend, block, (rank - 1) % processes)
        receive = dist.P2POp(dist.irecv, arriving, (rank + 1) % processes)
        return arriving, dist.batch_isend_irecv([send, receive])


def _await(transfers: list[Any]) -> None:
    for transfer in transfers:
        with scope("wait"):
            transfer.wait()


@dataclass(frozen=True, slots=True)
class Layout:
    """Which axis of A, W and C is split, and the ways to compute with that."""

    axes: tuple[int, int, int]
    forms: dict[str, Multiply]


LAYOUTS = {
    "gather": Layout((0, 1, 1), {"gather": gather_multiply, "ring": ring_multiply}),
    "scatter": Layout((1, 0, 0), {"scatter": scatter_multiply, "scatter_ring": scatter_ring_multiply}),
}


def block(matrix: Matrix, axis: int) -> torch.Tensor:
    """The part of a matrix that this process has."""
    import torch
    import torch.distributed as dist

    own = np.split(matrix, dist.get_world_size(), axis)[dist.get_rank()]
    return torch.from_numpy(own.copy()).to(torch_processes.device())


def record_ring_matmul(
    path: str | os.PathLike[str],
    *,
    layout: str = "gather",
    processes: int = 4,
    size: tuple[int, int, int] = (512, 512, 512),
    steps: int = 2,
    platform: str = "cpu",
    force: bool = False,
) -> Path:
    """Record both forms of a layout: the captures `path/gather` and `path/ring`, or `path/scatter` and its ring.

    Every step fetches its result, which must equal numpy's.

    Args:
        path: Folder of the two captures, each named after its form.
        layout: "gather" or "scatter".
        processes: How many to start.
        size: B, D and F of `A[B, D] @ W[D, F]`; all must be multiples of `processes`.
        steps: Recorded steps of each form, after the warm-up.
        platform: "cpu", or "gpu" for one GPU per process.
        force: Replace the captures that are there.

    Returns:
        `path`.

    Raises:
        TraceflowError: TF110 when a capture exists; TF115 when a product is wrong.
    """
    record = partial(_record, steps=steps, force=force)
    torch_processes.run(record, processes, Path(path).absolute(), layout, size, platform=platform)
    return Path(path)


def _record(path: Path, layout: str, size: tuple[int, int, int], *, steps: int, force: bool) -> None:
    """Record in this process."""
    from traceflow.recording import record

    a_axis, w_axis, c_axis = LAYOUTS[layout].axes
    a, w = matrices(size)
    own, expected = (block(a, a_axis), block(w, w_axis)), block(a @ w, c_axis).numpy(force=True)
    for form, multiply in LAYOUTS[layout].forms.items():
        with record(path / form, framework="torch", force=force, warmup=WARMUP) as recorder:
            for _ in range(WARMUP + steps):
                with recorder.step() as step:
                    found = step.fetch(multiply(*own))
                check_product(path / form, right=np.array_equal(found, expected))


def main(arguments: Sequence[str] | None = None) -> None:
    """Record both forms of a layout and print the path of each capture."""
    what = "Record a tensor-parallel product in both forms of a layout."
    parser = script.parser(what, output="the two captures", steps=2, platforms=torch_processes.BACKENDS)
    parser.add_argument("--layout", choices=LAYOUTS, default="gather", help="gather the input or scatter the output")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--size", type=int, nargs=3, default=(512, 512, 512), metavar=("B", "D", "F"))
    given = vars(parser.parse_args(arguments))
    folder = record_ring_matmul(given.pop("output"), **given)
    sys.stdout.writelines(f"{folder / form}\n" for form in LAYOUTS[given["layout"]].forms)


if __name__ == "__main__":
    main()
