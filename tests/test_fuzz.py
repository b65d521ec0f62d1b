"""A short round of hostile input for every reader; `make fuzz` goes on for long. And what fuzzing has found before."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from fuzz.harness import Trial
from fuzz.mutations import hostile
from fuzz.readers import READERS
from hypothesis import HealthCheck, Phase, given, settings
from sources import ROOT

from traceflow.errors import TraceflowError

EXAMPLES = 150
ROUND = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
COMPILED = {name: reader for name, reader in READERS.items() if not reader.environment}


@pytest.mark.parametrize("name", COMPILED)
def test_a_short_round_finds_nothing(name: str, tmp_path: Path) -> None:
    trial = Trial(COMPILED[name], tmp_path)

    @ROUND
    @given(hostile(COMPILED[name]))
    def run(data: bytes) -> None:
        trial(data)

    with warnings.catch_warnings(action="error"):
        run()
    assert trial.executions >= EXAMPLES // 2
    assert not trial.found, "\n".join(trial.found.values())


def test_kernels_read_no_memory_but_that_of_the_file(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fuzz.harness import Trial\n"
        "from fuzz.readers import READERS\n"
        "reader = READERS['kineto-checked']\n"
        "trial = Trial(reader, Path(sys.argv[1]))\n"
        "short, longer = sorted(reader.seeds(), key=len)[:3:2]\n"
        "for at in range(len(short)):\n"
        "    trial(short[:at])\n"
        "for at in range(0, len(longer), 23):\n"
        "    for byte in (b'\"', b'\\\\', b'{', b']', b'9'):\n"
        "        trial(longer[:at] + byte + longer[at + 1 :])\n"
        "print(trial.executions, trial.found)\n"
    )
    environment = {**os.environ, **READERS["kineto-checked"].environment, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    executions, _, found = done.stdout.partition(" ")
    assert int(executions) > 200
    assert found == "{}\n", found


@pytest.mark.parametrize("name", COMPILED)
def test_seeds_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    reader = COMPILED[name]
    for beside, content in reader.beside().items():
        (tmp_path / beside).write_bytes(content)
    read, told = 0, list[str]()
    for seed in reader.seeds():
        (tmp_path / reader.file).write_bytes(seed)
        try:
            reader.read(tmp_path / reader.file)
            read += 1
        except TraceflowError as refused:
            told.append(str(refused))
    assert not [line for line in told if "\n" in line]
    assert read, "no seed is what the reader reads, so that nothing behind its first line is reached"
