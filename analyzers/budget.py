"""Budgets: how far each operation is from what the hardware allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.executed_instructions import executed_instructions
from traceflow.analyzers.executed_operators import executed_operators
from traceflow.analyzers.window import Window, in_window
from traceflow.analyzers.work import Work, WorkKind, in_graph, measured_ns, merged
from traceflow.budgets import least_time_ns
from traceflow.hardware import Hardware, recognised
from traceflow.program.cost import Cost
from traceflow.program.module import Programs
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    import pandas as pd

_WORTH_A_FINDING = 0.05  # of what all operations took
_MOST_FINDINGS = 3
_FARTHER_THAN = 2.0  # times its bound, or an operation is no finding
_FASTER_THAN = 0.95  # of its bound, or the hardware is another one

_BOUNDS = ("compute", "memory", "link")
_FIGURES = {"flops": "flops", "bytes": "bytes", "sent_bytes": "payload_bytes"}  # in a cost -> in the result
_COUNTED = frozenset({"flops", "bytes"})
_WAITED = "waiting for others, or after its end, is in the measured time"
_NO_HARDWARE = (
    "the trace does not say on which hardware it was recorded, or its rates are not known; name it with --hardware"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least time that some work takes at a device's peak rates, in ns; None where work or rate is not known.

    compute = sum over element types of FLOPs / peak FLOP/s; types without a known peak, such as 32-bit integers, are
    left out, so that it stays a bound. memory = bytes / memory bandwidth. link = bytes sent / all links of a device
    in one direction.
    """

    compute_ns: int | None
    memory_ns: int | None
    link_ns: int | None

    @classmethod
    def of(cls, cost: Cost, hardware: Hardware | None) -> Bounds:
        """The bounds of work on one device after another, so that local FLOPs meet a local rate."""
        if hardware is None:
            return cls(None, None, None)
        rates = {kind: hardware.rate(kind) for kind in cost.flops}
        compute = sum(flops / rate for kind, flops in cost.flops.items() if (rate := rates[kind]))
        countable = "flops" not in cost.missing and (not cost.flops or any(rates.values()))
        return cls(
            least_time_ns(compute, 1.0) if countable else None,
            _bound_ns(cost.total_bytes, hardware.memory_bytes_per_s),
            _bound_ns(cost.payload_bytes, hardware.link_bytes_per_s),
        )

    @property
    def largest_ns(self) -> int:
        """The bound that binds, 0 where none is known."""
        return max((ns for ns in (self.compute_ns, self.memory_ns, self.link_ns) if ns is not None), default=0)

    @property
    def binding(self) -> str | None:
        """Which of them binds: compute, memory or link."""
        values = (self.compute_ns, self.memory_ns, self.link_ns)
        return next((name for name, ns in zip(_BOUNDS, values, strict=True) if ns and ns == self.largest_ns), None)


def _bound_ns(amount: int | None, per_second: float | None) -> int | None:
    if amount == 0:
        return 0
    return None if amount is None or per_second is None else least_time_ns(amount, per_second)


@dataclass(frozen=True, slots=True)
class Operation:
    """All executions of one operation on all devices, with its bounds."""

    work: Work
    bounds: Bounds

    @property
    def measured_over_bound_ratio(self) -> float | None:
        """Measured time over the largest bound; None where a missing figure could raise that, or where it waited."""
        unbound = self.bounds.link_ns is None and self.work.cost.payload_bytes != 0
        missing = self.work.waits or unbound or not _COUNTED.isdisjoint(self.work.cost.missing)
        bound_ns = self.bounds.largest_ns
        return None if missing or not bound_ns else self.work.measured_ns / bound_ns

    @property
    def excess_ns(self) -> int:
        """Measured minus bound: what would be saved at most by executing the same work better."""
        return self.work.measured_ns - self.bounds.largest_ns

    def to_dict(self) -> dict[str, Json]:
        """A row of `operations`."""
        work, total = self.work, self.work.total
        return {
            "kind": work.kind.value,
            "name": work.name,
            "detail": work.detail,
            "program": work.program,
            "source": work.source,
            "executions": work.executions,
            "recomputed": work.recomputed,
            "flops": total.total_flops,
            "flops_by_type": {**total.flops},
            "transcendentals": total.transcendentals,
            "bytes": total.total_bytes,
            "payload_bytes": total.payload_bytes,
            "compute_bound_ns": self.bounds.compute_ns,
            "memory_bound_ns": self.bounds.memory_ns,
            "link_bound_ns": self.bounds.link_ns,
            "bound_by": self.bounds.binding,
            "measured_ns": work.measured_ns,
            "waits": work.waits,
            "measured_over_bound_ratio": self.measured_over_bound_ratio,
            "provenance": work.provenance.value,
            "missing": {_FIGURES[name]: why for name, why in work.cost.missing.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Shown):
    """Operations with what they cost, how long that takes at least, and how long they took; longest first."""

    kind: ClassVar[str] = "budget"
    window: Window
    hardware: Hardware | None
    operations: tuple[Operation, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def total(self) -> Cost:
        """What all operations took; its `missing` says that it holds only what could be counted."""
        return _total(self.operations)

    @property
    def recomputed(self) -> Cost:
        """What was computed again."""
        return _total(operation for operation in self.operations if operation.work.recomputed)

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        total, again = self.total, self.recomputed
        return {
            "window": {**self.window.to_dict()},
            "hardware": None if self.hardware is None else _described(self.hardware),
            "total": {
                "measured_ns": sum(operation.work.measured_ns for operation in self.operations),
                "bound_ns": None if self.hardware is None else sum(o.bounds.largest_ns for o in self.operations),
                "counted_flops": sum(total.flops.values()),
                "recomputed_flops": sum(again.flops.values()),
                "counted_bytes": total.bytes,
                "payload_bytes": total.sent_bytes,
            },
            "operations": [operation.to_dict() for operation in self.operations],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per operation."""
        import pandas as pd

        return pd.DataFrame([operation.to_dict() for operation in self.operations])


def budget(
    trace: Trace,
    programs: Programs,
    found: Dependencies,
    *,
    hardware: Hardware | None = None,
    step: int | None = None,
) -> Budget:
    """Set what each operation computes, moves and sends against what a device can do, and against the clock.

    measured_over_bound_ratio = measured / max(compute, memory, link), each of these the least time of all executions
    together. Work is local, that of one device, and so are the rates. A collective took the time after its last
    participant arrived. The difference between a measured time and a bound is no communication, whatever it was.

    Args:
        trace: The evidence.
        programs: Compiled modules of the trace.
        found: Its dependencies.
        hardware: What it was recorded on; told by the trace where None.
        step: Which step; the whole capture where None.

    Raises:
        TraceflowError: TF104 without work, TF111 without such a step.
    """
    window, graph = in_window(trace, found, step)
    hardware = hardware or recognised(trace.metadata)
    events = in_graph(trace, graph)
    took_ns, split = measured_ns(trace, graph, events)
    work = merged(
        [
            *executed_instructions(trace, programs, events, took_ns, split),
            *executed_operators(trace, found, events, took_ns, split),
        ]
    )
    operations = tuple(Operation(one, Bounds.of(one.total, hardware)) for one in work)
    return Budget(
        window=window,
        hardware=hardware,
        operations=operations,
        findings=(*_far(operations), *_again(operations)),
        skipped=_skipped(operations, hardware),
        notes=(*found.notes, *_too_fast(operations, hardware)),
    )


def _total(operations: Iterable[Operation]) -> Cost:
    total = Cost()
    for operation in operations:
        total += operation.work.total
    return total


def _described(hardware: Hardware) -> dict[str, Json]:
    return {
        "name": hardware.name,
        "unit": hardware.unit,
        "flops_per_s": {**hardware.flops_per_s},
        "memory_bytes": hardware.memory_bytes,
        "memory_bytes_per_s": hardware.memory_bytes_per_s,
        "link_bytes_per_s": hardware.link_bytes_per_s,
        "link": hardware.link,
        "source": hardware.source,
    }


def _skipped(operations: tuple[Operation, ...], hardware: Hardware | None) -> tuple[Skipped, ...]:
    """What is null, once per figure and reason."""
    if not operations:
        return (Skipped("/result/operations", "no device or operator did any work in the window"),)
    reasons = Counter((_FIGURES[name], why) for one in operations for name, why in one.work.cost.missing.items())
    gaps = [
        Skipped(f"/result/operations/*/{figure}", f"{why} ({count} of {len(operations)} operations)")
        for (figure, why), count in sorted(reasons.items())
    ]
    if hardware is None:
        pointers = [f"/result/operations/*/{name}_bound_ns" for name in _BOUNDS]
        unknown = [*pointers, "/result/operations/*/measured_over_bound_ratio", "/result/total/bound_ns"]
        return (*gaps, Skipped("/result/hardware", _NO_HARDWARE), *(Skipped(what, _NO_HARDWARE) for what in unknown))
    gaps += _without_rate(operations, hardware)
    if waiting := sum(one.work.waits for one in operations):
        why = f"{_WAITED} ({waiting} of {len(operations)} operations)"
        gaps.append(Skipped("/result/operations/*/measured_over_bound_ratio", why))
    if any(one.work.recomputed is None for one in operations if one.work.kind is WorkKind.OPERATOR):
        why = "nothing in the trace marks recomputation; record with_stack to see that of torch.utils.checkpoint"
        gaps.append(Skipped("/result/operations/*/recomputed", why))
    return tuple(gaps)


def _without_rate(operations: tuple[Operation, ...], hardware: Hardware) -> list[Skipped]:
    """Bounds that are null though what they are of is known."""
    gaps = []
    if any(o.bounds.link_ns is None and o.work.cost.payload_bytes for o in operations):
        why = f"the rate of the links of {hardware.name} is not known: {hardware.link}"
        gaps.append(Skipped("/result/operations/*/link_bound_ns", why))
    types = {kind for o in operations if o.bounds.compute_ns is None for kind in o.work.cost.flops}
    if types:
        why = f"no peak of {hardware.name} is known for {', '.join(sorted(types))}"
        gaps.append(Skipped("/result/operations/*/compute_bound_ns", why))
    return gaps


def _far(operations: tuple[Operation, ...]) -> tuple[Finding, ...]:
    """Operations whose distance from their bound is worth a look."""
    whole_ns = sum(operation.work.measured_ns for operation in operations)
    far = [
        (operation, ratio)
        for operation in operations
        if (ratio := operation.measured_over_bound_ratio) is not None
        and ratio > _FARTHER_THAN
        and operation.excess_ns > _WORTH_A_FINDING * whole_ns
    ]
    far.sort(key=lambda pair: -pair[0].excess_ns)
    return tuple(
        Finding(
            code="TF214",
            severity=Severity.INFO,
            title=f"{operation.work.name} takes {ratio:,.1f} times what the {operation.bounds.binding} bound allows",
            provenance=operation.work.provenance,
            suggestion="look at its shapes, its layout and what it is fused with; small work cannot fill a device",
            evidence={**operation.to_dict(), "excess_ns": operation.excess_ns},
        )
        for operation, ratio in far[:_MOST_FINDINGS]
    )


def _again(operations: tuple[Operation, ...]) -> tuple[Finding, ...]:
    """What recomputation costs."""
    took_ns = sum(operation.work.measured_ns for operation in operations if operation.work.recomputed)
    whole_ns = sum(operation.work.measured_ns for operation in operations)
    if not took_ns or took_ns < _WORTH_A_FINDING * whole_ns:
        return ()
    again = [operation for operation in operations if operation.work.recomputed]
    flops, all_flops = (sum(_total(some).flops.values()) for some in (again, operations))
    return (
        Finding(
            code="TF215",
            severity=Severity.INFO,
            title=f"{100 * took_ns / whole_ns:.1f} % of the operations' time computes again what was there before",
            provenance=Provenance.DERIVED,
            suggestion="keep more activations where memory allows it",
            evidence={"measured_ns": took_ns, "flops": flops, "all_flops": all_flops, "operations": len(again)},
        ),
    )


def _too_fast(operations: tuple[Operation, ...], hardware: Hardware | None) -> tuple[Note, ...]:
    """Work that took less than its bound cannot have run on that hardware, or is counted too high."""
    ratios = [(o.measured_over_bound_ratio, o.work.name) for o in operations]
    fast = [(ratio, name) for ratio, name in ratios if ratio is not None and ratio < _FASTER_THAN]
    if not fast or hardware is None:
        return ()
    ratio, name = min(fast)
    text = (
        f"{len(fast)} operations took less than {hardware.name} allows, {name} {ratio:.2f} of it: it is other hardware, "
        "caches held what they read, or they did less than their shapes say"
    )
    return (Note("TF316", text, ("/result/operations",)),)
