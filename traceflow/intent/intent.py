"""How a program is meant to be sharded: what was read from it, and what only its author can say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from traceflow.intent.hlo_sharding import spec_of
from traceflow.intent.mesh import Axes, Mesh
from traceflow.intent.shardy import Stated, meshes, stated
from traceflow.intent.spec import Spec
from traceflow.program.module import HloModule
from traceflow.program.sharding import parse_sharding


class Role(StrEnum):
    """Where a sharding is stated."""

    ARGUMENT = "argument"
    RESULT = "result"
    CONSTRAINT = "constraint"


@dataclass(frozen=True, slots=True)
class ArrayIntent:
    """How one array is meant to lie."""

    name: str  # as in the source: an argument's path, a result's, or the scope of a constraint
    role: Role
    shape: tuple[int, ...]
    dtype: str
    spec: Spec | None  # None where nothing is stated: the compiler may choose
    source: str = ""
    number: int | None = None  # of an argument, as the compiled program counts them


@dataclass(frozen=True, slots=True)
class Intent:
    """How a program is meant to be sharded.

    `batch`, `params` and `expected` are what no program says by itself; see :func:`intent`.
    """

    mesh: Mesh | None = None
    arrays: tuple[ArrayIntent, ...] = ()
    batch: Axes | None = None
    params: Mapping[str, Spec] = field(default_factory=dict)
    activations: Mapping[str, Spec] = field(default_factory=dict)
    expected: tuple[str, ...] | None = None

    def __or__(self, other: Intent) -> Intent:
        """This, with what the other states in addition or instead."""
        return replace(
            self,
            mesh=other.mesh or self.mesh,
            arrays=self.arrays + other.arrays,
            batch=self.batch if other.batch is None else other.batch,
            params={**self.params, **other.params},
            activations={**self.activations, **other.activations},
            expected=self.expected if other.expected is None else other.expected,
        )


def intent(
    *,
    batch: str | Sequence[str] | None = None,
    params: Mapping[str, Spec | object] | None = None,
    activations: Mapping[str, Spec | object] | None = None,
    expect: Sequence[str] | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
) -> Intent:
    """State what cannot be read from a program.

    Args:
        batch: The axes that split the batch, in every program that has one.
        params: Partition specs of arguments, by a pattern of their names as `fnmatch` reads it.
        activations: Partition specs of intermediate arrays, by a pattern of their scopes, such as ``"*/mlp/up"``.
        expect: The collectives that may happen, as ``"all-reduce(data)"``; none other. ``[]`` allows none at all.
        mesh: Sizes of axes by name, where the program names no mesh.

    Returns:
        The intent, to be joined to what was read: ``read | intent(...)``.

    Example:
        >>> stated = intent(batch="data", params={"w1": Spec.of("data", None)}, expect=["reduce-scatter(data)"])
        >>> stated.batch, str(stated.params["w1"])
        (('data',), "P('data')")
    """
    return Intent(
        mesh=mesh if mesh is None or isinstance(mesh, Mesh) else Mesh.of(mesh),
        batch=None if batch is None else (batch,) if isinstance(batch, str) else tuple(batch),
        params=_specs(params),
        activations=_specs(activations),
        expected=None if expect is None else tuple(expect),
    )


def _specs(given: Mapping[str, Spec | object] | None) -> dict[str, Spec]:
    """Specs of traceflow, of JAX, or as text."""
    return {name: spec if isinstance(spec, Spec) else Spec.parse(str(spec)) for name, spec in (given or {}).items()}


def written_intent(module: HloModule) -> Intent:
    """What a program says of its own sharding, in HLO before partitioning.

    Shardy's attributes keep the user's axes. Older programs have HLO shardings alone; the mesh is then the one that
    the scopes of JAX's constraints name, or else a single axis `devices`.

    Args:
        module: As the dump holds it before optimisation.

    Returns:
        The mesh, and how arguments, results and constraints are meant to lie; empty where nothing is sharded.
    """
    named = meshes(module.module_attributes.get("xla.sdy.meshes", ""))
    mesh = max(named.values(), key=lambda one: len(one.axes), default=None) or _mesh_of_scopes(module)
    arrays = tuple(array for row in range(len(module)) if (array := _array(module, row, mesh)))
    return Intent(mesh=mesh, arrays=arrays)


_CONSTRAINTS = {"Sharding": Role.CONSTRAINT, "xla.sdy.FuncResultSharding": Role.RESULT}
_MESH = re.compile(r"mesh=Mesh\(((?:'\w+': \d+(?:, )?)+)\)")
_PARAMETERS = re.compile(r"\[sharding=.*$", re.DOTALL)  # of a constraint, as older versions of JAX write them in scopes


def _mesh_of_scopes(module: HloModule) -> Mesh | None:
    for scope in module.operation_name:
        if match := _MESH.search(scope):
            return Mesh.of({name: int(size) for name, size in re.findall(r"'(\w+)': (\d+)", match[1])})
    devices = max((len(parse_sharding(text).devices) for text in module.sharding.values()), default=0)
    return Mesh.of({"devices": devices}) if devices > 1 else None


def _array(module: HloModule, row: int, mesh: Mesh | None) -> ArrayIntent | None:
    """What one instruction states: an argument its own sharding, a constraint that of its operand."""
    argument = module.opcode[row] == "parameter" and module.computation[row] == module.entry
    role = Role.ARGUMENT if argument else _CONSTRAINTS.get(module.custom_call_target.get(row, ""))
    if role is None:
        return None
    dtype, shape = _shape(module.shape[row])
    return ArrayIntent(
        name=_PARAMETERS.sub("", module.operation_name[row]) or module.instruction_name[row],
        role=role,
        shape=shape,
        dtype=dtype,
        spec=_spec(module, row, mesh, len(shape)),
        source=module.source[row],
        number=int(module.parameter_number[row]) if argument else None,
    )


def _spec(module: HloModule, row: int, mesh: Mesh | None, rank: int) -> Spec | None:
    attributes = module.attributes.get(row, {})
    for said in stated(attributes.get("xla.sdy.sharding", "")):
        return said.spec if _states(said, mesh) else None
    text = module.sharding.get(row)
    shardy = "xla.sdy.meshes" in module.module_attributes
    return None if shardy or text is None or mesh is None else spec_of(parse_sharding(text), mesh, rank)


def _states(said: Stated, mesh: Mesh | None) -> bool:
    """Whether a sharding says anything of this mesh: one that is open everywhere leaves all to the compiler."""
    known = mesh.axes if mesh is not None else {}
    return all(axis.partition(":")[0] in known for axis in said.spec.axes) and bool(said.spec.axes or not said.open)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    dtype, _, sizes = text.rstrip("]").partition("[")
    return dtype, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
