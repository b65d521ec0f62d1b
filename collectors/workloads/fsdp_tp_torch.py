"""A transformer in PyTorch whose parameters are split twice: FSDP2 over data, tensor parallelism over matrices.

The processes form a mesh of DATA x TENSOR. Along `tensor` the matrices that enter the attention and the MLP of a block
are split by columns and those that leave them by rows, so that one all-reduce adds up what leaves. Along `data` each
parameter is split once more: FSDP gathers it before it is used and scatters the mean of its gradient. Each row of the
mesh has its share of the sequences.

The stages `attention`, `mlp` and `loss` have names in the trace, forward and backward; `update` comes once. What FSDP
does it names itself.

As a script it starts its processes itself, and records:

    python -m traceflow.collectors.workloads.fsdp_tp_torch --output DIR
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.collectors.workloads import script, torch_processes
from traceflow.collectors.workloads.checks import check_loss
from traceflow.collectors.workloads.torch_stages import scope, stage

if TYPE_CHECKING:
    import torch

Float32: TypeAlias = NDArray[np.float32]

STAGES = ("attention", "mlp", "loss")
WARMUP = 2
TOLERANCE = 1e-4  # of a loss: single precision against double, over a few steps
RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Size:
    """How large the transformer is; `sequences` is a multiple of DATA, `heads` and `hidden` of TENSOR."""

    sequences: int = 8
    length: int = 64
    model: int = 64  # width of a token
    heads: int = 4
    hidden: int = 256  # width inside an MLP
    blocks: int = 2


@cache
def _block_class() -> Any:
    import torch
    from torch.nn import functional

    class Block(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not looked into
        """Attention and an MLP, each after a norm and added to what entered."""

        def __init__(self, size: Size) -> None:
            super().__init__()
            self.width = size.model // size.heads
            self.attention_norm, self.mlp_norm = torch.nn.LayerNorm(size.model), torch.nn.LayerNorm(size.model)
            square = partial(torch.nn.Linear, size.model, size.model, bias=False)
            self.query, self.key, self.value, self.out = square(), square(), square(), square()
            self.up = torch.nn.Linear(size.model, size.hidden, bias=False)
            self.down = torch.nn.Linear(size.hidden, size.model, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return stage("mlp", self.mlp, stage("attention", self.attention, x))

        def attention(self, x: torch.Tensor) -> torch.Tensor:
            entered = self.attention_norm(x)
            # Of the heads there are as many here as the process has columns.
            parts = (part(entered).unflatten(2, (-1, self.width)) for part in (self.query, self.key, self.value))
            query, key, value = (part.transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return x + self.out(mixed.transpose(1, 2).flatten(2))

        def mlp(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))

    return Block


def transformer(size: Size) -> torch.nn.Module:
    """The whole model, with weights that are the same each time."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(*(_block_class()(size) for _ in range(size.blocks)))


def split(model: torch.nn.Module, mesh: torch.distributed.DeviceMesh) -> torch.nn.Module:
    """The same model over the mesh.

    Args:
        model: What `transformer` gives.
        mesh: With the dimensions "data" and "tensor".
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    entering = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    leaving = dict.fromkeys(("out", "down"), RowwiseParallel())
    for block in model:
        parallelize_module(block, mesh["tensor"], {**entering, **leaving})
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def mesh_of(data: int, tensor: int) -> torch.distributed.DeviceMesh:
    """The mesh of all processes."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(torch_processes.device().type, (data, tensor), mesh_dim_names=("data", "tensor"))


def learn(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Put the gradients into the parameters: the loss of the sequences that are given.

    Args:
        model: Whole or split.
        x: [sequences, length, model].
        y: Targets, of the same shape.
    """
    # Of an input without a slope a stage would have none, either.
    loss = stage("loss", lambda p: (p - y).square().mean(), model(x.detach().requires_grad_()))
    loss.backward()
    return loss.detach()


def batch(size: Size, number: int) -> tuple[Float32, Float32]:
    """Random inputs and targets, both [sequences, length, model]; the same each time for one number."""
    x, y = np.random.default_rng((3, number)).normal(size=(2, size.sequences, size.length, size.model))
    return x.astype(np.float32), np.tanh(y).astype(np.float32)


def local_batch(mesh: torch.distributed.DeviceMesh, *arrays: Float32) -> list[torch.Tensor]:
    """The sequences of this process, which all of one row of the mesh share."""
    import torch

    parts, own = mesh["data"].size(), mesh["data"].get_local_rank()
    return [torch.from_numpy(np.split(array, parts)[own].copy()).to(torch_processes.device()) for array in arrays]


def record_fsdp_tp(
    path: str | os.PathLike[str],
    *,
    data: int = 2,
    tensor: int = 2,
    steps: int = 2,
    size: Size | None = None,
    platform: str = "cpu",
    force: bool = False,
) -> Path:
    """Record training on `data * tensor` processes, which this starts, into one capture.

    Every step takes another batch and fetches its loss, the mean over the processes, which must be that of the whole
    model in double precision within `TOLERANCE`.

    Args:
        path: Folder of the capture.
        data: Processes that the sequences and every parameter are split over.
        tensor: Processes that the matrices are split over.
        steps: Recorded steps, after the warm-up.
        size: Shapes; None for those of `Size()`.
        platform: "cpu", or "gpu" for one GPU per process.
        force: Replace the capture that is there.

    Returns:
        `path`.

    Raises:
        TraceflowError: TF110 when the capture exists; TF115 when a loss is wrong.
    """
    size = size or Size()
    losses = _whole_losses(size, WARMUP + steps)
    arguments = Path(path).absolute(), data, tensor, size, losses
    torch_processes.run(partial(_record, force=force), data * tensor, *arguments, platform=platform)
    return Path(path)


def _whole_losses(size: Size, steps: int) -> list[float]:
    import torch

    model = transformer(size).double()
    descent, losses = torch.optim.AdamW(model.parameters(), lr=RATE), []
    for number in range(steps):
        descent.zero_grad()
        losses.append(float(learn(model, *(torch.from_numpy(array).double() for array in batch(size, number)))))
        descent.step()
    return losses


def _record(path: Path, data: int, tensor: int, size: Size, losses: list[float], *, force: bool) -> None:
    """Record in this process."""
    import torch
    import torch.distributed as dist

    from traceflow.recording import record

    mesh = mesh_of(data, tensor)
    model = split(transformer(size).to(torch_processes.device()), mesh)
    descent = torch.optim.AdamW(model.parameters(), lr=RATE)
    batches = [local_batch(mesh, *batch(size, number)) for number in range(len(losses))]
    with record(path, framework="torch", force=force, warmup=WARMUP) as recorder:
        recorder.model(model)
        for inputs, expected in zip(batches, losses, strict=True):
            with recorder.step() as step:
                descent.zero_grad()
                loss = learn(model, *inputs)
                with scope("loss_reduction"):
                    dist.all_reduce(loss, group=mesh.get_group("data"))
                with scope("update"):
                    descent.step()
                found = float(step.fetch(loss)) / data
            check_loss(path, found, expected, tolerance=TOLERANCE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record and print the path of the capture."""
    what = "Record a transformer that is split over data and matrices."
    parser = script.parser(what, output="the capture", steps=2, platforms=torch_processes.BACKENDS)
    parser.add_argument("--data", type=int, default=2, help="processes that sequences and parameters are split over")
    parser.add_argument("--tensor", type=int, default=2, help="processes that the matrices are split over")
    script.add_shape(parser, Size)
    given = vars(parser.parse_args(arguments))
    size = script.take_shape(given, Size)
    sys.stdout.write(f"{record_fsdp_tp(given.pop('output'), size=size, **given)}\n")


if __name__ == "__main__":
    main()
