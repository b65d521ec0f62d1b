"""`traceflow plan check INPUT`: a parallel plan against what ran."""

from __future__ import annotations

from dataclasses import dataclass

from traceflow.cli.answer import answer
from traceflow.cli.options import AnswerOptions, Source, Top
from traceflow.cli.plan import PlanOptions, planned


@dataclass(frozen=True)
class PlanCheckOptions(PlanOptions, AnswerOptions):
    """A plan, and what a verb that reads an input can be told."""


def plan_check(options: PlanCheckOptions, source: Source, top: Top = 60) -> None:
    """Groups, payloads, counts and shapes of a plan against a trace: what agrees, and what differs."""
    given = options.given()
    plan = planned(given, options.preset)
    answer(options, source, lambda run: run.plan_check(plan), request=given, top=top)
