"""Parallel plans, and what follows from them by arithmetic: groups, shapes, payloads, weights, scaling."""

from traceflow.intent.plan.parallel import ParallelPlan

__all__ = ["ParallelPlan"]
