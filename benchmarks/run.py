"""Time and memory on a Kineto trace of a million events, next to HTA on the same file.

The trace and HTA's environment are kept under build/bench. HTA explains one step of eleven, traceflow all of them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORK = HERE.parent / "build" / "bench"
EVENTS = 1_000_000
LAYERS = 1_000  # so many that the events make eleven steps: HTA's load grows with events times steps
RUNS = 3
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas==2.2.3")
STAGES = ("load", "dependencies", "communication", "critical path")


def main() -> None:
    """Measure and print a table."""
    trace = _trace()
    _measured(sys.executable, HERE / "explain.py", trace)  # compiles what is not compiled yet
    rows = {
        "traceflow": _median([_measured(sys.executable, HERE / "explain.py", trace) for _ in range(RUNS)]),
        "HTA 0.5.0": _measured(str(_hta()), HERE / "explain_hta.py", trace),
    }
    print(f"{trace.stat().st_size / 1e6:.0f} MB of Kineto JSON, {rows['traceflow']['events']:,} events; CPU seconds")
    print(f"{'':12}{''.join(f'{stage:>15}' for stage in STAGES)}{'in all':>10}{'peak GB':>10}")
    for name, row in rows.items():
        stages = "".join(f"{row['cpu_s'][stage]:15.2f}" if stage in row["cpu_s"] else f"{'-':>15}" for stage in STAGES)
        print(f"{name:12}{stages}{sum(row['cpu_s'].values()):10.2f}{row['peak_bytes'] / 1e9:10.2f}")

    if shutil.which("chromium"):
        page = _measured(sys.executable, HERE / "open_report.py", trace)
        print(f"{page['page_bytes'] / 1e6:.1f} MB of report, opened in {page['opened_ms'] / 1000:.2f} s")


def _trace() -> Path:
    path = WORK / "rank0.json"
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        generator = [sys.executable, str(HERE / "gen_kineto.py"), "--events", str(EVENTS), "--layers", str(LAYERS)]
        subprocess.run([*generator, "--out", str(WORK)], check=True, stdout=subprocess.DEVNULL)
    return path


def _hta() -> Path:
    """Python of an environment with HTA, made where it does not exist."""
    home = WORK / "hta"
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *HTA], check=True)
        (home / "installed").touch()
    return python


def _measured(python: str, script: Path, trace: Path) -> dict[str, Any]:
    done = subprocess.run([python, str(script), str(trace)], check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return sorted(rows, key=lambda row: sum(row["cpu_s"].values()))[len(rows) // 2]


if __name__ == "__main__":
    main()
