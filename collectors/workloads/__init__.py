"""Instrumented workloads: small programs whose structure is known, to record and to compare."""
