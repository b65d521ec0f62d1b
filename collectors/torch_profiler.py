"""The PyTorch profiler as a source of captures: operators with their shapes, device activity, collectives.

Each process writes, in the folder of the capture:

- `torch/rankNNNNN.pt.trace.json.gz`: the trace. Nothing else lies in that folder, because HTA takes every JSON file
  beside a trace for a trace.
- `rankNNNNN.flight_recorder.json`: the collectives and process groups, where `torch.distributed` is in use.
- `rankNNNNN.placements.json`: how the parameters are placed, where a model was told.
- what is asked for: `rankNNNNN.execution_trace.json`, and what `torch_memory` writes.

Operators carry their shapes, which the sizes and splits of collectives are read from. Synchronisation is recorded
on CUDA: without it, no trace says which stream waited for which. Stacks slow the host, and are recorded only where
the categories of memory are asked for, which cannot be told without them.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from traceflow.capture import Devices, Options
from traceflow.collectors.collector import FAILURES, optional
from traceflow.collectors.execution_trace import ExecutionTrace
from traceflow.collectors.flight_recorder import Groups, flight_recording, process_groups
from traceflow.collectors.kineto_file import write_kineto
from traceflow.collectors.torch_memory import History, memory_timeline
from traceflow.result import Json

if TYPE_CHECKING:
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler.profiler import _KinetoProfile

TRACES = "torch"  # folder of the traces in a capture
_COMPILATION = "_compile.compile_inner"  # what the compiler calls the time of one compilation


class TorchProfiler:
    """Starts and stops the profiler of this process, annotates its trace, and waits for the device."""

    def __init__(self, options: Options) -> None:
        from torch import autograd, cuda

        self._options = options
        self._history: History | None = None
        self._execution: ExecutionTrace | None = None
        self.missing: list[str] = []
        self._marks = autograd._record_function_with_args_enter, autograd._record_function_with_args_exit  # noqa: SLF001
        self._cuda = cuda
        self._profiler: _KinetoProfile | None = None
        self._place: tuple[int, int] | None = None
        self._groups: Groups = {}
        self._placements: list[Json] = []

    def open(self, scratch: Path) -> None:
        """Keep in mind where to write; the compiler counts by itself."""
        self._scratch = scratch

    def prepare(self) -> None:
        """Attach to the GPU, whose first traced work is slow and sometimes lost; observe that step where asked to."""
        if self._options.execution_trace:
            with suppress(*FAILURES):
                self._execution = ExecutionTrace(self._scratch)
        if self._cuda.is_available() and not _profiling():
            self._profiler = self._prepared()

    def start(self, folder: Path) -> None:
        """Start tracing, once what was launched on the GPU is done; `stop` writes into `folder`.

        Raises:
            RuntimeError: when the program profiles itself. PyTorch would end its profile in favour of this one.
        """
        if _profiling():
            raise RuntimeError("another PyTorch profiler is active")
        self._folder = folder
        self._place = self.rank()  # the program may leave its process group before the recording ends
        self._groups = process_groups()
        if self._options.memory and self._cuda.is_initialized():
            with optional("the history of memory", self.missing):
                self._history = History()
        self._profiler = self._profiler or self._prepared()
        self.wait(self.pending(()))
        self._profiler.start_trace()

    def stop(self) -> None:
        """Wait for the GPU, stop tracing, and write everything.

        Raises:
            RuntimeError: when the program profiled itself meanwhile, which has ended this profile.
        """
        if self._profiler is None or not _profiling():
            raise RuntimeError("another PyTorch profiler took over")
        self.wait(self.pending(()))
        self._profiler.stop_trace()
        rank = f"rank{self.rank()[0]:05d}"
        traces = self._folder / TRACES
        traces.mkdir(exist_ok=True)
        write_kineto(self._profiler, self._scratch, traces / f"{rank}.pt.trace.json.gz")
        _write(self._folder / f"{rank}.flight_recorder.json", flight_recording({**self._groups, **process_groups()}))
        _write(self._folder / f"{rank}.placements.json", self._placements)
        self._write_extras(rank)

    def _write_extras(self, rank: str) -> None:
        """Write what was asked for besides the trace."""
        if self._history is not None:
            with optional("the history of memory", self.missing):
                self._history.write(self._folder / f"{rank}.memory_snapshot.pickle")
        if self._options.memory_categories:
            with optional("the categories of memory", self.missing):
                timeline = memory_timeline(self._profiler, self._device())
                _write(self._folder / f"{rank}.memory_timeline.json", timeline)
        if self._options.execution_trace:
            with optional("the execution trace", self.missing):
                self._observed().write(self._folder / f"{rank}.execution_trace.json")

    def _observed(self) -> ExecutionTrace:
        if self._execution is None:
            raise RuntimeError("no step of the warm-up could be observed")
        return self._execution

    def _device(self) -> str:
        return f"cuda:{self._cuda.current_device()}" if self._cuda.is_initialized() else "cpu"

    def close(self) -> None:
        """Detach from the GPU, if nothing was traced after all."""
        if self._execution is not None:
            self._execution.close()
        if self._history is not None:
            self._history.close()
        profiler, self._profiler = self._profiler, None
        if profiler is not None and self._place is None and not _profiling():
            profiler.start_trace()  # a prepared session ends in no other way
            profiler.stop_trace()

    def _prepared(self) -> _KinetoProfile:
        from torch.profiler import ProfilerActivity
        from torch.profiler.profiler import _KinetoProfile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda.is_available() else [])]
        # The public class numbers steps by itself. This one, which it is built on, leaves that to us.
        profiler = _KinetoProfile(
            activities=activities,
            record_shapes=True,
            profile_memory=self._options.memory or self._options.memory_categories,
            with_stack=self._options.memory_categories,
            experimental_config=_experimental_config(trace_only=not self._options.memory_categories),
        )
        profiler.prepare_trace()
        return profiler

    def step(self, number: int) -> AbstractContextManager[object]:
        """Annotate what is done inside as the step of this number."""
        span = self.span(f"ProfilerStep#{number}")
        return span if self._execution is None or self._place is not None else self._execution.observing(span)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Annotate what the host does inside."""
        return _Annotation(name, *self._marks)

    def pending(self, _trees: tuple[object, ...]) -> list[int]:
        """The GPU that this process uses, if it uses one; on the CPU results are complete when they exist."""
        return [self._cuda.current_device()] if self._cuda.is_initialized() else []

    def wait(self, pending: list[int]) -> None:
        """Block until everything that was launched on the devices is complete."""
        for device in pending:
            self._cuda.synchronize(device)

    @staticmethod
    def fetch(tree: Any) -> Any:
        """A copy of `tree` on the host, with numpy arrays for its tensors; a DTensor is gathered by all its ranks.

        Types that numpy lacks, such as bfloat16, become float32, which holds their values exactly.
        """
        import torch
        from torch.utils import _pytree as pytree

        return pytree.tree_map_only(torch.Tensor, _on_host, tree)

    def model(self, model: Any) -> None:
        """Keep how the parameters of a module are placed."""
        self._placements = placements(model)

    def compilations(self) -> tuple[int, int]:
        """How many times the compiler compiled so far, and the nanoseconds it took."""
        compiler = sys.modules.get("torch._dynamo.utils")
        times = compiler.compilation_time_metrics.get(_COMPILATION, ()) if compiler else ()
        return len(times), round(sum(times) * 1e9)

    def versions(self) -> dict[str, str]:
        """The versions that decide what a trace contains."""
        import torch

        toolkits = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        return {"torch": str(torch.__version__), **{name: said for name, said in toolkits.items() if said}}

    def devices(self) -> Devices:
        """The device of this process, one in each of them."""
        if self._cuda.is_initialized():
            return Devices("gpu", self._cuda.get_device_name(), 1, self.rank()[1])
        return Devices("cpu", "cpu", 1, self.rank()[1])

    def rank(self) -> tuple[int, int]:
        """The number of this process in the default group, and how many there are; 0 and 1 without a group."""
        import torch.distributed as dist

        if self._place is not None:
            return self._place
        if not dist.is_available() or not dist.is_initialized():
            return 0, 1
        return dist.get_rank(), dist.get_world_size()

    def shared(self, path: Path, folder: Path) -> Path | None:
        """The folder of the processes that record to `path` together: the `folder` of the first to ask.

        None where this process is alone. Processes that see no common file system share a folder per host.
        """
        from torch.distributed import distributed_c10d as c10d

        rank, world_size = self.rank()
        if world_size == 1:
            return None
        # The store answers at once, and needs no other process to ask: a collective could wait for ever.
        store = c10d._get_default_store()  # noqa: SLF001  # nothing public gives it
        attempt = store.add(f"traceflow/{path}/{rank}", 1)
        for scope in ("", socket.gethostname()):
            first = Path(store.compare_set(f"traceflow/{path}/{attempt}/{scope}", "", str(folder)).decode())
            if first.is_dir():
                return first
        return None


class _Annotation:
    """What `torch.profiler.record_function` does, for a third of its cost: a step may take less than a millisecond."""

    __slots__ = ("_enter", "_exit", "_handle", "_name")

    def __init__(self, name: str, enter: Callable[[str], object], exit_: Callable[[object], None]) -> None:
        self._name = name
        self._enter = enter
        self._exit = exit_

    def __enter__(self) -> None:
        self._handle = self._enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(self._handle)


def _profiling() -> bool:
    import torch

    return bool(torch.autograd._profiler_enabled())  # noqa: SLF001  # nothing public tells


def placements(model: torch.nn.Module) -> list[Json]:
    """How each parameter is placed: its global and its local shape, and what a DTensor's mesh and placements are.

    Returns:
        A row per parameter: name, dtype, shape, local_shape, placements and mesh, the last two None for a parameter
        that is no DTensor.
    """
    return [_placement(name, parameter) for name, parameter in model.named_parameters()]


def _placement(name: str, parameter: Any) -> Json:
    mesh = getattr(parameter, "device_mesh", None)
    local = parameter if mesh is None else parameter.to_local()
    return {
        "name": name,
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "shape": list(parameter.shape),
        "local_shape": list(local.shape),
        "placements": None if mesh is None else [repr(placement) for placement in parameter.placements],
        "mesh": None if mesh is None else _mesh(mesh),
    }


def _mesh(mesh: Any) -> Json:
    names = mesh.mesh_dim_names
    return {"names": None if names is None else list(names), "ranks": mesh.mesh.tolist()}


def _on_host(tensor: Any) -> Any:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    on_host = whole.detach().cpu()
    try:
        return on_host.numpy()
    except TypeError:
        return on_host.float().numpy()


def _experimental_config(*, trace_only: bool) -> _ExperimentalConfig:
    """Synchronisation on, and no work for results in Python where these are not used; older versions lack the latter."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(enable_cuda_sync_events=True, trace_only=trace_only)
    except TypeError:
        return _ExperimentalConfig(enable_cuda_sync_events=True)


def _write(file: Path, content: Json) -> None:
    if content:
        file.write_text(json.dumps(content), encoding="utf-8")
