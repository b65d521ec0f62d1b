"""Budgets by arithmetic alone: how long work must take at least, and what it has to send.

Nothing here reads a trace. FLOPs and rates are those of the same devices, or the quotient means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from traceflow.errors import TraceflowError

_FMA = 2  # a multiplication and an addition


def matmul_flops(rows: int, contracted: int, columns: int) -> int:
    """FLOPs of a product of [rows, contracted] and [contracted, columns]: 2 x rows x contracted x columns.

    Example:
        >>> matmul_flops(8192, 8192, 16384)
        2199023255552
    """
    return _FMA * rows * contracted * columns


def least_time_ns(amount: float, per_second: float) -> int:
    """How long an amount of work or data takes at a rate: amount / per_second, to the nearest ns.

    Example:
        >>> least_time_ns(67_108_864, 60e9)
        1118481
    """
    return round(amount * 1_000_000_000 / per_second)


def compute_bound_ns(flops: int, flops_per_s: float, *, flops_devices: int = 1, rate_devices: int = 1) -> int:
    """How long FLOPs take at least: flops / flops_per_s.

    Args:
        flops: Of `flops_devices` devices together.
        flops_per_s: Peak of `rate_devices` devices together.
        flops_devices: 1 for local FLOPs, all devices for global ones.
        rate_devices: Likewise.

    Raises:
        TraceflowError: TF121 where they are not those of the same devices.

    Example:
        >>> compute_bound_ns(matmul_flops(8192, 8192, 16384), 23e12)
        95609707
    """
    if flops_devices != rate_devices:
        what, why = f"no bound for the FLOPs of {flops_devices}", f"the rate is that of {rate_devices} devices"
        raise TraceflowError("TF121", what, why, "divide local by local, or global by global")
    return least_time_ns(flops, flops_per_s)


def sent_bytes(operation: str, operand_bytes: int, members: int) -> int | None:
    """What each end of a collective must send at least, in bytes; None where that depends on the data.

    With I bytes put in by each of n members, which is also what rings send::

        all-gather                                        (n - 1) I
        reduce-scatter, all-to-all, collective-broadcast  (n - 1) / n I
        all-reduce                                        2 (n - 1) / n I
        collective-permute, send                          I
        recv                                              0

    Args:
        operation: As HLO names it.
        operand_bytes: I.
        members: n.

    Example:
        >>> sent_bytes("reduce-scatter", 128 << 20, 2), sent_bytes("all-reduce", 1024, 4), sent_bytes("send", 7, 2)
        (67108864, 1536, 7)
    """
    others = members - 1
    match operation:
        case "all-gather":
            return others * operand_bytes
        case "reduce-scatter" | "all-to-all" | "collective-broadcast":
            return -(-others * operand_bytes // members)
        case "all-reduce":
            return -(-2 * others * operand_bytes // members)
        case "collective-permute" | "send":
            return operand_bytes if others else 0
        case "recv":
            return 0
        case _:
            return None


def splitting_pays(whole_ns: int, split_ns: int, communication_ns: int) -> bool:
    """Whether splitting the weights of a layer is faster than giving each device all of them.

    T_whole - T_split > T_communication: what is saved locally must exceed the collectives that it adds.

    Args:
        whole_ns: Local work of a device that holds all weights.
        split_ns: Local work of a device that holds its part.
        communication_ns: The collectives that splitting adds, such as an all-gather and a reduce-scatter.

    Example:
        >>> splitting_pays(1000, 400, 500), splitting_pays(1000, 400, 600)
        (True, False)
    """
    return whole_ns - split_ns > communication_ns


def traffic_bytes(time_ns: Sequence[int], bytes_per_s: Sequence[float]) -> int:
    """What passed an interface: the integral of its rate, each rate holding until the next moment.

    Traffic is no capacity: what is written twice counts twice here, and takes its room once.

    Args:
        time_ns: Moments, ascending, one more than rates.
        bytes_per_s: The rate from each moment to the next.

    Example:
        >>> traffic_bytes([0, 1_000_000, 3_000_000], [1e9, 2e9])
        5000000
    """
    pieces = zip(pairwise(time_ns), bytes_per_s, strict=True)
    return round(sum((end - start) * rate for (start, end), rate in pieces) / 1_000_000_000)
