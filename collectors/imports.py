"""Hearing of an import: a function that is called as soon as a package has been imported, and not before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this module is loaded by every process of a program, and must itself load next to nothing
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def after_import(name: str, call: Callable[[], object]) -> None:
    """Call a function when the package `name` has been imported. It imports nothing itself.

    Args:
        name: A top-level package that is not imported yet.
        call: Called in the thread that imports, after the package's own code has run. It must not raise.
    """
    sys.meta_path.insert(0, _Watch(name, call))


class _Watch:
    """Asks the other finders for the one package, and lets its loader tell when it is done."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as others find it; None for every other module, and where nobody finds it."""
        if name != self._name:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._tell_after(spec.loader)
        return spec

    def _tell_after(self, loader: Loader) -> None:
        # To look for a module is not to import it: this ends with the execution, whoever searched before.
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        loader.exec_module = executed  # type: ignore[method-assign]
