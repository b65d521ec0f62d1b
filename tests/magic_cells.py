"""Runs cells as a notebook would, and prints what became of each: `python magic_cells.py < cells.json`."""

from __future__ import annotations

import json
import sys
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


def told(shell: Any, text: str) -> dict[str, Any]:
    """What a cell printed, showed and gave."""
    with capture_output() as said:
        result = shell.run_cell(text, store_history=True)
    shown = [output.data.get("text/html") or output.data["text/plain"] for output in said.outputs]
    raised = type(result.error_in_exec or result.error_before_exec).__name__
    return {"out": said.stdout, "err": said.stderr, "shown": shown, "result": repr(result.result), "raised": raised}


def main() -> None:
    """Run the cells one after another in one shell without colours."""
    shell: Any = InteractiveShell.instance(colors="nocolor")
    results = [told(shell, cell) for cell in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
