"""What hardware can do at most: dense peak rates per element type, memory and links, each with its source.

A rate belongs to one *device*, which is what the framework calls so: a TensorCore of a TPU v2, v3 or v7, a whole chip
of the TPUs between them, a GPU, and of the MI250 one of its two dies. Peaks are those without sparsity. The rate of
`f32` is that of the fastest mode which takes such operands, TF32 or, on TPUs, passes in bf16: a bound must not be
above the truth. The rate of links is that of all links of a device together, in one direction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType

from traceflow.errors import TraceflowError

_TERA, _GIGA, _GIBI = 1e12, 1e9, 1 << 30

# Which rates an element type may use, the first that is known: what hardware does not multiply as it is, it widens.
_FAMILIES = (
    (r"f4e\w+", ("f4", "f8", "bf16")),
    (r"f[68]e\w+", ("f8", "bf16")),
    (r"bf16|f16", ("bf16",)),
    (r"f32|c64", ("f32",)),
    (r"f64|c128", ("f64",)),
    (r"[su][48]", ("s8",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Peak rates of one device; None where no public figure is known."""

    name: str
    unit: str  # what one device is
    flops_per_s: Mapping[str, float]  # dense peak of matrix products by family of element types: bf16, f8, f32 ...
    memory_bytes: int | None
    memory_bytes_per_s: float | None
    link_bytes_per_s: float | None  # all links together, one direction
    link: str  # what the links are, or why their rate is not known
    source: str

    def rate(self, element_type: str) -> float | None:
        """FLOP/s of matrix products of an element type, as HLO spells it; None where no figure is known.

        Example:
            >>> known("h100").rate("f8e4m3fn") / 1e12, known("v4").rate("f8e4m3fn") / 1e12, known("v4").rate("s32")
            (1978.9, 275.0, None)
        """
        for pattern, families in _FAMILIES:
            if re.fullmatch(pattern, element_type):
                return next((self.flops_per_s[name] for name in families if name in self.flops_per_s), None)
        return None


def _tpu(
    name: str,
    unit: str,
    tera: Mapping[str, float],
    memory: tuple[float, float],
    link: tuple[float | None, str],
    at: str,
) -> Hardware:
    """A TPU; memory in GB and GB/s, links in GB/s in one direction."""
    rates = {kind: peak * _TERA for kind, peak in tera.items()}
    return Hardware(
        name=name,
        unit=unit,
        flops_per_s=MappingProxyType({**rates, "f32": rates["bf16"]}),
        memory_bytes=int(memory[0] * _GIGA),
        memory_bytes_per_s=memory[1] * _GIGA,
        link_bytes_per_s=None if link[0] is None else link[0] * _GIGA,
        link=link[1],
        source=at,
    )


def _gpu(
    name: str, unit: str, tera: Mapping[str, float], memory: tuple[float, float], link: tuple[float, str], at: str
) -> Hardware:
    """A GPU; memory in GB and GB/s, links in GB/s in one direction."""
    return Hardware(
        name=name,
        unit=unit,
        flops_per_s=MappingProxyType({kind: peak * _TERA for kind, peak in tera.items()}),
        memory_bytes=int(memory[0] * _GIGA),
        memory_bytes_per_s=memory[1] * _GIGA,
        link_bytes_per_s=link[0] * _GIGA,
        link=link[1],
        source=at,
    )


_CORE = "one TensorCore, half a chip"
_CHIP = "one chip"
_CLOUD = "Google Cloud documentation, docs.cloud.google.com/tpu/docs/"
_PALLAS = "JAX documentation, TPU hardware reference, docs.jax.dev/en/latest/pallas/tpu/hardware.html"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet (SXM)"
_H100 = "NVIDIA H100 Tensor Core GPU architecture whitepaper (SXM5)"
_NO_ICI = "inter-chip interconnect; its documentation gives no rate per chip"
_AMPERE = {"bf16": 312.0, "f32": 156.0, "f64": 19.5, "s8": 624.0}
_HOPPER = {"bf16": 989.4, "f8": 1978.9, "f32": 494.7, "f64": 66.9, "s8": 1978.9}

_ALL = (
    _tpu("v2", _CORE, {"bf16": 23.0}, (8.0, 358.0), (None, _NO_ICI), _PALLAS),
    _tpu("v3", _CORE, {"bf16": 61.5}, (16 * _GIBI / _GIGA, 450.0), (None, _NO_ICI), f"{_CLOUD}v3"),
    _tpu(
        "v4",
        _CHIP,
        {"bf16": 275.0, "s8": 275.0},
        (32 * _GIBI / _GIGA, 1200.0),
        (300.0, "inter-chip interconnect, 6 links of 50 GB/s (Jouppi et al., TPU v4, ISCA 2023)"),
        f"{_CLOUD}v4",
    ),
    _tpu(
        "v5e",
        _CHIP,
        {"bf16": 197.0, "s8": 393.0},
        (16.0, 819.0),
        (200.0, "inter-chip interconnect, 400 GB/s in both directions"),
        f"{_CLOUD}v5e",
    ),
    _tpu(
        "v5p",
        _CHIP,
        {"bf16": 459.0, "s8": 918.0},
        (95.0, 2765.0),
        (600.0, "inter-chip interconnect, 1200 GB/s in both directions"),
        f"{_CLOUD}v5p, int8: {_PALLAS}",
    ),
    _tpu(
        "v6e",
        _CHIP,
        {"bf16": 918.0, "f8": 918.0, "s8": 1836.0},
        (32.0, 1638.0),
        (400.0, "inter-chip interconnect, 800 GB/s in both directions"),
        f"{_CLOUD}v6e",
    ),
    _tpu(
        "v7",
        _CORE,
        {"bf16": 1153.5, "f8": 2307.0},
        (96 * _GIBI / _GIGA, 3690.0),
        (600.0, "inter-chip interconnect, 1200 GB/s in both directions for the chip, which one of its cores may use"),
        f"{_CLOUD}tpu7x",
    ),
    _gpu("a100-40gb", "one GPU", _AMPERE, (40.0, 1555.0), (300.0, "NVLink 3, 600 GB/s in both directions"), _A100),
    _gpu("a100", "one GPU", _AMPERE, (80.0, 2039.0), (300.0, "NVLink 3, 600 GB/s in both directions"), _A100),
    _gpu("h100", "one GPU", _HOPPER, (80.0, 3350.0), (450.0, "NVLink 4, 900 GB/s in both directions"), _H100),
    _gpu(
        "h200",
        "one GPU",
        _HOPPER,
        (141.0, 4800.0),
        (450.0, "NVLink 4, 900 GB/s in both directions"),
        f"NVIDIA H200 Tensor Core GPU datasheet; {_H100}",
    ),
    _gpu(
        "b200",
        "one GPU",
        {"bf16": 2250.0, "f8": 4500.0, "f4": 9000.0, "f32": 1100.0, "f64": 40.0, "s8": 4500.0},
        (180.0, 8000.0),
        (900.0, "NVLink 5, 1800 GB/s in both directions"),
        "NVIDIA Blackwell architecture technical brief (HGX B200, 1000 W)",
    ),
    _gpu(
        "mi250",
        "one die (GCD), half a module",
        {"bf16": 181.05, "f32": 45.25, "f64": 45.25, "s8": 181.05},
        (64.0, 1638.4),
        (400.0, "Infinity Fabric, 8 links of 50 GB/s"),
        "AMD Instinct MI250 datasheet; ROCm documentation, MI250 microarchitecture",
    ),
    _gpu(
        "mi300x",
        "one GPU",
        {"bf16": 1307.4, "f8": 2614.9, "f32": 653.7, "f64": 163.4, "s8": 2614.9},
        (192.0, 5300.0),
        (448.0, "Infinity Fabric, 7 links of 128 GB/s in both directions"),
        "AMD Instinct MI300X data sheet",
    ),
    _gpu(
        "mi355x",
        "one GPU",
        {"bf16": 2516.6, "f8": 5033.2, "f4": 10066.3, "f64": 78.6, "s8": 5033.2},
        (288.0, 8000.0),
        (537.6, "Infinity Fabric, 7 links of 153.6 GB/s in both directions"),
        "AMD Instinct MI355X data sheet; AMD CDNA 4 architecture white paper",
    ),
)

HARDWARE: Mapping[str, Hardware] = MappingProxyType({hardware.name: hardware for hardware in _ALL})
"""Every device whose rates are known, by name."""

CPU = "cpu"
"""The name under which this machine is measured."""

# How frameworks and drivers spell the names of devices.
_NAMES = (
    (r"tpu ?v2", "v2"),
    (r"tpu ?v3", "v3"),
    (r"tpu ?v4(?! ?lite)", "v4"),
    (r"tpu ?v5 ?(?:e|lite)", "v5e"),
    (r"tpu ?v5 ?p?$", "v5p"),
    (r"tpu ?v6 ?(?:e|lite)", "v6e"),
    (r"tpu ?v?7x?", "v7"),
    (r"a100.*40gb", "a100-40gb"),
    (r"a100.*80gb", "a100"),
    (r"h100.*(?:80gb hbm3|sxm)", "h100"),
    (r"h200(?!.*nvl)", "h200"),
    (r"\bb200", "b200"),
    (r"mi250(?!x)", "mi250"),
    (r"mi300x", "mi300x"),
    (r"mi355x", "mi355x"),
)
# Where a name says too little: vendor, compute units, and memory in GB from ... to.
_BUILDS = (
    ("nvidia", 108, 39, 45, "a100-40gb"),
    ("nvidia", 108, 79, 87, "a100"),
    ("nvidia", 132, 79, 86, "h100"),
    ("nvidia", 132, 139, 152, "h200"),
    ("nvidia", 148, 175, 195, "b200"),
    ("amd", 104, 63, 70, "mi250"),
    ("amd", 304, 190, 208, "mi300x"),
    ("amd", 256, 285, 312, "mi355x"),
)
_VENDORS = (("nvidia", r"nvidia|tesla|geforce"), ("amd", r"amd|radeon|instinct"))


def known(name: str) -> Hardware:
    """The hardware of a name; `cpu` measures this machine.

    Args:
        name: One of `HARDWARE`, or `cpu`, in any case.

    Raises:
        TraceflowError: TF120 for any other name.

    Example:
        >>> known("V5e").memory_bytes_per_s
        819000000000.0
    """
    wanted = name.casefold().removeprefix("tpu").strip(" -")
    if wanted == CPU:
        return measured_cpu()
    if wanted in HARDWARE:
        return HARDWARE[wanted]
    raise TraceflowError(
        "TF120", f"no hardware {name!r}", "its rates are not known", f"use one of {', '.join(_names())}"
    )


def _names() -> tuple[str, ...]:
    return (*HARDWARE, CPU)


def recognised(said: Mapping[str, str]) -> Hardware | None:
    """The hardware that a trace was recorded on, None where it does not tell or is not known.

    Args:
        said: Metadata of a trace: `device` is a name, `device_vendor`, `device_units` (SMs, CUs) and `device_memory`
            (bytes) are what the driver reports.

    Example:
        >>> recognised({"device": "NVIDIA H100 80GB HBM3"}).name, recognised({"device": "Tesla V100-SXM2-32GB"})
        ('h100', None)
        >>> recognised({"device": "", "device_units": "304", "device_memory": "206141652992"}).name
        'mi300x'
    """
    name = said.get("device", "").casefold()
    for pattern, hardware in _NAMES:
        if re.search(pattern, name):
            return HARDWARE[hardware]
    return _by_build(f"{said.get('device_vendor', '').casefold()} {name}", said)


def _by_build(text: str, said: Mapping[str, str]) -> Hardware | None:
    """By units and memory, where vendor and name do not contradict."""
    units, memory = said.get("device_units", ""), said.get("device_memory", "")
    if not (units.isdecimal() and memory.isdecimal()) or re.search(r"pcie|nvl|h800|h20\b|a800|gh200", text):
        return None
    vendors = {vendor for vendor, pattern in _VENDORS if re.search(pattern, text)}
    for vendor, of_units, least, most, name in _BUILDS:
        fits = int(units) == of_units and least <= int(memory) / _GIGA <= most
        if fits and (not vendors or vendor in vendors):
            return HARDWARE[name]
    return None


def measured_cpu() -> Hardware:
    """What this machine does now: the best of a few products of matrices and copies of memory, with all its cores.

    flops_per_s = 2 n^3 / shortest time of a product of [n, n] matrices, with n = 1024, in float32 and in float64;
    memory_bytes_per_s = 2 x size / shortest time to copy 128 MiB, each byte being read and written. Takes a few
    seconds at most, and is measured anew by every call. Virtual devices of one machine share these rates.
    """
    import numpy as np

    def product(kind: type[np.floating]) -> float:
        one = np.ones((_MATRIX, _MATRIX), kind)
        out = np.empty_like(one)
        return 2 * _MATRIX**3 / _shortest_s(lambda: np.matmul(one, one, out=out))

    source = np.ones(_COPIED // 8)
    target = np.empty_like(source)
    copy_s = _shortest_s(lambda: np.copyto(target, source))
    return Hardware(
        name=CPU,
        unit="this machine",
        flops_per_s=MappingProxyType({"f32": product(np.float32), "f64": product(np.float64)}),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_bytes_per_s=2 * _COPIED / copy_s,
        link_bytes_per_s=None,
        link="devices of one machine share its memory",
        source="measured on this machine",
    )


_MATRIX, _COPIED, _TRIALS = 1024, 128 << 20, 5


def _shortest_s(work: Callable[[], object]) -> float:
    """The shortest of a few durations of some work, after a first time that warms it up."""
    work()
    best = float("inf")
    for _ in range(_TRIALS):
        start = perf_counter()
        work()
        best = min(best, perf_counter() - start)
    return best
