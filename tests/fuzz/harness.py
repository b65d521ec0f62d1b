"""One process of fuzzing: gives one reader inputs that atheris makes, and notes what should not have happened.

    python -m fuzz.harness kineto FOLDER --executions 100000

What is found is written into the folder, one file for each place in the code and the kind of defect, and fuzzing goes on.
A hang or a crash of the interpreter ends the process; libFuzzer then leaves the input in the folder.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import resource
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import traceflow
from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from fuzz.readers import Reader

MEMORY = "/dev/shm"  # noqa: S108  # files that are never on a disk; a folder of a random name is made in it
KERNEL = re.compile(r"^from (?:numba|traceflow\.compiled) import", re.MULTILINE)
PATIENCE_S = 10  # for one input of 16 kB at most
MOST_BYTES = 64 << 20  # that one such input may add to the memory of the process


class Trial:
    """Runs a reader on inputs, and keeps what was found.

    Args:
        reader: Which reader.
        folder: Where findings go; not made before there is one.
    """

    def __init__(self, reader: Reader, folder: Path) -> None:
        self._reader = reader
        self._folder = folder
        self._scratch = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self._file = Path(self._scratch.name) / reader.file
        atexit.register(self._scratch.cleanup)
        for name, content in reader.beside().items():
            self._file.with_name(name).write_bytes(content)
        self.executions = 0
        self.found: dict[str, str] = {}
        self._began = monotonic()
        self._peak_bytes = 0

    def __call__(self, data: bytes) -> None:
        """Read one input."""
        self._file.write_bytes(data)
        try:
            self._reader.read(self._file)
        except TraceflowError:
            pass
        except Exception as error:  # noqa: BLE001  # that is what is looked for
            self._note(_place(error), data, "".join(traceback.format_exception(error)))
        self.executions += 1
        self._weigh(data)
        if self.executions % 1000 == 0:
            self.save()

    def _weigh(self, data: bytes) -> None:
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        if self._peak_bytes and self.executions > 100 and peak_bytes - self._peak_bytes > MOST_BYTES:
            self._note("memory", data, f"{(peak_bytes - self._peak_bytes) >> 20} MiB for {len(data)} bytes of input")
        self._peak_bytes = peak_bytes

    def _note(self, place: str, data: bytes, told: str) -> None:
        if place not in self.found:
            self.found[place] = told
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{place}.input").write_bytes(data)
            (self._folder / f"{place}.txt").write_text(told)

    def save(self) -> None:
        """Write how far it came."""
        told = {
            "executions": self.executions,
            "seconds": round(monotonic() - self._began, 1),
            "found": list(self.found),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "progress.json").write_text(json.dumps(told))


def _place(error: Exception) -> str:
    """The kind of an error and the innermost place in traceflow that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "traceflow" in frame.filename]
    at = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}-{Path(at.filename).stem}-{at.name.strip('<>')}-{at.lineno}"


def _spelled(word: str) -> str:
    """A word as libFuzzer's dictionaries spell it."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def _compiled() -> list[str]:
    """The modules whose functions numba compiles from their bytecode, which must stay as it is; none where it does not."""
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        return []
    package = Path(traceflow.__file__).parent
    files = [*package.rglob("*.py"), *(package / "analyzers").rglob("*.py")]  # a link, which rglob does not follow
    compiled = [file.relative_to(package.parent) for file in files if KERNEL.search(file.read_text())]
    return [".".join(file.with_suffix("").parts) for file in compiled]


def main(arguments: list[str]) -> None:
    """Fuzz one reader."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reader")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--longest", type=int, default=1 << 14)
    chosen = parser.parse_args(arguments)
    import atheris

    warnings.simplefilter("error")
    with atheris.instrument_imports(include=["traceflow"], exclude=_compiled()):
        from fuzz.readers import READERS

        reader, folder = READERS[chosen.reader], chosen.folder
        corpus, words = folder / "corpus", folder / "words"
        corpus.mkdir(parents=True, exist_ok=True)
        trial = Trial(reader, folder)
        for number, seed in enumerate(reader.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
            trial(seed)  # which imports what the reader needs
    words.write_text("".join(f'"{_spelled(word)}"\n' for word in reader.words))
    options = [f"-runs={chosen.executions}", f"-max_len={chosen.longest}", f"-timeout={PATIENCE_S}"]
    options += ["-rss_limit_mb=4096", f"-dict={words}", f"-artifact_prefix={folder}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], trial)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
