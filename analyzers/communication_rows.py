"""Rows of an answer about communication: participants, collectives with their calls, messages, and what stays whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from traceflow.analyzers.attribution import Attributed
from traceflow.result import Json

Participant: TypeAlias = tuple[int, int | None]
"""(rank, device); no device for host work."""


@dataclass(frozen=True, slots=True)
class ParticipantTime:
    """Where one participant's window went, in ns.

    busy = length of (union of communication); exposed = length of (communication minus compute);
    overlapped = busy - exposed; idle = window - length of (union of compute, communication and copies).
    None where the evidence is absent.
    """

    participant: Participant
    compute_ns: int
    copy_ns: int | None
    busy_ns: int
    exposed_ns: int
    idle_ns: int | None
    window_ns: int

    @property
    def overlapped_ns(self) -> int:
        """Communication hidden behind compute."""
        return self.busy_ns - self.exposed_ns

    @property
    def exposed_share(self) -> float | None:
        """Exposed / window."""
        return self.exposed_ns / self.window_ns if self.window_ns else None

    def to_dict(self) -> dict[str, Json]:
        """A row of `per_participant`."""
        return {
            **named(self.participant),
            "compute_ns": self.compute_ns,
            "copy_ns": self.copy_ns,
            "busy_ns": self.busy_ns,
            "exposed_ns": self.exposed_ns,
            "overlapped_ns": self.overlapped_ns,
            "idle_ns": self.idle_ns,
            "exposed_share": self.exposed_share,
        }


@dataclass(frozen=True, slots=True)
class Call:
    """One participant's part in a collective: it arrived, waited for the last, and transferred until the end."""

    participant: Participant
    payload_bytes: int | None
    arrival_ns: int
    wait_ns: int
    transfer_ns: int
    end_ns: int
    exposed_ns: int  # the whole call minus the union of compute on this participant

    def to_dict(self) -> dict[str, Json]:
        """A row of a collective's `participants`."""
        return {
            **named(self.participant),
            "payload_bytes": self.payload_bytes,
            "arrival_ns": self.arrival_ns,
            "wait_ns": self.wait_ns,
            "transfer_ns": self.transfer_ns,
            "end_ns": self.end_ns,
            "exposed_ns": self.exposed_ns,
        }


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective with all its participants."""

    id: str
    op: str
    name: str
    group: str
    last: Participant  # who arrived last
    calls: tuple[Call, ...]
    attributed: Attributed | None = None

    @property
    def payload_bytes(self) -> int | None:
        """The largest that one participant puts in."""
        return max((call.payload_bytes for call in self.calls if call.payload_bytes is not None), default=None)

    @property
    def start_skew_ns(self) -> int:
        """From the first arrival to the last."""
        return max(call.arrival_ns for call in self.calls) - min(call.arrival_ns for call in self.calls)

    @property
    def end_skew_ns(self) -> int:
        """From the first end to the last: where all end together, the error of the clocks."""
        return max(call.end_ns for call in self.calls) - min(call.end_ns for call in self.calls)

    def to_dict(self) -> dict[str, Json]:
        """A row of `collectives`."""
        return {
            "id": self.id,
            "op": self.op,
            "name": self.name,
            "group": self.group,
            **purpose_of(self.attributed),
            "payload_bytes": self.payload_bytes,
            "last": {**named(self.last)},
            "start_skew_ns": self.start_skew_ns,
            "end_skew_ns": self.end_skew_ns,
            "participants": [call.to_dict() for call in self.calls],
        }


@dataclass(frozen=True, slots=True)
class Message:
    """One point-to-point transfer; wait is how long the receiver waited for the send to be posted."""

    id: str
    source: Participant
    destination: Participant
    payload_bytes: int | None
    posted_ns: int
    received_ns: int
    wait_ns: int
    attributed: Attributed | None = None

    def to_dict(self) -> dict[str, Json]:
        """A row of `point_to_point`."""
        return {
            "id": self.id,
            "source": {**named(self.source)},
            "destination": {**named(self.destination)},
            **purpose_of(self.attributed),
            "payload_bytes": self.payload_bytes,
            "posted_ns": self.posted_ns,
            "received_ns": self.received_ns,
            "wait_ns": self.wait_ns,
        }


@dataclass(frozen=True, slots=True)
class UnmatchedCall:
    """A communication call that stays whole, and why."""

    participant: Participant
    name: str
    start_ns: int
    duration_ns: int
    reason: str
    attributed: Attributed | None = None

    def to_dict(self) -> dict[str, Json]:
        """A row of `unmatched`."""
        return {
            **named(self.participant),
            "name": self.name,
            **purpose_of(self.attributed),
            "start_ns": self.start_ns,
            "duration_ns": self.duration_ns,
            "reason": self.reason,
        }


def named(participant: Participant) -> dict[str, Json]:
    """Rank and device of a participant, as the JSON contract has them."""
    return {"rank": participant[0], "device": participant[1]}


def purpose_of(attributed: Attributed | None) -> dict[str, Json]:
    """Dimension, purpose and pass of a call, null where nobody asked for them, and what they rest on."""
    if attributed is None:
        return {"dimension": None, "purpose": None, "phase": None, "because": None}
    return {
        "dimension": attributed.dimension,
        "purpose": attributed.purpose,
        "phase": attributed.phase,
        "because": attributed.because,
    }
