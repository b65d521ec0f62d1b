"""Load one trace, explain its communication and its critical path; print CPU seconds and peak memory as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time


def main(path: str) -> None:
    """Explain the trace at `path` stage by stage."""
    import traceflow

    seconds: dict[str, float] = {"start": time.process_time()}

    def took(stage: str) -> None:
        seconds[stage] = time.process_time() - sum(seconds.values())

    run = traceflow.open(path)
    took("load")
    run.dependencies  # noqa: B018  # found once, when first asked for
    took("dependencies")
    run.communication()
    took("communication")
    run.critical_path()
    took("critical path")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"events": run.trace.tally.read, "cpu_s": seconds, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main(sys.argv[1])
