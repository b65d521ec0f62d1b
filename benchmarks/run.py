"""Time and memory on Kineto traces of several sizes, next to HTA and to bare decoders on the same files.

usage: run.py [--sizes 1e5,1e6,5e6] [--hta-up-to 1e6] [--runs 3] [--hta PYTHON]

Every figure is that of a process of its own, from its start to its end, imports included: CPU seconds, seconds on the
clock, peak memory. Of several runs, that of the median CPU time is told; a first one, which compiles what is not yet
compiled, is not among them. Communication and critical path are those of one step. Traces and HTA's environment are
kept under build/bench. What is larger than HTA is to read is read once, and by traceflow alone. Prints the table of
docs/performance.md.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
WORK = HERE.parent / "build" / "bench"
LAYERS = 1_000  # so many that a million events make eleven steps: HTA's load grows with events times steps
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas==2.2.3")
STEP = "1"


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Trace:
    """What is read."""

    name: str
    path: Path
    events: int


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="1e5,1e6,5e6")
    parser.add_argument("--hta-up-to", type=float, default=1e6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hta", type=Path, metavar="PYTHON", help="of an environment with HTA, made where not given")
    given = parser.parse_args()
    hta = given.hta or (_hta() if given.hta_up_to else None)
    sizes = [int(float(size)) for size in given.sizes.split(",")]
    traces = [_made(f"{size:,} events", size, 1, LAYERS) for size in sizes]
    traces += [_packed(traces[-1 if len(traces) < 2 else 1]), _made("320 steps", 320_000, 1, 28)]
    traces.append(_made("8 ranks", 100_000, 8, 32))
    print("| trace | program | CPU s | wall s | peak MB | CPU, traceflow = 1 |\n|---|---|--:|--:|--:|--:|")
    _cost([sys.executable, HERE / "explain.py", traces[0].path, STEP], cache="off")
    for trace in traces:
        small = trace.events <= given.hta_up_to
        _compare(trace, hta if small else None, given.runs if small else 1)
    if shutil.which("chromium"):
        print(subprocess.run([sys.executable, HERE / "open_report.py", traces[0].path], check=True, text=True).stdout)


def _compare(trace: Trace, hta: Path | None, runs: int) -> None:
    """Print a row for each program."""
    explain, decode, file = HERE / "explain.py", HERE / "decode.py", str(trace.path)
    shutil.rmtree(trace.path.parent / ".traceflow-cache", ignore_errors=True)
    first = _median([_cost([sys.executable, explain, file, STEP], cache="off") for _ in range(runs)])
    _print(trace, "traceflow", first, first)
    if trace.path.is_file():
        _cost([sys.executable, explain, file, STEP, "open"])  # which keeps the columns
        for name, cache in (("traceflow, only opened", "off"), ("traceflow, opened again", "")):
            opened = _median([_cost([sys.executable, explain, file, STEP, "open"], cache=cache) for _ in range(runs)])
            _print(trace, name, opened, first)
        for decoder in () if not hta else ("gzip",) if trace.path.suffix == ".gz" else ("json",):
            _print(trace, f"{decoder}, decoded alone", _cost([sys.executable, decode, decoder, file]), first)
    if hta and trace.path.suffix != ".gz":  # which only adds the time to unpack it
        _print(trace, "HTA 0.5.0", _cost([hta, HERE / "explain_hta.py", file]), first)


def _print(trace: Trace, program: str, cost: Cost, first: Cost) -> None:
    figures = f"{cost.cpu_s:.2f} | {cost.wall_s:.2f} | {cost.peak_bytes / 1e6:.0f} | {cost.cpu_s / first.cpu_s:.2f}"
    print(f"| {trace.name}, {_size(trace.path) / 1e6:.0f} MB | {program} | {figures} |", flush=True)


def _cost(command: list[str | Path], cache: str = "") -> Cost:
    environment = {**os.environ, "TRACEFLOW_CACHE": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process compiles what others have compiled already
    before = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(map(str, command))} failed")
    return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - before, used.ru_maxrss * 1024)


def _median(costs: list[Cost]) -> Cost:
    return sorted(costs, key=lambda cost: cost.cpu_s)[len(costs) // 2]


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("rank*.json")) if path.is_dir() else path.stat().st_size


def _made(name: str, events: int, ranks: int, layers: int) -> Trace:
    folder = WORK / f"{events}x{ranks}x{layers}"
    if not (folder / "truth.txt").exists():
        made = ["--events", str(events), "--ranks", str(ranks), "--layers", str(layers), "--out", str(folder)]
        subprocess.run([sys.executable, HERE / "gen_kineto.py", *made], check=True, stdout=subprocess.DEVNULL)
    return Trace(name, folder if ranks > 1 else folder / "rank0.json", events * ranks)


def _packed(trace: Trace) -> Trace:
    packed = trace.path.parent / "packed" / f"{trace.path.name}.gz"
    if not packed.exists():
        packed.parent.mkdir()
        with trace.path.open("rb") as plain, gzip.open(packed, "wb", 6) as file:
            shutil.copyfileobj(plain, file)
    return Trace(f"{trace.name}, gzip", packed, trace.events)


def _hta() -> Path:
    """Python of an environment with HTA, made where it does not exist."""
    home = WORK / "hta"
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *HTA], check=True)
        (home / "installed").touch()
    return python


if __name__ == "__main__":
    main()
