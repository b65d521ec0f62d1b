"""`python -m traceflow` is the command line, too."""

from __future__ import annotations

import sys

from traceflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
