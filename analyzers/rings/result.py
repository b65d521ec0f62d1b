"""What is told of a product that is cut into rounds, and of one that could be."""

from __future__ import annotations

from dataclasses import dataclass

from traceflow.analyzers.communication import Participant
from traceflow.result import Json

HIDDEN = "hidden"
NOT_HIDDEN = "decomposed but not hidden"
TOO_SMALL = "chunks too small"
SOURCE_ORDER = "source order only, no evidence of overlap"
_NEGLIGIBLE = 0.1  # of what is sent: so much may be exposed, and it is hidden still


@dataclass(frozen=True, slots=True)
class RoundTime:
    """One product of a ring, with the permute that brought what it needs."""

    number: int
    product: str
    permute: str | None
    block: tuple[int, ...]  # per device, whose block it multiplies; of sums that travel, where the sum ends
    begins: tuple[int, ...] | None  # per device, where the part begins that it uses of its own operand
    length: int | None  # of that part
    matches: bool | None  # whether block and part belong together
    sent_bytes: int | None  # by each device, in the permute
    permute_ns: int | None
    exposed_ns: int | None
    product_ns: int | None

    @property
    def overlapped_ns(self) -> int | None:
        """Time of the permute that computation hides."""
        if self.permute_ns is None or self.exposed_ns is None:
            return None
        return self.permute_ns - self.exposed_ns

    def to_dict(self) -> dict[str, Json]:
        """A row of `per_round`."""
        return {
            "round": self.number,
            "product": self.product,
            "permute": self.permute,
            "block": list(self.block),
            "rows": None if self.begins is None or self.length is None else [[b, b + self.length] for b in self.begins],
            "matches": self.matches,
            "sent_bytes": self.sent_bytes,
            "permute_ns": self.permute_ns,
            "overlapped_ns": self.overlapped_ns,
            "exposed_ns": self.exposed_ns,
            "product_ns": self.product_ns,
        }


@dataclass(frozen=True, slots=True)
class Loop:
    """A product that is cut into rounds. Times are sums over the window, on the participant with most exposed."""

    name: str
    program: str | None  # None where operators make the rounds
    form: str  # unrolled or loop, in a program; operators; fused, where one operator does all
    travels: str | None  # blocks or sums
    devices: int | None  # of one ring
    rounds: int | None
    permutes: int | None
    permute_bytes: int | None  # sent by each device in one execution
    per_round: tuple[RoundTime, ...]
    participant: Participant | None
    executions: int | None
    permute_ns: int | None
    exposed_ns: int | None
    matmul_ns: int | None
    chunk_efficiency_ratio: float | None
    verdict: str
    source: str

    @property
    def overlapped_share(self) -> float | None:
        """1 - exposed / time of permutes."""
        if self.permute_ns is None or self.exposed_ns is None or not self.permute_ns:
            return None
        return 1 - self.exposed_ns / self.permute_ns

    def to_dict(self) -> dict[str, Json]:
        """A row of `loops`."""
        return {
            "name": self.name,
            "program": self.program,
            "form": self.form,
            "travels": self.travels,
            "devices": self.devices,
            "rounds": self.rounds,
            "permutes": self.permutes,
            "permute_bytes": self.permute_bytes,
            "participant": None
            if self.participant is None
            else {"rank": self.participant[0], "device": self.participant[1]},
            "executions": self.executions,
            "permute_ns": self.permute_ns,
            "overlapped_share": self.overlapped_share,
            "exposed_ns": self.exposed_ns,
            "matmul_ns": self.matmul_ns,
            "chunk_efficiency_ratio": self.chunk_efficiency_ratio,
            "verdict": self.verdict,
            "source": self.source,
            "per_round": [one.to_dict() for one in self.per_round],
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """A collective next to a product that could be cut into rounds. Times as for a loop; saved by replay."""

    collective: str
    operation: str
    matmul: str
    program: str | None
    members: int
    bytes: int | None  # of the larger of what goes in and what comes out, on each device
    exposed_ns: int | None
    matmul_ns: int | None
    saved_ns: int | None
    source: str

    def to_dict(self) -> dict[str, Json]:
        """A row of `candidates`."""
        return {
            "collective": self.collective,
            "operation": self.operation,
            "matmul": self.matmul,
            "program": self.program,
            "members": self.members,
            "bytes": self.bytes,
            "exposed_ns": self.exposed_ns,
            "matmul_ns": self.matmul_ns,
            "saved_ns": self.saved_ns,
            "source": self.source,
        }


def verdict(permute_ns: int, exposed_ns: int, transfer_ns: int, hiding_ns: int) -> str:
    """What the times of a ring say.

    Args:
        permute_ns: How long one permute at least was under way.
        exposed_ns: The part that no computation covers.
        transfer_ns: Permutes without waiting for others.
        hiding_ns: Products that may run meanwhile: too small are rounds whose products are so much shorter than
            transfers that this is half of what is exposed.

    Example:
        >>> verdict(100, 5, 100, 200), verdict(100, 60, 100, 90), verdict(100, 60, 100, 20)
        ('hidden', 'decomposed but not hidden', 'chunks too small')
    """
    if exposed_ns <= _NEGLIGIBLE * permute_ns:
        return HIDDEN
    return TOO_SMALL if 2 * (transfer_ns - hiding_ns) >= exposed_ns else NOT_HIDDEN
