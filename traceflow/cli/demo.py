"""`traceflow demo`."""

from traceflow.cli.options import Options


def demo(options: Options) -> None:
    """Record a collective matmul on simulated devices and explain it; needs JAX."""
