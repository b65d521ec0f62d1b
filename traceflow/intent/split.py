"""Two ways to divide a layer among devices, compared from shapes alone: all weights everywhere, or weights divided.

The layer is X[rows, width] @ W1[width, hidden], then @ W2[hidden, width], on a number of devices, the rows being
divided to begin with.

- A: each device has its own rows and reads all weights.
- B: each device has all rows and its part of `hidden`. An all-gather brings the rows together; each product with W2 is
  a partial sum of all rows, and a reduce-scatter adds them up and leaves to each device its own rows.

Both compute equally much. B reads fewer weights and communicates more, so that it pays where
T_local,A - T_local,B > T_AG + T_RS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from traceflow.budgets import least_time_ns, matmul_flops, sent_bytes, splitting_pays
from traceflow.errors import TraceflowError
from traceflow.hardware import Hardware
from traceflow.program.shape import shape_bytes
from traceflow.result import Finding, Json, Note, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd

_MATRICES = 2


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of a layer of two products, and on how many devices it runs."""

    rows: int
    width: int
    hidden: int
    devices: int
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        """Refuse what cannot be divided.

        Raises:
            TraceflowError: TF151.
        """
        what = f"cannot divide X[{self.rows},{self.width}] and hidden {self.hidden} among {self.devices} devices"
        if min(self.rows, self.width, self.hidden, self.devices) < 1:
            raise TraceflowError("TF151", what, "sizes are 1 at least", "give the sizes of a layer")
        if shape_bytes(f"{self.dtype}[8]") < 1:
            raise TraceflowError(
                "TF151", what, f"no element type is called {self.dtype}", "use one such as bf16 or f32"
            )
        uneven = [name for name in ("rows", "hidden") if getattr(self, name) % self.devices]
        if uneven:
            raise TraceflowError(
                "TF151", what, f"{' and '.join(uneven)} do not divide evenly", "choose multiples of it"
            )


@dataclass(frozen=True, slots=True)
class Part:
    """What one device does under a plan."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    flops: int
    weight_bytes: int  # read at least once
    all_gather_bytes: int  # sent at least
    reduce_scatter_bytes: int
    local_ns: int | None  # the least time of its products: the larger of its compute and its memory bound

    @property
    def payload_bytes(self) -> int:
        """What it sends at least."""
        return self.all_gather_bytes + self.reduce_scatter_bytes

    def to_dict(self) -> dict[str, Json]:
        """The `a` or `b` object."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes},
            "flops": self.flops,
            "weight_bytes": self.weight_bytes,
            "payload_bytes": self.payload_bytes,
            "all_gather_bytes": self.all_gather_bytes,
            "reduce_scatter_bytes": self.reduce_scatter_bytes,
            "local_ns": self.local_ns,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitComparison(Shown):
    """Plan A against plan B."""

    kind: ClassVar[str] = "plan-compare"
    layer: Layer
    hardware: Hardware | None
    a: Part
    b: Part
    all_gather_ns: int | None
    reduce_scatter_ns: int | None
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = field(default=())

    @property
    def saved_ns(self) -> int | None:
        """T_local,A - T_local,B."""
        return None if self.a.local_ns is None or self.b.local_ns is None else self.a.local_ns - self.b.local_ns

    @property
    def communication_ns(self) -> int | None:
        """T_AG + T_RS."""
        if self.all_gather_ns is None or self.reduce_scatter_ns is None:
            return None
        return self.all_gather_ns + self.reduce_scatter_ns

    @property
    def b_pays(self) -> bool | None:
        """Whether B is the faster of the two by these bounds; None where a rate is not known."""
        if self.a.local_ns is None or self.b.local_ns is None or self.communication_ns is None:
            return None
        return splitting_pays(self.a.local_ns, self.b.local_ns, self.communication_ns)

    @property
    def break_even_bytes_per_s(self) -> float | None:
        """The rate of the links at which A and B take equally long: payload of B / (T_local,A - T_local,B)."""
        saved = self.saved_ns
        return self.b.payload_bytes * 1e9 / saved if saved is not None and saved > 0 else None

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        layer = self.layer
        return {
            "layer": {
                "rows": layer.rows,
                "width": layer.width,
                "hidden": layer.hidden,
                "devices": layer.devices,
                "dtype": layer.dtype,
            },
            "hardware": None if self.hardware is None else self.hardware.name,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "break_even": {
                "condition": "T_local,A - T_local,B > T_AG + T_RS",
                "saved_ns": self.saved_ns,
                "all_gather_ns": self.all_gather_ns,
                "reduce_scatter_ns": self.reduce_scatter_ns,
                "communication_ns": self.communication_ns,
                "link_bytes_per_s": self.break_even_bytes_per_s,
                "b_pays": self.b_pays,
            },
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per plan."""
        import pandas as pd

        return pd.DataFrame([self.a.to_dict(), self.b.to_dict()], index=["a", "b"])


def compare_split(layer: Layer, hardware: Hardware | None = None) -> SplitComparison:
    """Compare giving each device all weights with dividing them.

    Times are bounds at peak rates. An all-gather and a reduce-scatter take what each device sends over the rate of its
    links; latencies are not in it.

    Args:
        layer: Its sizes.
        hardware: What it would run on; without it, there are no times.

    Example:
        >>> found = compare_split(Layer(rows=8, width=8192, hidden=32768, devices=8))
        >>> found.a.flops == found.b.flops, found.a.weight_bytes, found.b.weight_bytes
        (True, 1073741824, 134217728)
    """
    own, all_rows, part = layer.rows // layer.devices, layer.rows, layer.hidden // layer.devices
    a = _part(layer, own, layer.hidden, hardware, gathered=0, partial=0)
    b = _part(
        layer,
        all_rows,
        part,
        hardware,
        gathered=_size(layer, own, layer.width),
        partial=_size(layer, all_rows, layer.width),
    )
    link = None if hardware is None else hardware.link_bytes_per_s
    return SplitComparison(
        layer=layer,
        hardware=hardware,
        a=a,
        b=b,
        all_gather_ns=None if link is None else least_time_ns(b.all_gather_bytes, link),
        reduce_scatter_ns=None if link is None else least_time_ns(b.reduce_scatter_bytes, link),
        skipped=_skipped(a, b, link, hardware),
    )


def _size(layer: Layer, rows: int, columns: int) -> int:
    return shape_bytes(f"{layer.dtype}[{rows},{columns}]")


def _part(layer: Layer, rows: int, hidden: int, hardware: Hardware | None, *, gathered: int, partial: int) -> Part:
    flops = _MATRICES * matmul_flops(rows, layer.width, hidden)
    weight_bytes = _MATRICES * _size(layer, layer.width, hidden)
    return Part(
        shapes=(("x", (rows, layer.width)), ("w1", (layer.width, hidden)), ("w2", (hidden, layer.width))),
        flops=flops,
        weight_bytes=weight_bytes,
        all_gather_bytes=sent_bytes("all-gather", gathered, layer.devices) or 0,
        reduce_scatter_bytes=sent_bytes("reduce-scatter", partial, layer.devices) or 0,
        local_ns=_local_ns(flops, weight_bytes, layer.dtype, hardware),
    )


def _local_ns(flops: int, weight_bytes: int, dtype: str, hardware: Hardware | None) -> int | None:
    """The larger of both bounds; None where one of them is not known."""
    if hardware is None or not (rate := hardware.rate(dtype)) or not hardware.memory_bytes_per_s:
        return None
    return max(least_time_ns(flops, rate), least_time_ns(weight_bytes, hardware.memory_bytes_per_s))


def _skipped(a: Part, b: Part, link: float | None, hardware: Hardware | None) -> tuple[Skipped, ...]:
    name = "" if hardware is None else hardware.name
    of = "no hardware is named" if hardware is None else f"rates of {name} are not known"
    gaps = []
    if a.local_ns is None:
        times = ("/result/a/local_ns", "/result/b/local_ns", "/result/break_even/saved_ns")
        gaps += [Skipped(what, of) for what in times]
    if link is None:
        why = of if hardware is None else f"the rate of the links of {name} is not known: {hardware.link}"
        gaps += [Skipped(f"/result/break_even/{w}_ns", why) for w in ("all_gather", "reduce_scatter", "communication")]
    if a.local_ns is None or link is None:
        gaps.append(
            Skipped("/result/break_even/b_pays", of if a.local_ns is None else "the rate of the links is not known")
        )
    if a.local_ns is None or b.local_ns is None or a.local_ns <= b.local_ns:
        why = of if a.local_ns is None else "B saves nothing locally: no link makes it the faster one"
        gaps.append(Skipped("/result/break_even/link_bytes_per_s", why))
    return tuple(gaps)
