"""IPython and Jupyter: after `%load_ext traceflow`, a cell that begins with `%%traceflow` is recorded and explained."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from traceflow.errors import TraceflowError
from traceflow.recording import Recorder, Recording, record
from traceflow.run import open_run

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import InteractiveShell


_HINTS = {
    "TF110": "name another one, or give -f to replace it",
    "TF116": "give --framework jax or --framework torch",
}
"""What to do in a notebook, where it is said otherwise elsewhere."""


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Make `%%traceflow` known; `%load_ext traceflow` calls this.

    Args:
        shell: Where it is to be known.
    """
    shell.register_magics(CellMagic)


@magics_class
class CellMagic(Magics):
    """The magic `%%traceflow`."""

    shell: Any

    @magic_arguments()
    @argument("path", nargs="?", type=Path, help="Capture to make; else the next free one of traceflow-cell-1, -2, ...")
    @argument("-o", "--output", metavar="NAME", help="Variable to put the opened run in.")
    @argument(
        "--steps", type=int, default=1, metavar="N", help="Steps to record: how often the cell runs; 1 by default."
    )
    @argument(
        "--warmup", type=int, default=0, metavar="N", help="How often it runs before them, to compile; 0 by default."
    )
    @argument("--framework", choices=("jax", "torch"), help="What computes, where both are imported.")
    @argument("--memory", action="store_true", help="PyTorch: record every allocation.")
    @argument("--xla-dump", action="store_true", help="JAX: keep what XLA dumps of each program.")
    @argument("-f", "--force", action="store_true", help="Replace the capture, if there is one.")
    @cell_magic
    def traceflow(self, line: str, cell: str) -> object:
        """Record the cell, open what was recorded, and show its summary.

        The cell runs once, as a step; with `--steps` and `--warmup` it runs that often, each time with what the time
        before left behind. What its last line gives is shown as ever, and so is what it raises.
        """
        __tracebackhide__ = True
        wanted = parse_argstring(self.traceflow, line)
        _refuse(wanted)
        code, path, value = Code.of(self.shell, cell), wanted.path or _next_free(), None
        with _told_in_one_line():
            (recording := ExitStack()).enter_context(recorder := _recorder(path, wanted))
        try:
            with recording:
                for _ in range(wanted.warmup + wanted.steps):
                    with recorder.step():
                        value = code.run(self.shell.user_ns)
        finally:  # whatever the cell raises goes on from here
            self._show(recorder, path, wanted.output)
        return value

    def _show(self, recorder: Recorder, path: Path, name: str | None) -> None:
        """Open what was recorded, complete or not, and say so."""
        if not isinstance(recorder, Recording):
            sys.stdout.write("traceflow: nothing is recorded while TRACEFLOW=0\n")
            return
        where = path.with_name(recorder.folder.name)
        with _told_in_one_line():
            summary = (run := open_run(where)).summary()
        if name is not None:
            self.shell.user_ns[name] = run
        sys.stdout.write(f"traceflow: {_recorded(summary.steps)} in {where}{f', opened as {name}' if name else ''}\n")
        display(summary)


@dataclass(frozen=True, slots=True)
class Code:
    """A cell as it runs; what its last line gives is shown."""

    body: CodeType
    last: CodeType | None

    @classmethod
    def of(cls, shell: Any, cell: str) -> Code:
        """Compile a cell under a name by which tracebacks find its lines.

        Args:
            shell: Whose magics and transformations the cell may use.
            cell: Its text.

        Raises:
            SyntaxError: as for any cell.
        """
        source = f"\n{shell.transform_cell(cell)}"  # the line of the magic counts as one
        name = shell.compile.cache(source, len(shell.history_manager.input_hist_parsed) - 1, raw_code=cell)
        body = shell.transform_ast(shell.compile.ast_parse(source, name)).body
        flags: int = shell.compile.flags  # what the notebook imported from __future__
        shown = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        last = None if shown is None else compile(ast.Expression(shown.value), name, "eval", flags)
        return cls(compile(ast.Module(body, []), name, "exec", flags), last)

    def run(self, names: dict[str, Any]) -> object:
        """Run the cell once, and return what its last line gives.

        Args:
            names: The variables of the notebook.
        """
        __tracebackhide__ = True
        exec(self.body, names)  # noqa: S102  # running the user's cell is what a magic is for
        return None if self.last is None else eval(self.last, names)  # noqa: S307  # likewise


def _refuse(wanted: Namespace) -> None:
    if wanted.steps < 1 or wanted.warmup < 0:
        raise UsageError("%%traceflow records at least one step (--steps 1) after no less than --warmup 0")
    if wanted.output is not None and not wanted.output.isidentifier():
        raise UsageError(f"%%traceflow cannot call a variable {wanted.output!r}: -o takes a name such as run")


def _next_free() -> Path:
    """The first of traceflow-cell-1, -2 and so on that is not there yet."""
    return next(path for number in count(1) if not (path := Path(f"traceflow-cell-{number}")).exists())


def _recorder(path: Path, wanted: Namespace) -> Recorder:
    return record(
        path,
        framework=wanted.framework,
        force=wanted.force,
        warmup=wanted.warmup,
        steps=wanted.steps,
        memory=wanted.memory,
        xla_dump=wanted.xla_dump,
    )


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """What traceflow refuses is shown as IPython shows a wrong option, without a traceback."""
    __tracebackhide__ = True
    try:
        yield
    except TraceflowError as error:
        hint = _HINTS.get(error.code, error.hint)
        raise UsageError(str(TraceflowError(error.code, error.what, error.why, hint))) from error


def _recorded(steps: Sequence[Any]) -> str:
    """How many steps were recorded, and whether that is of any worth."""
    compiled = any(step.compiled for step in steps)
    told = f"recorded {len(steps)} step{'s' * (len(steps) != 1)}"
    return f"{told}, with its compilation (--warmup 1 runs the cell once before)," if compiled else told
