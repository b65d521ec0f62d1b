"""What the demo says of computations that it recorded in two forms each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rich.text import Text

from traceflow.errors import TraceflowError
from traceflow.report.tables import Rows, printed
from traceflow.report.units import share_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traceflow.analyzers.communication import Communication
    from traceflow.analyzers.critical_path import CriticalPath
    from traceflow.analyzers.summary import SteadyState, Summary


_NOTEWORTHY = 0.05  # of a critical path


@dataclass(frozen=True)
class Computation:
    """What was computed, and what each of two forms of it does."""

    title: str
    forms: Mapping[str, str]  # by name


PRODUCT = Computation(
    "One product A @ W",
    {
        "gather": "an all-gather assembles A on every device, then each multiplies once",
        "ring": "blocks of A travel on while each device multiplies with the one it has",
    },
)
EXPERTS = Computation(
    "One train step of a mixture of experts",
    {
        "capacity": "tokens travel to their experts, in as many rows as are reserved",
        "masked": "experts travel to every device, which runs all and masks the unchosen",
    },
)


@dataclass(frozen=True)
class Routed:
    """How the tokens of one step met the experts, counted over all devices."""

    rows: int  # that experts multiplied
    assigned: int
    dropped: int


@dataclass(frozen=True)
class Form:
    """One form, recorded, with one of its steps explained."""

    summary: Summary
    step: int
    path: CriticalPath
    communication: Communication
    routed: Routed | None = None  # where there are experts

    @property
    def steady(self) -> SteadyState:
        """Times of its steps."""
        return steady_state(self.summary)

    @property
    def use_ns(self) -> tuple[int, int, int, int]:
        """Computation, and busy, exposed and overlapped communication, each the mean over the devices."""
        each = [(p.compute_ns, p.busy_ns, p.exposed_ns, p.overlapped_ns) for p in self.communication.participants]
        compute, busy, exposed, overlapped = (round(sum(column) / len(each)) for column in zip(*each, strict=True))
        return compute, busy, exposed, overlapped


Forms: TypeAlias = Mapping[str, Form]


def steady_state(summary: Summary) -> SteadyState:
    """The steady state, which a recording with warm-up has.

    Raises:
        TraceflowError: TF115 where it has none all the same.
    """
    if summary.steady_state is None:
        why = "no step without compilation was recorded"
        raise TraceflowError("TF115", "cannot explain the recording", why, "run the demo again with -f")
    return summary.steady_state


def compared(recorded: Sequence[tuple[Computation, Forms]], *, devices: int, width: int, color: bool) -> str:
    """Step times, critical paths and communication of the forms of each computation side by side, and verdicts.

    Args:
        recorded: The computations, with both forms of each.
        devices: How many devices were simulated.
        width: Characters of a line.
        color: Whether to use terminal escapes.
    """
    return printed(_parts(recorded, devices), width=width, color=color)


def _parts(recorded: Sequence[tuple[Computation, Forms]], devices: int) -> Iterator[RenderableType]:
    for computation, forms in recorded:
        yield Text(f"{computation.title} on {devices} devices, in two forms:", style="bold")
        longest = max(map(len, computation.forms))
        yield Text("\n".join(f"{name:{longest}}  {what}" for name, what in computation.forms.items()))
        yield from _tables(forms)
        yield Text("\nVerdict", style="bold")
        told = (_faster(forms), _hidden(forms), _multiplied(forms), _unexplained(forms))
        yield Text("\n".join(filter(None, told)) + "\n")
    yield Text(f"{_worth(devices)}\n")


def _tables(forms: Forms) -> Iterator[RenderableType]:
    number = min(form.steady.steps for form in forms.values())
    times = {name: (f.steady.median_ns, f.steady.minimum_ns, f.steady.maximum_ns) for name, f in forms.items()}
    yield from _table(f"Time of {number} steps each", ("median", "min", "max"), times)
    kinds = tuple(dict.fromkeys(kind for form in forms.values() for kind in form.path.by_kind_ns))
    paths = {name: [form.path.by_kind_ns.get(kind, 0) for kind in kinds] for name, form in forms.items()}
    steps = ", ".join(f"{name} {form.step}" for name, form in forms.items())
    yield from _table(f"Critical path of the step closest to the median ({steps}), by kind", kinds, paths)
    use = {name: form.use_ns for name, form in forms.items()}
    headings = ("computation", "communication", "exposed", "overlapped")
    yield from _table("Computation and communication in that step, mean of the devices", headings, use)


def _table(title: str, headings: Sequence[str], figures_ns: Mapping[str, Sequence[int]]) -> Iterator[RenderableType]:
    unit = unit_for(ns for row in figures_ns.values() for ns in row)
    yield Text(f"\n{title} ({unit.name})", style="bold")
    yield Rows(("form", *headings), [(name, *map(unit.text, row)) for name, row in figures_ns.items()])


def _faster(forms: Forms) -> str:
    """Which form is faster; none where their ranges of step times overlap."""
    one, other = sorted(forms, key=lambda name: forms[name].steady.median_ns)
    fast, slow = forms[one].steady, forms[other].steady
    unit = unit_for((fast.median_ns, slow.median_ns))
    medians = f"{unit.text(fast.median_ns)} against {unit.text(slow.median_ns)} {unit.name}"
    if fast.maximum_ns >= slow.minimum_ns:
        return f"Between {one} and {other}, {medians}, no difference shows: the times of their steps overlap."
    return f"{one} is faster than {other}, {medians}: its slowest step took less than the other's fastest."


def _hidden(forms: Forms) -> str:
    shares = []
    for name, form in forms.items():
        _, busy_ns, _, overlapped_ns = form.use_ns
        shares.append(f"{share_text(overlapped_ns, busy_ns)} in {name}")
    return f"Of all communication, {' and '.join(shares)} was hidden behind computation."


def _multiplied(forms: Forms) -> str:
    """How much work each form made of the same tokens; nothing where there are no experts."""
    told = [
        f"{routed.rows:,} rows in {name} ({_dropped(routed)})"
        for name, form in forms.items()
        if (routed := form.routed)
    ]
    return f"Experts multiplied {' and '.join(told)}." if told else ""


def _unexplained(forms: Forms) -> str:
    """How much of the paths nothing explains; nothing where it is little."""
    told = [
        f"{share_text(form.path.by_kind_ns['idle'], form.path.window.duration_ns)} in {name}"
        for name, form in forms.items()
        if form.path.by_kind_ns.get("idle", 0) >= _NOTEWORTHY * form.path.window.duration_ns
    ]
    why = "an operation had its operands and waited, as for a thread that was busy with another"
    return f"For part of the critical path ({' and '.join(told)}) {why}." if told else ""


def _dropped(routed: Routed) -> str:
    return f"{routed.dropped:,} of {routed.assigned:,} assignments dropped" if routed.dropped else "nothing dropped"


def _worth(devices: int) -> str:
    return (
        f"These {devices} devices are simulated: threads that share {os.cpu_count()} cores of this host. Order and dependencies"
        " are real; the times are no evidence about accelerators (traceflow explain TF206)."
    )
