"""TF2xx: what is worth changing about a step or a program."""

from __future__ import annotations

from traceflow.codes.plan_findings import PLAN_FINDINGS
from traceflow.codes.sharding_findings import SHARDING_FINDINGS
from traceflow.codes.step_findings import STEP_FINDINGS

FINDINGS = (*STEP_FINDINGS, *SHARDING_FINDINGS, *PLAN_FINDINGS)
