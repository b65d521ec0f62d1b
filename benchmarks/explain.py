"""Load one trace, explain its communication and its critical path; print CPU seconds and peak memory as JSON.

usage: explain.py TRACE [STEP] [open]

Communication and critical path are those of one step, or of the whole capture where none is given. With `open`, the
trace is opened and nothing is asked.
"""

from __future__ import annotations

import json
import resource
import sys
import time


def main(path: str, step: int | None, *, asks: bool) -> None:
    """Explain the trace at `path` stage by stage."""
    import traceflow

    seconds: dict[str, float] = {"start": time.process_time()}
    started = time.perf_counter()

    def took(stage: str) -> None:
        seconds[stage] = time.process_time() - sum(seconds.values())

    run = traceflow.open(path)
    took("load")
    if asks:
        run.dependencies  # noqa: B018  # found once, when first asked for
        took("dependencies")
        run.communication(step=step)
        took("communication")
        run.critical_path(step=step)
        took("critical path")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    wall_s = time.perf_counter() - started
    print(json.dumps({"events": run.trace.tally.read, "cpu_s": seconds, "wall_s": wall_s, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None, asks=sys.argv[3:] != ["open"])
