"""The program of a live JAX executable, with its buffer assignment where the backend gives one."""

from __future__ import annotations

from typing import Any

from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.module import HloModule
from traceflow.program.schema import message


def executable_proto(compiled: Any) -> bytes:
    """The `HloProto` of an executable, as XLA would dump it.

    JAX hands out the module and the buffer assignment as two messages of other kinds than an `HloProto`, which holds
    both. On CPU the assignment comes without the heap's history.

    Args:
        compiled: What `jax.jit(f).lower(...).compile()` returns.

    Raises:
        AttributeError, RuntimeError, NotImplementedError: where the backend does not give its program away.
    """
    proto = message("HloProto")()
    (module,) = compiled.runtime_executable().hlo_modules()
    proto.hlo_module.ParseFromString(module.as_serialized_hlo_module_proto())
    assignment = getattr(compiled.memory_analysis(), "serialized_buffer_assignment_proto", None)
    if assignment:
        proto.buffer_assignment.ParseFromString(assignment)
    return bytes(proto.SerializeToString())


def lowered_proto(lowered: Any) -> bytes:
    """The `HloProto` of a program as it was written, with the author's shardings, before any compilation.

    Args:
        lowered: What `jax.jit(f).lower(...)` returns.

    Raises:
        AttributeError, NotImplementedError: where JAX does not give it away.
    """
    proto = message("HloProto")()
    proto.hlo_module.ParseFromString(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    return bytes(proto.SerializeToString())


def read_executable(compiled: Any) -> HloModule:
    """The program of an executable; see :func:`executable_proto`."""
    return read_hlo_proto(executable_proto(compiled))
