"""Where the sources of the package are; shared by the tests that look at them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Real folders, with the package each of them is. The links inside traceflow/ are left out.
PACKAGES = {
    "traceflow": ROOT / "traceflow",
    "traceflow.collectors": ROOT / "collectors",
    "traceflow.analyzers": ROOT / "analyzers",
}

LINKS = (ROOT / "traceflow" / "analyzers", ROOT / "traceflow" / "collectors")


def files_of(folder: Path) -> list[Path]:
    """The files below a folder of the package, without what Python or an editor left there, and without links."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path for path in found if not any(link in path.parents for link in LINKS))


PACKAGE_FILES = [path for folder in PACKAGES.values() for path in files_of(folder) if path.suffix == ".py"]
