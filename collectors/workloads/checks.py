"""What the workloads hold against what they record: the results of each step, and whether anything was recorded."""

from __future__ import annotations

import math
from pathlib import Path

from traceflow.capture import read_manifest
from traceflow.errors import TraceflowError


def check_loss(path: Path, found: float, expected: float, *, tolerance: float) -> None:
    """Refuse a recording of training that goes astray.

    Args:
        path: Where it is recorded.
        found: The loss of a step.
        expected: The reference's.
        tolerance: Largest difference, as a share of the larger one.

    Raises:
        TraceflowError: TF115 where they differ by more.
    """
    if not math.isclose(found, expected, rel_tol=tolerance):
        raise _wrong(path, f"the loss is {found:.6g}, the reference's {expected:.6g}")


def check_product(path: Path, *, right: bool) -> None:
    """Refuse a recording of a product that is not numpy's.

    Raises:
        TraceflowError: TF115 where it is not.
    """
    if not right:
        raise _wrong(path, "the product differs from the one that numpy computes")


def _wrong(path: Path, why: str) -> TraceflowError:
    return TraceflowError("TF115", f"cannot record {path}", why, "report this: the workload is wrong")


def recorded_since(path: Path, start_ns: int) -> bool:
    """Whether the capture at `path` is of now: with TRACEFLOW=0 there is none, or one from before.

    Args:
        path: Of the capture.
        start_ns: A time since 1970.
    """
    manifest = read_manifest(path) if path.is_dir() else None
    return manifest is not None and manifest.clock.time_ns >= start_ns
