"""Files that are nested too deeply, or hold numbers of too many digits, are refused like any other damaged file."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceflow.errors import TraceflowError
from traceflow.intent.file import read_intent
from traceflow.program.stated import read_stated
from traceflow.program.torch_audit import read_torch_audit

DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize("value", [DEEP, "9" * 5000], ids=["nested", "digits"])
def test_an_intent(tmp_path: Path, value: str) -> None:
    file = tmp_path / "intent.toml"
    file.write_text(f"[mesh]\ndata = {value}\n")
    with pytest.raises(TraceflowError, match="TF147"):
        read_intent(file)


def test_a_mesh_of_more_devices_than_can_be(tmp_path: Path) -> None:
    file = tmp_path / "intent.toml"
    file.write_text(f"[mesh]\ndata = {10**30}\n")
    with pytest.raises(TraceflowError, match="TF141"):
        read_intent(file)


@pytest.mark.parametrize("name", ["rank00000.placements.json", "rank00000.sharding_audit.json"])
def test_an_audit(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(TraceflowError, match="TF103"):
        read_torch_audit(tmp_path / name)


def test_what_jax_says_of_a_function_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "step.hlo.txt").write_text("HloModule jit_step\n")
    (tmp_path / "step.json").write_text(DEEP)
    assert read_stated(tmp_path) == ()
