"""Every public name is in the reference: those of the package, of its public packages, and what questions answer with."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from documented import page_of
from sources import PACKAGE_FILES, PACKAGES

import traceflow
from traceflow.run import Run

REFERENCE = page_of("reference.md")
_DIRECTIVE = re.compile(
    r"^\.\. auto(module|class|function):: (\S+)\n(?:   :(members|no-members):(.*)\n)?", re.MULTILINE
)


def read() -> tuple[dict[str, set[str] | None], set[str]]:
    """Modules in the reference, with the names that are picked of them or None for all; and names by themselves."""
    modules: dict[str, set[str] | None] = {}
    names = set()
    for kind, name, option, listed in _DIRECTIVE.findall(REFERENCE):
        if kind == "module":
            modules[name] = {one.strip() for one in listed.split(",") if one.strip()} if option else None
        else:
            names.add(name)
    return modules, names


MODULES, NAMES = read()


def listed_in(name: str) -> set[int]:
    """What a module lists in `__all__`, which autodoc documents there wherever it was defined."""
    module = importlib.import_module(name)
    return {id(getattr(module, one)) for one in getattr(module, "__all__", ())}


LISTED = set().union(*(listed_in(name) for name, picked in MODULES.items() if picked is None))


def is_in_the_reference(thing: Any) -> bool:
    """Whether a class or function is documented where it is defined, where it is listed, or by itself."""
    module = MODULES.get(thing.__module__, set())
    return module is None or thing.__name__ in module or name_of(thing) in NAMES or id(thing) in LISTED


def public_things() -> Iterator[Any]:
    """What packages list, apart from plain values; a list of a module is about that module alone."""
    for name, folder in PACKAGES.items():
        for path in PACKAGE_FILES:
            if path.name == "__init__.py" and folder in path.parents:
                module = importlib.import_module(".".join((name, *path.parent.relative_to(folder).parts)))
                things = (getattr(module, listed) for listed in getattr(module, "__all__", ()))
                yield from (thing for thing in things if inspect.isclass(thing) or inspect.isfunction(thing))


def answers() -> Iterator[type]:
    """What the methods and properties of a run return, and the rows that these hold."""
    waiting: list[type] = [Run]
    seen: set[type] = set()
    while waiting:
        for one in told_by(waiting.pop()):
            if one not in seen and one.__module__.startswith("traceflow.") and not getattr(one, "_is_protocol", False):
                seen.add(one)
                waiting.append(one)
    yield from sorted(seen, key=lambda one: (one.__module__, one.__qualname__))


def told_by(thing: type) -> Iterator[type]:
    """The classes in the fields of a row, or of what the methods of a run return."""
    hints: list[Any] = []
    if dataclasses.is_dataclass(thing):
        hints += [field.type for field in dataclasses.fields(thing) if not field.name.startswith("_")]
    if thing is Run:
        members = [getattr(member, "fget", member) for name, member in vars(thing).items() if not name.startswith("_")]
        hints += [
            member.__annotations__["return"] for member in members if "return" in getattr(member, "__annotations__", {})
        ]
    scope = names_known_in(thing.__module__)
    words = {word for hint in hints for word in re.findall(r"[A-Za-z_]\w*", str(hint))}
    yield from (scope[word] for word in words & scope.keys() if inspect.isclass(scope[word]))


def names_known_in(module: str) -> dict[str, Any]:
    """The names that annotations of a module may use, those that it imports for type checkers included."""
    found = importlib.import_module(module)
    known = dict(vars(found))
    for node in ast.walk(ast.parse(inspect.getsource(found))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("traceflow."):
            origin = importlib.import_module(node.module or "")
            known |= {one.asname or one.name: getattr(origin, one.name, None) for one in node.names}
    return known


def name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def test_the_public_names_of_the_package_are_told_at_the_top() -> None:
    public = {name for name in traceflow.__all__ if not name.startswith("_")}
    assert {name for name in public if f"`tf.{name}`" not in REFERENCE} == set()


@pytest.mark.parametrize("thing", {name_of(thing): thing for thing in public_things()}.values(), ids=name_of)
def test_a_public_name_is_in_the_reference(thing: Any) -> None:
    assert is_in_the_reference(thing)


@pytest.mark.parametrize("thing", list(answers()), ids=name_of)
def test_what_a_question_answers_with_is_in_the_reference(thing: type) -> None:
    assert is_in_the_reference(thing)


def test_answers_are_found() -> None:
    assert {"CriticalPath", "Communication", "Sharding"} <= {one.__name__ for one in answers()}
    assert not is_in_the_reference(typing.NamedTuple)
