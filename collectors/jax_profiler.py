"""The JAX profiler as a source of captures: device and host activity as an XSpace, with the compiled programs.

The Python tracer stays off: it slows the host that is being measured, and the annotations already tell the
steps apart. Host level 2 records runtime calls and, on CPU, the HLO operations.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from traceflow.capture import Devices

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_HOST_TRACER_LEVEL = 2
_STEP = "traceflow.step"


class JaxProfiler:
    """Starts and stops the profiler of this process, annotates its trace, and waits for arrays."""

    def __init__(self, *, hlo: bool) -> None:
        self._hlo = hlo
        self._compilations = 0
        self._compile_ns = 0

    def open(self) -> None:
        """Count what JAX compiles from now on, until `close`."""
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._note_compilation)

    def prepare(self) -> None:
        """Nothing to do: this profiler needs no warm-up of its own."""

    def start(self, folder: Path) -> None:
        """Start tracing; `stop` writes the trace into `folder` as a TensorBoard log directory."""
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = _HOST_TRACER_LEVEL
        options.enable_hlo_proto = self._hlo
        jax.profiler.start_trace(folder, profiler_options=options)

    def stop(self) -> None:
        """Wait for the work in flight, which would be missing from the trace, and write the trace."""
        import jax

        try:
            self.wait(self.pending(()))
        finally:
            jax.profiler.stop_trace()

    def close(self) -> None:
        """Stop counting compilations."""
        import jax

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
        """A copy of `tree` on the host, with numpy arrays for its arrays."""
        import jax

        return jax.device_get(tree)

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

    def shared(self, _path: Path, _folder: Path) -> None:
        """Each process writes a capture of its own."""


def _live_arrays() -> list[Any]:
    import jax
    from jax.extend.backend import backends

    return [array for platform in backends() for array in jax.live_arrays(platform)]
