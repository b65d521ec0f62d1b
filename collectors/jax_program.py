"""The program of a jitted function and the intent it was written with, beside the trace of what it did.

What a call was given is remembered by shape, dtype and sharding alone, so that no array is kept alive. Once the
recording has ended, the function is lowered and compiled for that again, which JAX answers from what it still has.

In the capture, each function has four files in `program/`: `<name>.stablehlo.txt`, the program as it was written,
with the user's mesh axes; `<name>.hlo.txt`, the program as it was compiled, for one device; `<name>.hlo.pb`, the same
as a `HloProto` with its buffer assignment; and `<name>.json`, with the placement of each argument and result as
`PartitionSpec`, given and compiled, and the compiler's own figures.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from traceflow.collectors.collector import FAILURES, reason
from traceflow.program.executable import executable_proto, lowered_proto

FOLDER = "program"
SCHEMA_VERSION = 1
_COST_NOTE = "estimates of the compiler; the body of a loop counts once"
_MEMORY_NOTE = "figures of the compiler, per device; on CPU its peak omits temporaries"
_COSTS = {"flops": "flops", "accessed_bytes": "bytes accessed", "transcendentals": "transcendentals"}
_MEMORY = ("argument", "output", "alias", "temp", "generated_code")

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A jitted function and what it was called with, as shapes."""

    name: str
    function: Any  # jax.stages.Wrapped
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def remembered(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Call]:
    """A call without its arrays; nothing for a function that is not jitted, and has no program."""
    jax: Any = sys.modules.get("jax")
    if jax is None or not isinstance(function, jax.stages.Wrapped):
        return []
    args, kwargs = jax.tree.map(_shape_of, (args, kwargs))
    return [Call(name, function, args, kwargs)]


def _shape_of(leaf: Any) -> Any:
    """A leaf by shape; whatever else there is, such as static arguments, as it is."""
    import jax
    import numpy as np

    if isinstance(leaf, np.ndarray):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    if not isinstance(leaf, jax.Array):
        return leaf
    # Where an array is only by default is no intent, and would contradict those that were placed on purpose.
    sharding = leaf.sharding if leaf.committed else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.aval.weak_type)


def write_programs(folder: Path, calls: Iterable[Call]) -> None:
    """Write the programs of `calls` into `program/` in the capture; one that cannot be had says why in its JSON.

    Raises:
        OSError: when nothing can be written.
    """
    for call in calls:
        (folder / FOLDER).mkdir(exist_ok=True)
        place = _free_place(folder / FOLDER, re.sub(r"[^\w.-]+", "_", call.name))
        said: Json = {"schema_version": SCHEMA_VERSION, "name": call.name, "problem": None}
        try:
            said |= _written(call, place)
        except FAILURES as error:
            said["problem"] = reason(error)
        _beside(place, ".json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _free_place(folder: Path, name: str) -> Path:
    """Two functions may bear one name; the second becomes `name-2`."""
    number = 1 + sum(1 for file in folder.glob("*.json") if re.fullmatch(rf"{re.escape(name)}(-\d+)?", file.stem))
    return folder / (name if number == 1 else f"{name}-{number}")


def _beside(place: Path, suffix: str) -> Path:
    return place.with_name(place.name + suffix)


def _written(call: Call, place: Path) -> Json:
    """Write the program as it was written and as it was compiled, and return what the JSON says."""
    traced = call.function.trace(*call.args, **call.kwargs)
    lowered = traced.lower()
    _beside(place, ".stablehlo.txt").write_text(lowered.as_text(), encoding="utf-8")
    with suppress(*FAILURES):  # the text has it, if without its lines
        _beside(place, ".before_optimizations.hlo.pb").write_bytes(lowered_proto(lowered))
    compiled = lowered.compile()
    _beside(place, ".hlo.txt").write_text(compiled.as_text(), encoding="utf-8")
    with suppress(*FAILURES):  # a backend that keeps it to itself has told all but the buffers in the text
        _beside(place, ".hlo.pb").write_bytes(executable_proto(compiled))
    return {
        "inputs": _inputs(call, traced, lowered, compiled),
        "outputs": _outputs(traced, lowered, compiled),
        "cost": {
            "note": _COST_NOTE,
            "lowered_all_devices": _cost(lowered.cost_analysis()),
            "compiled_per_device": _cost(compiled.cost_analysis()),
        },
        "memory": _memory(compiled.memory_analysis()),
    }


def _inputs(call: Call, traced: Any, lowered: Any, compiled: Any) -> list[Json]:
    import jax

    infos, _ = jax.tree_util.tree_flatten_with_path(lowered.args_info)
    given = _given(call, [info for _, info in infos])
    placed = _flat(compiled.input_shardings)
    names = _names(traced, "arg_names", [path for path, _ in infos])
    return [
        _value(name, info, intended, sharding) | {"donated": info.donated}
        for name, (_, info), intended, sharding in zip(names, infos, given, placed, strict=True)
    ]


def _outputs(traced: Any, lowered: Any, compiled: Any) -> list[Json]:
    import jax

    infos, _ = jax.tree_util.tree_flatten_with_path(lowered.out_info)
    names = _names(traced, "result_paths", [path for path, _ in infos])
    return [
        _value(name, info, getattr(info, "sharding", None), sharding)
        for name, (_, info), sharding in zip(names, infos, _flat(compiled.output_shardings), strict=True)
    ]


def _given(call: Call, infos: list[Any]) -> list[Any]:
    """The sharding each argument was given with, in the order of `infos`, which leave static arguments out.

    Static arguments look like scalars, so that scalars cannot be told apart from them. Arrays can.
    """
    import jax

    leaves = jax.tree.leaves((call.args, call.kwargs))
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.shape]
    shardings = (array.sharding for array in arrays)
    return [next(shardings, None) if info.shape else None for info in infos]


def _flat(shardings: Any) -> list[Any]:
    """Shardings in order, None for an argument that the program does not use."""
    import jax

    return jax.tree.leaves(shardings, is_leaf=lambda sharding: sharding is None)


def _names(traced: Any, kind: str, paths: list[Any]) -> list[str]:
    """Names as in the source, such as `state['w']`, where JAX tells; else the places in the tree of arguments."""
    import jax

    debug_info = getattr(getattr(traced.jaxpr, "jaxpr", None), "debug_info", None)
    names = getattr(debug_info, kind, None) or ()
    places = [jax.tree_util.keystr(path) for path in paths]
    return [name or place for name, place in zip(names, places, strict=True)] if len(names) == len(places) else places


def _value(name: str, info: Any, intended: Any, compiled: Any) -> Json:
    return {
        "path": name,
        "shape": list(info.shape),
        "dtype": str(info.dtype),
        "intended": _placement(intended, info.shape),
        "compiled": _placement(compiled, info.shape),
    }


def _placement(sharding: Any, shape: tuple[int, ...]) -> Json | None:
    """A sharding as mesh and spec, one entry per dimension; None where there is no such thing."""
    import jax

    if sharding is None:
        return None
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return {"mesh": None, "spec": None, "local_shape": list(sharding.shard_shape(shape)), "text": str(sharding)}
    spec = [_axes(entry) for entry in sharding.spec]
    return {
        "mesh": dict(sharding.mesh.shape),
        "spec": spec + [None] * (len(shape) - len(spec)),
        "local_shape": list(sharding.shard_shape(shape)),
        "text": str(sharding.spec),
    }


def _axes(entry: Any) -> list[str] | str | None:
    if entry is None or isinstance(entry, str):
        return entry
    return [str(axis) for axis in entry] if isinstance(entry, tuple) else str(entry)


def _cost(analysis: Mapping[str, float] | None) -> Json:
    """The figures that mean something; None where the compiler gives none, which it marks by negative ones."""
    figures = {name: (analysis or {}).get(key, -1) for name, key in _COSTS.items()}
    return {name: figure if figure >= 0 else None for name, figure in figures.items()}


def _memory(analysis: Any) -> Json:
    said: Json = {"note": _MEMORY_NOTE, "peak_bytes": getattr(analysis, "peak_memory_in_bytes", None)}
    return said | {f"{name}_bytes": getattr(analysis, f"{name}_size_in_bytes", None) for name in _MEMORY}
