"""Plans that tests draw, and what the command line answers."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from traceflow.cli import main
from traceflow.intent.plan import Batch, Model, ParallelPlan

if TYPE_CHECKING:
    import pytest

LARGE = ParallelPlan(world=1024, pp=8, cp=2, ep=64)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The whole JSON document that `traceflow plan` prints."""
    assert main(["plan", *words, "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@st.composite
def steps(draw: st.DrawFn, *, one_matrix: bool = False, drops: bool = True) -> tuple[ParallelPlan, Model, Batch]:
    """A plan with sizes that divide; tokens of TP are apart, as experts need them.

    Args:
        draw: Of hypothesis.
        one_matrix: Without TP and PP, so that all ranks have the same dense parameters.
        drops: Whether there may be a capacity.
    """
    small = st.sampled_from([1, 2, 3])
    tp, pp = (1, 1) if one_matrix else (draw(small), draw(small))
    cp, gtp = draw(small), draw(small)
    stage = prod((tp, cp, gtp, draw(small)))
    ep = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    etp = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % (ep * d) == 0]))
    egtp = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % (ep * etp * d) == 0]))
    shards = draw(st.sampled_from([d for d in (1, 2, 3) if gtp % d == 0]))
    sizes = {"tp": tp, "cp": cp, "gtp": gtp, "ep": ep, "etp": etp, "egtp": egtp, "gtp_sequence_shards": shards}
    parallel = ParallelPlan(world=stage * pp, pp=pp, sp=True, **sizes)  # type: ignore[arg-type]  # no size is called order
    experts = ep * draw(st.integers(1, 3))
    model = Model(
        hidden=draw(st.integers(1, 4)) * gtp * tp,
        experts=experts,
        topk=draw(st.integers(1, experts)),
        expert_hidden=etp * egtp * tp * draw(st.integers(1, 3)),
        shared_experts=draw(st.integers(0, 1)),
        latent=draw(st.none() | st.integers(1, 5)),
        capacity_factor=draw(st.none() | st.sampled_from([0.5, 1.0, 1.25])) if drops else None,
        dense_parameters=draw(st.none() | st.integers(1, 9)),
    )
    cut = cp * shards * tp
    return parallel, model, Batch(sequence=cut * draw(st.integers(1, 4)), micro_batch=draw(st.integers(1, 3)))
