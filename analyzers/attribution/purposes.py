"""What collectives are for, and the words that judging them uses."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache

UNKNOWN = "unknown"
"""A dimension that nothing tells."""


class Purpose(StrEnum):
    """What a collective moves, and to what end."""

    DISPATCH = "token dispatch"
    COMBINE = "combine"
    ETP_GATHER = "ETP gather"
    ETP_SCATTER = "ETP scatter"
    ROUTER_STATISTICS = "router statistics"
    PARAMETER_GATHER = "parameter gather"
    DENSE_GRADIENT = "dense gradient reduction"
    EXPERT_GRADIENT = "expert gradient reduction"
    GRADIENT = "gradient reduction"  # of parameters of which it is not known whether they are an expert's
    MUON = "Muon exchange"
    CONTEXT = "CP context"
    BOUNDARY = "PP boundary"
    ACTIVATION_SUM = "activation sum"
    ACTIVATION_GATHER = "activation gather"
    ACTIVATION_SCATTER = "activation scatter"
    SCALARS = "scalar statistics"
    UNKNOWN = "unknown"


GRADIENTS = frozenset({Purpose.DENSE_GRADIENT, Purpose.EXPERT_GRADIENT, Purpose.GRADIENT})
TOKENS = frozenset({Purpose.DISPATCH, Purpose.COMBINE})
OF_EXPERTS = TOKENS | {Purpose.ETP_GATHER, Purpose.ETP_SCATTER, Purpose.EXPERT_GRADIENT}
"""Purposes whose groups lie on the mesh of the experts; those of all others lie on the dense one."""


class Phase(StrEnum):
    """Which part of a step issued a collective."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"  # between the backward pass and the end of the step, the optimiser included


class Kind(StrEnum):
    """What a collective does, however the library spells it."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    TRANSFER = "send"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    OTHER = "other"


_KINDS = (
    (r"reduce_?scatter", Kind.REDUCE_SCATTER),
    (r"all_?gather", Kind.ALL_GATHER),
    (r"all_?to_?all", Kind.ALL_TO_ALL),
    (r"all_?reduce", Kind.ALL_REDUCE),
    (r"^(?:batch_)?i?send$|^i?recv(?:_any_source)?$|collective_permute", Kind.TRANSFER),
    (r"^dispatch$", Kind.DISPATCH),
    (r"^combine$", Kind.COMBINE),
)


@cache
def kind_of_operation(operation: str) -> Kind:
    """The kind of an operation as PyTorch or XLA spells it.

    A kernel that sends and receives in one may be any of several, and is of no kind.

    Example:
        >>> [kind_of_operation(text).value for text in ("_reduce_scatter_base", "all-to-all", "send_recv", "irecv")]
        ['reduce-scatter', 'all-to-all', 'other', 'send']
    """
    text = operation.replace("-", "_").strip("_").lower()
    return next((kind for pattern, kind in _KINDS if re.search(pattern, text)), Kind.OTHER)
