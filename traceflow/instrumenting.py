"""`instrument`: a step function whose calls are the steps of the recording they happen in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, TypeVar, cast, overload

from traceflow.recording import recording_here

_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def instrument(fn: _Function, *, name: str | None = None) -> _Function: ...
@overload
def instrument(fn: None = None, *, name: str | None = None) -> Callable[[_Function], _Function]: ...
def instrument(fn: _Function | None = None, *, name: str | None = None) -> _Function | Callable[[_Function], _Function]:
    """Make each call of a step function a step of the recording it happens in.

    Such a call is `recorder.step()` around the function, and ends when its result is ready. Within a step that is open
    already it is a part of that step. Calls are left alone outside a recording, in a thread other than the one that
    records, and while JAX traces them. Of a jitted function, the capture also keeps the program and how it was meant
    to be sharded, in `program/<name>.*`; that is written after the last step. Whatever else the function offers, such
    as `lower` of a jitted one, stays reachable.

    Args:
        fn: The function, jitted or not; a method works, too.
        name: What the capture calls it. None takes the function's own name.

    Returns:
        A callable in place of `fn`; without `fn`, the decorator.

    Example:
        >>> @instrument(name="train")
        ... def step(state: int, batch: int) -> int:
        ...     return state + batch
        >>> step(1, batch=2)
        3
    """
    if fn is None:
        return lambda function: instrument(function, name=name)
    return cast("_Function", _Instrumented(fn, name or str(getattr(fn, "__name__", "step"))))


class _Instrumented:
    """A function that looks for a recording whenever it is called."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        update_wrapper(self, fn)
        self._fn = fn
        self._name = name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        recording = recording_here()
        if recording is None or _traced((args, kwargs)):
            return self._fn(*args, **kwargs)
        recording.remember(self._name, self._fn, args, kwargs)
        if not recording.awaits_step():
            return self._fn(*args, **kwargs)
        with recording.step() as step:
            return step.ready(self._fn(*args, **kwargs))

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.__dict__["_fn"], attribute)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def _traced(tree: object) -> bool:
    """Whether JAX is tracing the call: there is nothing to wait for, nor a step."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return False
    tracer = jax.core.Tracer
    try:
        return any(issubclass(kind, tracer) for kind in set(map(type, jax.tree.leaves(tree))))
    except (TypeError, ValueError):
        return False  # dictionaries whose keys JAX cannot sort: JAX does not trace such a call either
