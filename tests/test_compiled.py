"""Kernels as machine code: what numba makes of them, kept and loaded without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from traceflow import compiled
from traceflow.compiled import Compiled, Intrinsic
from traceflow.trace import _json_blocks

Int64 = NDArray[np.int64]
_FACTOR = 3


@Compiled
def _times(value: int) -> int:
    return value * _FACTOR


@Compiled
def scaled(values: Int64, least: int, inclusive: bool, found: Int64) -> int:  # noqa: FBT001
    count = 0
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column]
            if value > least or (inclusive and value == least):
                found[count] = _times(value)
                count += 1
    return count


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where machine code is kept during a test."""
    monkeypatch.setattr(compiled, "_folders", lambda: iter([tmp_path]))
    return tmp_path


def fresh() -> Compiled:
    """The kernel as another process has it."""
    return Compiled(scaled.function)


def answer(kernel: Compiled, values: Int64, least: int, *, inclusive: bool) -> list[int]:
    found = np.zeros(values.size, np.int64)
    return [int(value) for value in found[: kernel(values, least, inclusive, found)]]


VALUES = np.arange(12).reshape(3, 4)


@pytest.mark.usefixtures("folder")
def test_a_kernel_computes_what_its_python_says() -> None:
    assert answer(fresh(), VALUES, 8, inclusive=True) == [24, 27, 30, 33]
    assert answer(fresh(), VALUES, 8, inclusive=False) == [27, 30, 33]


@pytest.mark.usefixtures("folder")
def test_arrays_that_are_not_contiguous_are_read_right() -> None:
    assert answer(fresh(), VALUES[:, ::2], 5, inclusive=True) == [18, 24, 30]
    assert answer(fresh(), VALUES.T, 8, inclusive=True) == [24, 27, 30, 33]


@pytest.mark.usefixtures("folder")
def test_a_fraction_is_no_whole_number() -> None:
    with pytest.raises(TypeError):
        fresh()(VALUES, 8.5, True, np.zeros(12, np.int64))


@pytest.mark.usefixtures("folder")
def test_an_empty_array_is_no_trouble() -> None:
    assert answer(fresh(), VALUES[:0], 0, inclusive=True) == []


@pytest.mark.usefixtures("folder")
def test_what_was_compiled_is_loaded_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answer(fresh(), VALUES, 8, inclusive=True)

    def fail(*_: object) -> bytes:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(compiled, "_made", fail)
    monkeypatch.setattr(Compiled, "dispatcher", property(fail))
    assert answer(fresh(), VALUES, 8, inclusive=True) == expected
    with pytest.raises(AssertionError):
        fresh()(VALUES.astype(np.int32), 8, True, np.zeros(12, np.int64))  # other types want other code


def test_code_and_constants_tell_kernels_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fresh().fingerprint
    assert fresh().fingerprint == before
    monkeypatch.setitem(_times.function.__globals__, "_FACTOR", 4)
    _times.__dict__.pop("fingerprint", None)
    assert fresh().fingerprint != before
    _times.__dict__.pop("fingerprint", None)


@pytest.mark.parametrize("at", [0, 40, -1])
def test_damaged_code_is_never_loaded(at: int, folder: Path) -> None:
    expected = answer(fresh(), VALUES, 8, inclusive=True)
    (file,) = folder.glob("*.kernel")
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert answer(fresh(), VALUES, 8, inclusive=True) == expected
    assert file.read_bytes() != content


def test_nothing_can_be_kept_and_all_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiled, "_folders", lambda: iter([tmp_path / "file" / "under"]))
    assert answer(fresh(), VALUES, 8, inclusive=True) == [24, 27, 30, 33]


def test_code_that_others_can_write_is_never_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answer(fresh(), VALUES, 8, inclusive=True)
    (file,) = folder.glob("*.kernel")
    file.chmod(0o666)
    made: list[object] = []
    compile_anew = compiled._made

    def counted(kernel: Compiled, types: tuple[tuple[str, int], ...]) -> bytes:
        made.append(kernel)
        return compile_anew(kernel, types)

    monkeypatch.setattr(compiled, "_made", counted)
    assert answer(fresh(), VALUES, 8, inclusive=True) == expected
    assert len(made) == 1


def test_a_mask_that_lets_a_group_write_is_no_trouble(folder: Path) -> None:
    before = os.umask(0o002)
    try:
        answer(fresh(), VALUES, 8, inclusive=True)
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in folder.iterdir()] == [0o644]


@pytest.mark.parametrize("step", ["_made", "_linked", "_here"])
def test_where_machine_code_cannot_be_taken_out_numba_runs_the_kernel(
    step: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise AttributeError("another version of numba")

    monkeypatch.setattr(compiled, step, fail)
    assert answer(fresh(), VALUES, 8, inclusive=True) == [24, 27, 30, 33]
    assert step == "_linked" or not [*folder.iterdir()]


def test_without_a_compiler_kernels_are_python(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import test_compiled as t\n"
        "assert t.answer(t.fresh(), t.VALUES, 8, inclusive=True) == [24, 27, 30, 33]\n"
        "assert type(t.fresh().dispatcher).__name__ == 'function'\n"
    )
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)


def test_reading_and_explaining_a_trace_loads_no_compiler(tmp_path: Path) -> None:
    from kineto_builder import KinetoTrace

    card = KinetoTrace(rank=0)
    card.host("aten::mm", 0, 8_000)
    card.kernel("matmul", 9_000, 109_000, call=(2_000, 5_400))
    card.write(tmp_path / "rank0.json")
    script = (
        "import sys\n"
        "from traceflow.cli import main\n"
        f"main(['show', 'critical-path', {str(tmp_path / 'rank0.json')!r}])\n"
        "assert 'numba' not in sys.modules and 'scipy' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=False, capture_output=True)  # may have to compile
    subprocess.run(command, check=True, capture_output=True)


def test_what_an_instruction_is_built_of_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Intrinsic(_json_blocks.equal.function).fingerprint
    monkeypatch.setattr(_json_blocks, "BLOCK", 16)
    assert Intrinsic(_json_blocks.equal.function).fingerprint != before
