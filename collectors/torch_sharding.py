"""Audit of a PyTorch program's sharding: one step under watch, on any backend, gloo on CPUs included.

Each process does this::

    with audit(model, plan=plan) as audited:
        model(x).sum().backward()
    audited.save("runs/audit")  # then: traceflow show sharding runs/audit

Nothing is sent between the processes for the audit, so that it cannot make a program wait. The step computes what it
always does; it is slower, because values that ranks claim to hold alike are hashed.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceflow.capture import write_whole
from traceflow.collectors.collector import FAILURES, reason
from traceflow.collectors.torch_flow import storage_of
from traceflow.collectors.torch_modules import Modules
from traceflow.collectors.torch_values import digest
from traceflow.collectors.torch_watch import Watch, mesh_of, placement_text, watching
from traceflow.program.torch_audit import Parameter, TorchAudit, encoded

if TYPE_CHECKING:
    import torch

SUFFIX = "sharding_audit.json"


class Audited:
    """What `audit` gives; `content` is there once the step is over."""

    content: TorchAudit

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write what this process did as `rankNNNNN.sharding_audit.json`, which `tf.open` reads, and return its path.

        Args:
            folder: One for all processes. A capture will do: what ran and how it lay are then shown together.
        """
        file = Path(folder) / f"rank{self.content.rank:05d}.{SUFFIX}"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, encoded(self.content))
        return file


@contextmanager
def audit(
    model: torch.nn.Module,
    *,
    plan: Mapping[str, object] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Generator[Audited]:
    """Watch one step of a model: how its parameters lie, and what is laid out anew by which collectives.

    Args:
        model: What the step runs, after `parallelize_module` and `fully_shard`.
        plan: What `parallelize_module` was given for it: styles by the names of modules.
        folder: Where to save it in any case; of a step that raises, what it did until then is saved.

    Yields:
        What to save after the step, where no folder was named. Parameters and their values are those before the step.
    """
    audited, missing = Audited(), list[str]()
    try:
        parameters, names = _parameters(model)
    except FAILURES as error:
        parameters, names = (), {}
        missing.append(f"parameters: {reason(error)}")
    modules = Modules(model)
    watch = Watch(modules, names)

    def content() -> TorchAudit:
        modules.close()
        rank, world_size = _place()
        return TorchAudit(
            rank=rank,
            world_size=world_size,
            modules=tuple(name for name, _ in model.named_modules() if name),
            plan=None if plan is None else {key: str(style) for key, style in plan.items()},
            parameters=parameters,
            redistributions=watch.redistributions(),
            collectives=watch.collectives(),
            returns=watch.returns(),
            values=tuple(watch.values),
            meshes=tuple(watch.meshes),
            missing=(*missing, *watch.missing),
        )

    def over(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            missing.append(f"the rest of the step: it raised {kind.__name__}")
        audited.content = content()
        if folder is not None:
            # The error of the program is the one to be seen.
            with suppress(OSError) if kind is not None else nullcontext():
                audited.save(folder)

    with ExitStack() as after:
        after.push(over)
        with watching(watch):
            yield audited


def _place() -> tuple[int, int]:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def _parameters(model: torch.nn.Module) -> tuple[tuple[Parameter, ...], dict[Any, str]]:
    """The parameters, and their names by the storage of what this process holds of them."""
    named = list(model.named_parameters())
    names = {storage_of(getattr(one, "_local_tensor", one)): name for name, one in named}
    return tuple(_parameter(name, one) for name, one in named), names


def _parameter(name: str, parameter: Any) -> Parameter:
    dtype, shape = str(parameter.dtype).removeprefix("torch."), tuple(parameter.shape)
    if not hasattr(parameter, "device_mesh"):
        return Parameter(name=name, dtype=dtype, shape=shape, local_shape=shape)
    mesh = mesh_of(parameter.device_mesh)
    lie = tuple(placement_text(one, len(shape)) for one in parameter.placements)
    local = parameter.to_local().detach()
    return Parameter(
        name=name,
        dtype=dtype,
        shape=shape,
        local_shape=tuple(local.shape),
        mesh=mesh,
        placements=lie,
        digest=digest(local) if "R" in lie else None,
    )
