"""The shape of the sources: short, documented, annotated, and free of what belongs to one machine."""

from __future__ import annotations

import ast
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import PACKAGE_FILES, ROOT

MODULE_LINES, FUNCTION_LINES, MEDIAN_LINES = 500, 60, 8

# The only places that may speak to the user, or catch what nobody foresaw.
SPEAKS = ("traceflow/cli/", "traceflow/report/")
BOUNDARY = ("traceflow/cli/", "traceflow/remote.py")  # what drivers of stores raise is theirs to choose
EVERYTHING = {"BaseException", "Exception"}

# A path that only one machine has. URLs and relative paths have a letter, a dot or a slash before the slash.
MACHINE_PATH = re.compile(r"(?<![\w./~}*-])/(?:home|mnt|opt|root|tmp|Users|work)/\w")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    """A file's path from the root of the checkout."""
    return path.relative_to(ROOT).as_posix()


each_module = pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions_of(tree: ast.AST) -> list[Function]:
    """Every function, nested ones included; overloads are signatures only."""
    return [node for node in ast.walk(tree) if isinstance(node, Function) and not is_overload(node)]


def is_overload(node: Function | ast.ClassDef) -> bool:
    """Whether this is one more signature of the function that follows."""
    return any(ast.unparse(mark).endswith("overload") for mark in node.decorator_list)


def lines_of(function: Function) -> int:
    """Lines of a function's body without its docstring; a body that is a docstring only has none."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def public_without_docstring(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Public functions and classes of a module or class, and their public members, that say nothing."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None and not is_overload(node):
                yield node.name
            if isinstance(node, ast.ClassDef):
                yield from public_without_docstring(node)


def is_annotated(function: Function) -> bool:
    """Whether every parameter but self and cls, and what is returned, has an annotation."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    rest = [star for star in (given.vararg, given.kwarg) if star is not None]
    unbound = [p for i, p in enumerate([*named, *rest]) if not (i == 0 and p.arg in {"self", "cls"})]
    return function.returns is not None and all(p.annotation is not None for p in unbound)


def catches_everything(tree: ast.AST) -> list[int]:
    """The lines that catch Exception, BaseException or whatever comes."""
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return [handler.lineno for handler in handlers if EVERYTHING & set(caught(handler))]


def caught(handler: ast.ExceptHandler) -> list[str]:
    """The names of what a handler catches."""
    if handler.type is None:
        return ["BaseException"]
    return [ast.unparse(kind) for kind in getattr(handler.type, "elts", [handler.type])]


def prints(tree: ast.AST) -> list[int]:
    """The lines that call print."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if ast.unparse(call.func) == "print"]


@each_module
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path)) is not None
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES


@each_module
def test_public_names_have_docstrings(path: Path) -> None:
    assert list(public_without_docstring(parsed(path))) == []


@each_module
def test_functions_are_short_and_annotated(path: Path) -> None:
    functions = functions_of(parsed(path))
    assert {f.name: lines_of(f) for f in functions if lines_of(f) > FUNCTION_LINES} == {}
    assert [f.name for f in functions if not is_annotated(f)] == []


@each_module
def test_only_front_doors_print_and_catch_everything(path: Path) -> None:
    if not name_of(path).startswith(SPEAKS):
        assert prints(parsed(path)) == []
    if not name_of(path).startswith(BOUNDARY):
        assert catches_everything(parsed(path)) == []


def test_half_of_all_functions_fit_in_a_glance() -> None:
    lengths = [lines_of(f) for path in PACKAGE_FILES for f in functions_of(parsed(path))]
    assert statistics.median(lengths) <= MEDIAN_LINES


def test_no_tracked_file_names_a_place_on_one_machine() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files are tracked is not known")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {name: places_in(ROOT / name) for name in listed.split("\0") if (ROOT / name).is_file()}
    assert {name: places for name, places in found.items() if places} == {}


def places_in(path: Path) -> list[str]:
    """The machine paths in a file."""
    return MACHINE_PATH.findall(path.read_text(encoding="utf-8", errors="replace"))


def test_the_measures_tell_good_from_bad() -> None:
    tree = ast.parse(
        'def f(x, *rest: int) -> int:\n    """Say."""\n    try:\n        print(x)\n    except (OSError, Exception):\n'
        "        return 1\n\nclass C:\n    def g(self) -> None: ...\n    def _h(self): ...\n"
    )
    f, g, h = functions_of(tree)
    assert [lines_of(f), lines_of(g)] == [4, 1]
    assert [is_annotated(f), is_annotated(g), is_annotated(h)] == [False, True, False]
    assert list(public_without_docstring(tree)) == ["C", "g"]
    assert prints(tree) == [4]
    assert catches_everything(tree) == [5]
    assert catches_everything(ast.parse("try:\n    f()\nexcept OSError:\n    g()\n")) == []


@pytest.mark.parametrize("text", ["cd /" + "work/x", '"/' + 'home/me"', "=/" + "tmp/a"])
def test_a_machine_path_is_found(text: str) -> None:
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["https://host/home/x", "../work/x", "a/tmp/b", "/usr/bin/env", "~/work/x"])
def test_other_paths_are_not(text: str) -> None:
    assert not MACHINE_PATH.search(text)
