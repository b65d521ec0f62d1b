"""Quantities as people read them: a unit that suits the figures, and a dash of honesty where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

UNKNOWN = "n/a"


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time, and how many decimals to print in it."""

    name: str
    ns: int
    decimals: int

    def text(self, ns: int | None) -> str:
        """A duration in this unit, without its name.

        Example:
            >>> TimeUnit("us", 1_000, 1).text(1_234_567), TimeUnit("us", 1_000, 1).text(None)
            ('1,234.6', 'n/a')
        """
        return UNKNOWN if ns is None else f"{ns / self.ns:,.{self.decimals}f}"


def unit_for(durations_ns: Iterable[int | None]) -> TimeUnit:
    """The unit in which the largest of some durations has one to four digits before the point.

    Example:
        >>> unit_for([1_500, None, 162_200])
        TimeUnit(name='us', ns=1000, decimals=2)
    """
    largest = max((abs(ns) for ns in durations_ns if ns is not None), default=0)
    name, ns = next(
        ((name, ns) for name, ns in (("us", 1_000), ("ms", 1_000_000)) if largest < 10_000 * ns), ("s", 10**9)
    )
    return TimeUnit(name, ns, next((decimals for decimals in (3, 2) if largest < 10 ** (5 - decimals) * ns), 1))


def duration_text(ns: int) -> str:
    """One duration with its unit, to three decimals.

    Example:
        >>> duration_text(162_200), duration_text(412_345_678)
        ('162.200 us', '412.346 ms')
    """
    unit = unit_for([ns])
    return f"{ns / unit.ns:,.3f} {unit.name}"


def share_text(part: int | None, whole: int) -> str:
    """A part of a whole in percent.

    Example:
        >>> share_text(1, 8), share_text(None, 8), share_text(0, 0)
        ('12.5 %', 'n/a', 'n/a')
    """
    return UNKNOWN if part is None or not whole else f"{part / whole:.1%}".replace("%", " %")


def size_text(size_bytes: int | None) -> str:
    """A size in binary units.

    Example:
        >>> size_text(512), size_text(352_321_536), size_text(None)
        ('512 B', '336.0 MiB', 'n/a')
    """
    if size_bytes is None:
        return UNKNOWN
    factor, unit = size_unit(size_bytes)
    return f"{size_bytes / factor:,.{1 if factor > 1 else 0}f} {unit}"


def size_unit(size_bytes: int) -> tuple[int, str]:
    """The largest binary unit that a size reaches: its bytes and its name.

    Example:
        >>> size_unit(512), size_unit(352_321_536)
        ((1, 'B'), (1048576, 'MiB'))
    """
    power = min(max(abs(size_bytes).bit_length() - 1, 0) // 10, 4)
    return 1024**power, ("B", "KiB", "MiB", "GiB", "TiB")[power]
