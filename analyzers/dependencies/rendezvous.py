"""Edges between the participants of a collective and between the two ends of a transfer."""

from __future__ import annotations

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.analyzers.matching import SENDS, Matches
from traceflow.graph import EdgeKind, Edges, SliceKind
from traceflow.trace.model import Trace


def rendezvous(trace: Trace, matches: Matches, cut: Cut) -> list[Edges]:
    """The arrival of each participant that p depends on binds the end of the wait at p, where its transfer starts.

    Where everybody depends on everybody, the arrivals meet in one join, so that n participants take 2 n
    edges instead of n^2. The receive depends on its send by an edge of its own kind.
    """
    event = trace.communications.event
    split = cut.slices.kind[cut.last[event]] == SliceKind.TRANSFER
    arrival, waited = 2 * cut.first[event], 2 * cut.first[event] + 1
    joined = np.flatnonzero(matches.joined & split)
    join = cut.joins[matches.instance[joined]]
    sent = matches.point_to_point & _sends(trace)
    keep = (split | sent)[matches.pair_source] & split[
        matches.pair_target
    ]  # a send counts from its post on, whole or not
    source, target = matches.pair_source[keep], matches.pair_target[keep]
    received = sent[source]
    return [
        Edges(arrival[joined], 2 * join, EdgeKind.RENDEZVOUS),
        Edges(2 * join + 1, waited[joined], EdgeKind.RENDEZVOUS),
        Edges(arrival[source[~received]], waited[target[~received]], EdgeKind.RENDEZVOUS),
        Edges(arrival[source[received]], waited[target[received]], EdgeKind.SEND_RECEIVE),
    ]


def _sends(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    is_send = np.array([text in SENDS for text in trace.strings] or [False])
    return is_send[trace.communications.operation]
