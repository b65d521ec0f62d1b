"""What XLA writes of every program it compiles, where it is asked to: the program before, between and after its passes.

XLA reads `XLA_FLAGS` once, when it makes its first device. What it is told later, it does not hear.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = "xla"  # of the dumps in a capture, with a folder for each rank
SCRATCH = "traceflow-xla"  # name of the folder that XLA writes to
_PASSES = "spmd|shard"  # where a program is divided among devices
_OURS = re.compile(rf" --xla_dump_to='[^']*{SCRATCH}' \S+ \S+ --xla_dump_hlo_pass_re='{re.escape(_PASSES)}'")
_KEPT = (".hlo.pb", ".txt")  # programs, buffers and live ranges; the rest is for debugging LLVM


def begin_dump(folder: Path) -> str | None:
    """Let XLA write every program it compiles in this process into `folder`, which it makes.

    Args:
        folder: Its last part is `SCRATCH`.

    Returns:
        None, or the reason why it will not.
    """
    from jax._src.xla_bridge import backends_are_initialized  # nothing public tells

    end_dump()  # a parent of this process may have begun one
    flags = os.environ.get("XLA_FLAGS", "")
    if backends_are_initialized():
        return "JAX had initialised XLA before: enter tf.record before any array is made, or leave recording to traceflow run"
    if "xla_dump_to" in flags:
        return "XLA_FLAGS has an xla_dump_to of its own"
    asked = f"--xla_dump_hlo_as_text --xla_dump_hlo_as_proto --xla_dump_hlo_pass_re='{_PASSES}'"
    os.environ["XLA_FLAGS"] = f"{flags} --xla_dump_to='{folder}' {asked}"
    return None


def end_dump() -> None:
    """Take our flags back, which XLA has read; processes that this one starts would heed them, too."""
    flags = _OURS.sub("", os.environ.get("XLA_FLAGS", ""))
    if flags:
        os.environ["XLA_FLAGS"] = flags
    else:
        os.environ.pop("XLA_FLAGS", None)


def keep_dump(scratch: Path, folder: Path) -> str | None:
    """Move what tells something of the programs from `scratch` to `folder`.

    Returns:
        None, or the reason why there is nothing.
    """
    files = [file for file in scratch.glob("*") if file.name.endswith(_KEPT)]
    if not files:
        return "XLA wrote nothing: its flags were replaced, or it compiled nothing"
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.rename(folder / file.name)
    return None
