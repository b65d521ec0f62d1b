"""Names of the figures in results, and what an output holds under them.

Which names there are follows from the schemas, so that a name means the same for every input. A name is the last part
of a path, or more of it from the right: `exposed_share`, `communication.exposed_share`, `by_kind_ns.compute`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from traceflow.errors import TraceflowError
from traceflow.schemas import KINDS, schema

_NUMBERS = {"integer", "number", "boolean"}
_SHORT = {"step_ns": ("summary", "steady_state", "median_ns")}
_NO_QUESTION = (
    "all",
    "what-if",
    "savings",
    "diff",
    "check",
    "plan",
    "plan-check",
    "plan-compare",
)  # asked of more than one input, or told more, or made of the others
_DETAILS = {("moe", "calls"), ("communication", "by_purpose")}  # other tables in parts or sums: meant where named
_LEFT_OUT = {"by_kind_ns"}  # objects that leave out what is zero
_ANY = "*"  # a key that the data name, such as a kind of work


@dataclass(frozen=True, slots=True)
class Path:
    """Where a figure is: the kind of result, and the keys to it, without places in lists."""

    kind: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.kind.replace("-", "_"), *self.keys))


def path_of(name: str) -> Path:
    """The figure that a name means: of those in one kind of result the least deep.

    Raises:
        TraceflowError: TF112 where no figure is called so, or several are, in different results or equally deep.

    Example:
        >>> str(path_of("exposed_share")), str(path_of("critical_path.by_kind_ns.compute"))
        ('communication.per_participant.exposed_share', 'critical_path.by_kind_ns.compute')
    """
    parts = tuple(name.split("."))
    if name in _SHORT:
        return Path(_SHORT[name][0], _SHORT[name][1:])
    found = [path for path in _paths() if _ends_with(path, parts)]
    found = [path for path in found if (path.kind, path.keys[0]) not in _DETAILS or path.keys[0] in parts]
    least = {kind: min(len(path.keys) for path in found if path.kind == kind) for kind in (p.kind for p in found)}
    shallow = [path for path in found if len(path.keys) == least[path.kind]]
    if len(shallow) > 1:
        hint = f"name one of {', '.join(map(str, shallow))}"
        raise TraceflowError("TF112", f"cannot tell what {name} means", "several figures are called so", hint)
    if not shallow:
        every = sorted({path.keys[-1] for path in _paths() if path.keys[-1] != _ANY} | {*_SHORT})
        near = get_close_matches(parts[-1], every, n=3)
        hint = f"there is {', '.join(near)}" if near else "names are those of the JSON output"
        raise TraceflowError("TF112", f"cannot tell what {name} means", "no figure is called so", hint)
    return _spelt(shallow[0], parts)


def values_at(result: Mapping[str, Any], path: Path) -> list[Any] | None:
    """Everything that a result holds at a path, nulls included; None where a part of the way is null or missing.

    Args:
        result: The `result` of an output.
        path: Of its kind.
    """
    values: list[Any] = [result]
    for key in path.keys:
        nested = [item for value in values for item in (value if isinstance(value, list) else [value])]
        if any(not isinstance(item, Mapping) for item in nested):
            return None
        if path.keys[0] not in _LEFT_OUT and any(key not in item for item in nested):
            return None
        values = [item.get(key, 0) for item in nested]
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def why_unknown(skipped: Sequence[Mapping[str, Any]], path: Path) -> str | None:
    """The reason that an output gives for what is null or missing at a path, None where it gives none."""
    for row in skipped:
        pointer = [part for part in row["what"].removeprefix("/result").split("/") if part and not part.isdigit()]
        told = tuple(part for part in pointer if part != _ANY)
        if told and told == path.keys[: len(told)]:
            return str(row["reason"])
    return None


def _ends_with(path: Path, parts: tuple[str, ...]) -> bool:
    """Whether a name is the end of a path, or its kind and the end of it."""
    if parts[0] == path.kind.replace("-", "_") and len(parts) > 1:
        parts = parts[1:]
    keys = path.keys[-len(parts) :]
    return len(keys) == len(parts) and keys[0] != _ANY and all(k in {_ANY, p} for k, p in zip(keys, parts, strict=True))


def _spelt(path: Path, parts: tuple[str, ...]) -> Path:
    """The path with the keys that the name gives where the data choose them."""
    keys = list(path.keys)
    for back in range(1, min(len(parts), len(keys)) + 1):
        if keys[-back] == _ANY:
            keys[-back] = parts[-back]
    return Path(path.kind, tuple(keys))


@lru_cache(maxsize=1)
def _paths() -> tuple[Path, ...]:
    asked = [schema(kind) for kind in KINDS if kind not in _NO_QUESTION]
    return tuple(
        Path(whole["properties"]["kind"]["const"], keys)
        for whole in asked
        for keys in dict.fromkeys(_numbers(whole["properties"]["result"], whole["$defs"], ()))
    )


def _numbers(node: Mapping[str, Any], parts: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Keys to every number of a schema."""
    if "$ref" in node:
        yield from _numbers(_referred(node["$ref"], parts), parts, keys)
    for choice in (*node.get("oneOf", ()), *node.get("anyOf", ()), *node.get("allOf", ())):
        yield from _numbers(choice, parts, keys)
    types = node.get("type", ())
    if keys and not _NUMBERS.isdisjoint([types] if isinstance(types, str) else types):
        yield keys
    for key, child in node.get("properties", {}).items():
        yield from _numbers(child, parts, (*keys, key))
    if isinstance(items := node.get("items"), Mapping):
        yield from _numbers(items, parts, keys)
    if isinstance(more := node.get("additionalProperties"), Mapping):
        for key in _names(node.get("propertyNames", {}), parts):
            yield from _numbers(more, parts, (*keys, key))


def _names(node: Mapping[str, Any], parts: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that an object can have; any, where the schema does not list them."""
    named = _referred(node["$ref"], parts) if "$ref" in node else node
    return tuple(named.get("enum", (_ANY,)))


def _referred(reference: str, parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference refers to; one without a file lies among the definitions, where it stands."""
    base, _, pointer = reference.partition("#")
    node: Mapping[str, Any] = next((part for part in parts.values() if part["$id"] == base), parts["definitions"])
    for key in filter(None, pointer.split("/")):
        node = node[key]
    return node
