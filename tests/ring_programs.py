"""Products on a ring of devices: as they are right, in several forms, and as people get them wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from traceflow.collectors.jax import compile_only
from traceflow.collectors.workloads.collective_matmul import AXIS, Matrix, route
from traceflow.collectors.workloads.line_mesh import line_mesh
from traceflow.program.module import HloModule

N = 4
Body: TypeAlias = Callable[[jax.Array, jax.Array], Any]

# JAX does not tell the types of what these return.
_send: Callable[[jax.Array], Any] = partial(jax.lax.ppermute, axis_name=AXIS, perm=route(N))


def _index() -> Any:
    return jax.lax.axis_index(AXIS)


def _rows(w: jax.Array, block: Any, width: int) -> Any:
    return jax.lax.dynamic_slice_in_dim(w, block % N * width, width)


def _ring(a: jax.Array, w: jax.Array, source: Callable[[Any, int], Any]) -> Any:
    """The ring of the notes, with the block of rows that `source` names."""
    width, current = a.shape[1], a
    result = jnp.zeros((a.shape[0], w.shape[1]), a.dtype)
    for step in range(N):
        result = result + current @ _rows(w, source(_index(), step), width)
        if step < N - 1:
            current = _send(current)
    return result


def right(a: jax.Array, w: jax.Array) -> Any:
    return _ring(a, w, lambda index, step: index + step)


def backwards(a: jax.Array, w: jax.Array) -> Any:
    """Takes the rows as if blocks came from the other side."""
    return _ring(a, w, lambda index, step: index - step)


def shifted(a: jax.Array, w: jax.Array) -> Any:
    """Is always one block ahead."""
    return _ring(a, w, lambda index, step: index + step + 1)


def sum_travels(a: jax.Array, w: jax.Array) -> Any:
    """Sends the sum along with the block: it adds up columns of different devices."""
    width, current = a.shape[1], a
    result = current @ _rows(w, _index(), width)
    for step in range(1, N):
        current, result = _send(current), _send(result)
        result = result + current @ _rows(w, _index() + step, width)
    return result


def summed_again(a: jax.Array, w: jax.Array) -> Any:
    """Adds up over the devices what is complete on each."""
    return jax.lax.psum(right(a, w), AXIS)


def one_round_less(a: jax.Array, w: jax.Array) -> Any:
    """Leaves the last block out."""
    width, current = a.shape[1], a
    result = current @ _rows(w, _index(), width)
    for step in range(1, N - 1):
        current = _send(current)
        result = result + current @ _rows(w, _index() + step, width)
    return result


def one_too_many(a: jax.Array, w: jax.Array) -> Any:
    """Sends before it multiplies, so that the last block is the device's own: right, but four permutes."""
    width, current = a.shape[1], a
    result = jnp.zeros((a.shape[0], w.shape[1]), a.dtype)
    for step in range(N):
        current = _send(current)
        result = result + current @ _rows(w, _index() + step + 1, width)
    return result


def in_turn(a: jax.Array, w: jax.Array) -> Any:
    """Sends a block only when it was multiplied: a zero that the product is needed for is added to it."""
    width, current = a.shape[1], a
    result = jnp.zeros((a.shape[0], w.shape[1]), a.dtype)
    for step in range(N):
        update = current @ _rows(w, _index() + step, width)
        result = result + update
        if step < N - 1:
            current = _send(current + 0 * update[0, 0])
    return result


def loop(a: jax.Array, w: jax.Array) -> Any:
    """The ring as a loop; its last round is outside, so that nothing is sent in vain."""
    width = a.shape[1]

    def turn(step: Any, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        current, result = carried
        return _send(current), result + current @ _rows(w, _index() + step, width)

    start = jax.lax.pcast(jnp.zeros((a.shape[0], w.shape[1]), a.dtype), AXIS, to="varying")
    current, result = jax.lax.fori_loop(0, N - 1, turn, (a, start))
    return result + current @ _rows(w, _index() + N - 1, width)


def loop_sends_in_vain(a: jax.Array, w: jax.Array) -> Any:
    """The ring as a loop that sends in its last round, too."""
    width = a.shape[1]

    def turn(step: Any, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        current, result = carried
        return _send(current), result + current @ _rows(w, _index() + step, width)

    start = jax.lax.pcast(jnp.zeros((a.shape[0], w.shape[1]), a.dtype), AXIS, to="varying")
    return jax.lax.fori_loop(0, N, turn, (a, start))[1]


def both_ways(a: jax.Array, w: jax.Array) -> Any:
    """Blocks travel in both directions: half as many rounds."""
    width, towards = a.shape[1], [(target, source) for source, target in route(N)]
    ahead = behind = a
    result = a @ _rows(w, _index(), width)
    for step in range(1, N // 2 + 1):
        ahead = _send(ahead)
        result = result + ahead @ _rows(w, _index() + step, width)
        if step < N / 2:
            behind = jax.lax.ppermute(behind, AXIS, towards)
            result = result + behind @ _rows(w, _index() - step, width)
    return result


def _sums(a: jax.Array, w: jax.Array, columns: Callable[[Any, int], Any]) -> Any:
    width = w.shape[1] // N

    def term(step: int) -> jax.Array:
        return a @ jax.lax.dynamic_slice_in_dim(w, columns(_index(), step) % N * width, width, axis=1)

    total = term(0)
    for step in range(1, N):
        total = _send(total) + term(step)
    return total


def sums(a: jax.Array, w: jax.Array) -> Any:
    """Partial sums travel."""
    return _sums(a, w, lambda index, step: index + step + 1)


def sums_of_others(a: jax.Array, w: jax.Array) -> Any:
    """Adds its term to the sum of other columns."""
    return _sums(a, w, lambda index, step: index - step - 1)


def sums_end_elsewhere(a: jax.Array, w: jax.Array) -> Any:
    """Every sum ends one device too early."""
    return _sums(a, w, lambda index, step: index + step)


def sums_in_turn(a: jax.Array, w: jax.Array) -> Any:
    """Computes a term only when the sum that it is added to has come."""
    width, total = w.shape[1] // N, jnp.zeros((a.shape[0], w.shape[1] // N), a.dtype)
    for step in range(N):
        arrived = _send(total) if step else total
        columns = jax.lax.dynamic_slice_in_dim(w, (_index() + step + 1) % N * width, width, axis=1)
        total = arrived + (a + 0 * arrived[0, 0]) @ columns
    return total


def sums_loop(a: jax.Array, w: jax.Array) -> Any:
    """Partial sums travel in a loop, which begins by sending zeros."""
    width = w.shape[1] // N

    def turn(step: Any, total: jax.Array) -> Any:
        columns = jax.lax.dynamic_slice_in_dim(w, (_index() + step + 1) % N * width, width, axis=1)
        return _send(total) + a @ columns

    start = jax.lax.pcast(jnp.zeros((a.shape[0], width), a.dtype), AXIS, to="varying")
    return jax.lax.fori_loop(0, N, turn, start)


def assembled(a: jax.Array, w: jax.Array) -> Any:
    """A is split by rows: each round gives rows of the result."""
    return _assembled(a, w, lambda index, step: index + step)


def assembled_elsewhere(a: jax.Array, w: jax.Array) -> Any:
    """Puts the rows where those of another block belong."""
    return _assembled(a, w, lambda index, step: index - step)


def _assembled(a: jax.Array, w: jax.Array, place: Callable[[Any, int], Any]) -> Any:
    height, current = a.shape[0], a
    result = jax.lax.pcast(jnp.zeros((N * height, w.shape[1]), a.dtype), AXIS, to="varying")
    for step in range(N):
        at = place(_index(), step) % N * height
        result = jax.lax.dynamic_update_slice_in_dim(result, current @ w, at, 0)
        if step < N - 1:
            current = _send(current)
    return result


@dataclass(frozen=True)
class Program:
    """A body for each device, how A, W and the result are split, and whether it computes A @ W."""

    body: Body
    axes: tuple[int, int, int] = (1, 1, 1)
    correct: bool = True


PROGRAMS = {
    "right": Program(right),
    "backwards": Program(backwards, correct=False),
    "shifted": Program(shifted, correct=False),
    "sum_travels": Program(sum_travels, correct=False),
    "summed_again": Program(summed_again, correct=False),
    "one_round_less": Program(one_round_less, correct=False),
    "one_too_many": Program(one_too_many),
    "in_turn": Program(in_turn),
    "loop": Program(loop),
    "loop_sends_in_vain": Program(loop_sends_in_vain),
    "both_ways": Program(both_ways),
    "sums": Program(sums, (1, 0, 1)),
    "sums_of_others": Program(sums_of_others, (1, 0, 1), correct=False),
    "sums_end_elsewhere": Program(sums_end_elsewhere, (1, 0, 1), correct=False),
    "sums_in_turn": Program(sums_in_turn, (1, 0, 1)),
    "sums_loop": Program(sums_loop, (1, 0, 1)),
    "assembled": Program(assembled, (0, 1, 1)),
    "assembled_elsewhere": Program(assembled_elsewhere, (0, 1, 1), correct=False),
}


def _split(mesh: Mesh, axis: int) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def _function(program: Program) -> tuple[Any, list[NamedSharding]]:
    mesh = line_mesh(N, AXIS)
    *operands, result = (_split(mesh, axis) for axis in program.axes)
    specs = tuple(one.spec for one in operands)
    body = jax.shard_map(program.body, mesh=mesh, in_specs=specs, out_specs=result.spec, check_vma=False)
    return jax.jit(body), operands


def lowered(name: str, size: tuple[int, int, int] = (8, 16, 32)) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    """A program, and the shapes that it is compiled for."""
    function, shardings = _function(PROGRAMS[name])
    shapes = [(size[0], size[1]), (size[1], size[2])]
    return function, [jax.ShapeDtypeStruct(s, np.float32, sharding=p) for s, p in zip(shapes, shardings, strict=True)]


def compiled(name: str, size: tuple[int, int, int] = (8, 16, 32)) -> HloModule:
    """What the compiler makes of a program; nothing runs."""
    function, arguments = lowered(name, size)
    module = compile_only(function, *arguments).compiled
    assert module is not None
    return module


def product(name: str, a: Matrix, w: Matrix) -> Matrix:
    """What a program computes."""
    function, shardings = _function(PROGRAMS[name])
    return np.asarray(function(*(jax.device_put(m, s) for m, s in zip((a, w), shardings, strict=True))))
