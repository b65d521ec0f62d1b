"""Fuzz readers for long, each in processes of its own, and keep account: `python -m fuzz.run --executions 1000000`.

A process takes a slice of the executions, so that what it found so far is safe, and that a reader which hangs costs one
slice. What was executed is added up in `FOLDER/READER/account.json` over all runs; a run goes on until each reader has
had its number, and starts from the inputs that earlier ones kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuzz.readers import READERS

LEFT_BY_LIBFUZZER = ("crash-", "timeout-", "oom-", "leak-")


def main(arguments: list[str]) -> int:
    """Fuzz the readers in turn, a slice of each at a time; returns how many defects were found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)}; all where none is named"
    )
    parser.add_argument(
        "--executions", type=int, default=100_000, help="of each reader, those of earlier runs included"
    )
    parser.add_argument("--slice", type=int, default=50_000, help="executions of one process")
    parser.add_argument("--longest", type=int, default=1 << 14, help="bytes of an input")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"))
    chosen = parser.parse_args(arguments)
    waiting = list(chosen.readers or READERS)
    while waiting:
        name = waiting.pop(0)
        done = account(chosen.folder / name)
        if done["executions"] < chosen.executions:
            some = min(chosen.slice, chosen.executions - done["executions"])
            if fuzz(name, chosen.folder / name, some, chosen.longest):
                waiting.append(name)
    accounts = {name: account(chosen.folder / name) for name in chosen.readers or READERS}
    for name, told in accounts.items():
        found = ", ".join(told["found"]) or "nothing"
        print(f"{name}: {told['executions']} executions in {told['seconds']:.0f} s, found {found}")
    return sum(len(told["found"]) for told in accounts.values())


def account(folder: Path, name: str = "account.json") -> dict[str, Any]:
    """What was executed of one reader so far, or in the last slice (`progress.json`)."""
    file = folder / name
    told: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return {"executions": 0, "seconds": 0.0, "found": [], **told}


def fuzz(name: str, folder: Path, executions: int, longest: int) -> bool:
    """Fuzz one reader in a process of its own, and add that to its account; whether anything was executed."""
    folder.mkdir(parents=True, exist_ok=True)
    progress = folder / "progress.json"
    progress.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "fuzz.harness",
        name,
        str(folder),
        f"--executions={executions}",
        f"--longest={longest}",
    ]
    with (folder / "log.txt").open("a") as log:
        environment = {**os.environ, **READERS[name].environment}
        code = subprocess.call(command, stdout=log, stderr=log, env=environment)
    done, told = account(folder), account(folder, "progress.json")
    left = [file.name for file in folder.iterdir() if file.name.startswith(LEFT_BY_LIBFUZZER)]
    found = sorted(set(done["found"] + told["found"] + left))
    sums = {key: done[key] + told[key] for key in ("executions", "seconds")}
    (folder / "account.json").write_text(json.dumps({**sums, "found": found}, indent=1) + "\n")
    print(f"{name}: {sums['executions']} executions, exit code {code}", flush=True)
    return bool(told["executions"])


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
