"""The JAX profiler as a source of captures: device and host activity as an XSpace, with the compiled programs.

The Python tracer stays off: it slows the host that is being measured, and the annotations already tell the
steps apart. Host level 2 records runtime calls and, on CPU, the HLO operations.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections import Counter
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from traceflow.capture import Devices, Options
from traceflow.collectors.xla_dump import FOLDER, SCRATCH, begin_dump, end_dump, keep_dump

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_HOST_TRACER_LEVEL = 2
_STEP = "traceflow.step"
_RUNS = Path("plugins", "profile")  # of a TensorBoard log directory
_LAST_EVENTS_S = 0.02  # results may be ready before the thread that made them has closed its event, which is lost then
_PATIENCE_MS = 10_000  # with the coordinator of the processes, which answers at once
_attempts: Counter[Path] = Counter()  # recordings of this process with others, by what they record to


class JaxProfiler:
    """Starts and stops the profiler of this process, annotates its trace, and waits for arrays."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._dump: Path | None = None
        self.missing: list[str] = []
        self._compilations = 0
        self._compile_ns = 0
        self._run: str | None = None  # the name that all who record together give their traces

    def open(self, scratch: Path) -> None:
        """Count what JAX compiles from now on, until `close`, and have it dumped where that is asked for."""
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._note_compilation)
        if self._options.xla_dump:
            self._dump = scratch / SCRATCH
            self._lack_dump(begin_dump(self._dump))

    def _lack_dump(self, why: str | None) -> None:
        if why is not None:
            self._dump = None
            self.missing.append(f"the dump of XLA: {why}")

    def prepare(self) -> None:
        """Nothing to do: this profiler needs no warm-up of its own."""

    def start(self, folder: Path) -> None:
        """Start tracing, once the work in flight is done, which would be in the trace in part.

        `stop` writes the trace into `folder` as a TensorBoard log directory.

        The profiler names a trace after its host, so that each of several processes gets a directory of its own until
        the trace is written.
        """
        import jax

        end_dump()
        self.wait(self.pending(()))
        self._folder = folder
        self._log = folder if self._run is None else folder / f"rank{jax.process_index():05d}"

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = _HOST_TRACER_LEVEL
        options.enable_hlo_proto = self._options.hlo
        jax.profiler.start_trace(self._log, profiler_options=options)

    def stop(self) -> None:
        """Wait for the work in flight, which would be missing from the trace, and write the trace."""
        import jax

        try:
            self.wait(self.pending(()))
            time.sleep(_LAST_EVENTS_S)
        finally:
            jax.profiler.stop_trace()
            if self._run is not None:
                self._hand_in(self._folder / _RUNS / self._run)
            if self._dump is not None:
                self._lack_dump(keep_dump(self._dump, self._folder / FOLDER / f"rank{jax.process_index():05d}"))

    def _hand_in(self, run: Path) -> None:
        """Move the trace to those of the other processes, under a name that says whose it is."""
        run.mkdir(parents=True, exist_ok=True)
        for file in self._log.glob(f"{_RUNS}/*/*"):
            file.rename(run / f"{self._log.name}.{file.name}")
        shutil.rmtree(self._log)

    def close(self) -> None:
        """Stop counting compilations."""
        import jax

        end_dump()
        # Whoever clears all listeners has removed this one too, which JAX takes for a mistake.
        with suppress(AssertionError, ValueError):
            jax.monitoring.unregister_event_duration_listener(self._note_compilation)

    def step(self, number: int) -> AbstractContextManager[object]:
        """Annotate what is launched inside as one step."""
        import jax

        return jax.profiler.StepTraceAnnotation(_STEP, step_num=number)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Annotate what the host does inside."""
        import jax

        return jax.profiler.TraceAnnotation(name)

    def pending(self, trees: tuple[object, ...]) -> list[Any]:
        """The arrays of `trees` that are still being computed; without trees, those of all live arrays."""
        import jax

        leaves = jax.tree.leaves(trees) if trees else _live_arrays()
        arrays: list[Any] = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        return [array for array in arrays if not array.is_deleted() and not array.is_ready()]

    def wait(self, arrays: list[Any]) -> None:
        """Block until `arrays` are complete on their devices."""
        import jax

        jax.block_until_ready(arrays)

    @staticmethod
    def fetch(tree: Any) -> Any:
        """A copy of `tree` on the host, with numpy arrays for its arrays.

        Of an array that other processes hold parts of, it is the list of the parts that this one holds, in order of
        their place in the array.
        """
        import jax

        return jax.device_get(jax.tree.map(_reachable, tree))

    def model(self, _model: Any) -> None:
        """Nothing to keep: the programs say how each of their parameters is sharded."""

    def compilations(self) -> tuple[int, int]:
        """How many programs were compiled while watching, and the nanoseconds it took."""
        return self._compilations, self._compile_ns

    def _note_compilation(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILE_EVENT:
            self._compilations += 1
            self._compile_ns += round(duration_secs * 1e9)

    def versions(self) -> dict[str, str]:
        """The versions that decide what a trace contains."""
        return {name: version(name) for name in ("jax", "jaxlib")}

    def devices(self) -> Devices:
        """The devices of this process. Initialises the backend if nothing else has."""
        import jax

        first = jax.local_devices()[0]
        return Devices(first.platform, first.device_kind, jax.local_device_count(), jax.device_count())

    def rank(self) -> tuple[int, int]:
        """This process's index and the number of processes. Initialises the backend if nothing else has."""
        import jax

        return jax.process_index(), jax.process_count()

    def shared(self, path: Path, folder: Path) -> Path | None:
        """The folder of the processes that record to `path` together: the `folder` of the first to ask.

        None where this process is alone, or cannot ask. Processes that see no common file system share one per host.
        """
        coordinator = _coordinator() if self.rank()[1] > 1 else None
        if coordinator is None:
            return None
        _attempts[path] += 1
        offer = f"{datetime.now(UTC):%Y_%m_%d_%H_%M_%S}/{folder}"
        for scope in ("everywhere", socket.gethostname()):
            key = f"traceflow/{path}/{_attempts[path]}/{scope}"
            with suppress(RuntimeError):  # another process was the first
                coordinator.key_value_set(key, offer)
            run, _, first = coordinator.blocking_key_value_get(key, _PATIENCE_MS).partition("/")
            if Path(first).is_dir():
                self._run = run
                return Path(first)
        return None


def _coordinator() -> Any:
    """What the processes of `jax.distributed` all reach; None where that was not initialised."""
    from jax._src.distributed import global_state  # nothing public gives it

    return global_state.client


def _reachable(leaf: Any) -> Any:
    """An array that this process can read: the whole, or else the list of its parts here, each once."""
    import jax

    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    parts = {tuple(part.start or 0 for part in shard.index): shard.data for shard in leaf.addressable_shards}
    return [parts[place] for place in sorted(parts)]


def _live_arrays() -> list[Any]:
    import jax
    from jax.extend.backend import backends

    return [array for platform in backends() for array in jax.live_arrays(platform)]
