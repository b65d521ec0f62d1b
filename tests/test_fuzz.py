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


SPAN = b'{"ph":"X","cat":"cpu_op","pid":1,"tid":1,"ts":1,"dur":2,"name":'
FOUND = [
    (
        "memory",
        b"\x80\x02}(X\x08\x00\x00\x00segmentsr\xff\xff\xff\x01]u.",
    ),  # a place of its memory that takes gigabytes
    ("memory", b"[[-1, 1, 5, 300]]"),
    ("memory", b"[[-1, 1, 99999999999999999999, 7]]"),
    ("memory", b'[[1e308, 2.0], [[0, 1], [0, "x"]]]'),
    ("chrome", b'{"traceEvents":[' + SPAN + b'"\\ud800"}]}'),
    ("chrome", b'{"traceEvents":[{"ph":"M","pid":{},"name":"process_name"},' + SPAN + b'"a"}]}'),
    ("chrome", b'{"traceEvents":[{"ph":"X","ts":1e99999999999999999999,"dur":1,"name":"a"}]}'),
    ("kineto", b'{"traceEvents":[' + SPAN + b'{"a": "\\\\ud800", "b": "c"}}]}'),
    ("kineto", b'{"host_name": "\\ud800", "traceEvents":[' + SPAN + b'"a"}]}'),
    ("kineto", b'{"a": ' + b"[" * 8000 + b"]" * 8000 + b', "traceEvents":[' + SPAN + b'"a"}]}'),
    ("operations", b'[{"ph":"X","name":"\\ud800","ts":1,"dur":1,"args":{"step":0,"rank":0}}]'),
    ("hlo-text", b"HloModule f\nENTRY main {\n  ROOT x = f32[4] parameter(99999999999999999999)\n}\n"),
    ("hlo-text", b"HloModule f\nENTRY main {\n  ROOT x = f32[99999999999,99999999999] parameter(0)\n}\n"),
    ("flight-recorder", b'{"entries": [{"op_id": {}}], "pg_config": {}}'),
    *(
        (
            "placements",
            b'[{"name":"w","dtype":"f","shape":[4],"local_shape":[4],"placements":[],"mesh":{"names":null,"ranks":%b}}]'
            % ranks,
        )
        for ranks in (b"[[0,1],[2]]", b"null", b"[99999999999999999999]", b'["a"]', b"[]")
    ),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_before_is_mended(name: str, data: bytes, tmp_path: Path) -> None:
    trial = Trial(READERS[name], tmp_path)
    seed = next(iter(READERS[name].seeds()))
    for _ in range(101):  # until memory has settled
        trial(seed)
    with warnings.catch_warnings(action="error"):
        trial(data)
    assert not trial.found, "\n".join(trial.found.values())
