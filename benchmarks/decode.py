"""Decode a trace and do nothing with it, for comparison.

usage: decode.py json|gzip TRACE
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path


def main(decoder: str, path: Path) -> None:
    """Decode the file at `path`."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        if decoder == "json":
            json.load(file)
        else:
            while file.read(1 << 20):
                pass


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
