"""Moments in a program that nobody wrote for traceflow: a step ends, something is compiled, it profiles itself.

All of them are told by the frameworks; the program stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Self


def on_optimizer_step(call: Callable[[object], object]) -> Callable[[], None]:
    """Call a function with the optimizer whenever one of PyTorch's has updated its parameters.

    Returns:
        What ends the watch.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    end: Callable[[], None] = register_optimizer_step_post_hook(
        lambda optimizer, _args, _kwargs: call(optimizer)
    ).remove
    return end


def on_annotated_step(
    around: Callable[[AbstractContextManager[object]], AbstractContextManager[object]],
) -> Callable[[], None]:
    """Enter `around(mark)` wherever the program enters a step that it annotates with JAX's `StepTraceAnnotation`.

    The mark is the annotation itself. It has not begun yet; to enter it is for `around` to do.

    Returns:
        What ends the watch. From then on an annotation is nothing but an annotation.
    """
    import jax

    annotation: Any = jax.profiler.StepTraceAnnotation
    watching = True

    class StepTraceAnnotation(annotation):  # type: ignore[misc]  # a class that is only known at run time
        def __new__(cls, *arguments: Any, **options: Any) -> Any:
            if watching or cls is not StepTraceAnnotation:
                return super().__new__(cls)
            return annotation(*arguments, **options)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._given = arguments, options

        @contextmanager
        def _mark(self) -> Generator[None]:
            # The time of an annotation begins when it is made. If the profiler does not run yet, it is lost.
            arguments, options = self._given
            super().__init__(*arguments, **options)
            super().__enter__()
            try:
                yield
            finally:
                super().__exit__(*sys.exc_info())

        def __enter__(self) -> Self:
            self._around = around(self._mark()) if watching else self._mark()
            self._around.__enter__()
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            self._around.__exit__(kind, error, trace)

    def end() -> None:
        nonlocal watching
        watching = False

    _replace(annotation, StepTraceAnnotation)
    return end


def on_compilation(begun: Callable[[], object], ended: Callable[[], object]) -> None:
    """Call functions when JAX has lowered a program and is about to compile it, and when it has compiled it."""
    import jax

    moments = {
        "/jax/core/compile/jaxpr_to_mlir_module_duration": begun,
        "/jax/core/compile/backend_compile_duration": ended,
    }

    def told(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event in moments:
            moments[event]()

    jax.monitoring.register_event_duration_secs_listener(told)


def on_own_profile(call: Callable[[], object]) -> None:
    """Call a function before anybody starts JAX's profiler, which exists once in a process."""
    import jax

    start: Any = jax.profiler.start_trace

    @wraps(start)
    def start_trace(*arguments: Any, **options: Any) -> Any:
        call()
        return start(*arguments, **options)

    _replace(start, start_trace)


def _replace(original: Any, substitute: Any) -> None:
    """Put `substitute` in the place of a public name of `jax.profiler`, where JAX itself looks for it, too."""
    import jax

    for module in (jax.profiler, sys.modules[original.__module__]):
        setattr(module, original.__name__, substitute)
