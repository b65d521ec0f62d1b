"""What every test may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from sources import ROOT

pytest_plugins = ["golden"]

# Eight virtual devices on the host, before anything imports JAX.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

# Tests of readers read. What is kept of traces has tests of its own.
os.environ["TRACEFLOW_CACHE"] = "off"

# A slow machine is no counterexample. CI tries the same examples for the same code, people try new ones.
settings.register_profile("traceflow", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("traceflow")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name no test after binary data: compressed bytes hold the time, and workers must agree on all names."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


@pytest.fixture(scope="session", autouse=True)
def started_jax() -> None:
    """Start JAX, where a test module has imported it, before any test can start it with fewer devices."""
    if "jax" in sys.modules:
        sys.modules["jax"].devices()


@pytest.fixture(scope="session")
def corpus() -> Callable[[str], Path]:
    """Find a recorded trace of the corpus beside the checkout; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = ROOT.parent / "shared" / "corpus" / name
        if not path.exists():
            pytest.skip(f"no corpus file {name} beside the checkout")
        return path

    return find
