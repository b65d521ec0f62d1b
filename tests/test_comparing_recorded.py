"""The pairs of the demo, recorded small: claims end as a person who reads the figures would end them.

Times of virtual devices are no ground to stand on in a test: only claims on results, plans and bytes are made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import traceflow as tf
from traceflow.analyzers.comparison import Diff

jax = pytest.importorskip("jax", reason="the workloads need JAX")

from traceflow.collectors.workloads.collective_matmul import record_collective_matmul  # noqa: E402
from traceflow.collectors.workloads.moe_jax import record_moe  # noqa: E402


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_collective_matmul(tmp_path_factory.mktemp("product"), devices=4, size=(32, 64, 64), steps=5)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    record_moe(folder, variants=("capacity", "masked"), devices=4, steps=5)
    return folder


def verdicts(found: Diff) -> dict[str, str]:
    return {one.claim: one.verdict.value for one in found.claims}


def test_the_ring_sends_as_much_in_permutes_and_computes_the_same(product: Path) -> None:
    claims = {
        "same outputs": "confirmed",
        "no all-gather": "confirmed",
        "less all-gather bytes": "confirmed",
        "collective_permute_calls == 3": "confirmed",
        "same communication bytes": "confirmed",  # the blocks of A travel either way
        "less communication": "refuted",
        "a.collective_permute_calls > 0": "refuted",
        "fewer all-reduces": "refuted",  # there are none in either
    }
    found = tf.diff(product / "gather", product / "ring", list(claims))
    assert verdicts(found) == claims
    changed = {(row.aspect, row.what): (row.a, row.b) for row in found.plan_changes}
    assert changed["dependencies", "all-gather -> dot"] == (1, 0)
    assert changed["dependencies", "collective-permute -> dot"] == (0, 3)
    assert not any("dot -> " in what for _, what in changed)  # no product holds up a permute
    assert {aspect for aspect, _ in changed} == {"collectives", "dependencies", "instructions"}
    sent = {one.name: (one.median("a"), one.median("b")) for one in found.quantities}
    assert sent["communication_bytes"] == (4 * 3 * 32 * 16 * 4,) * 2  # each of 4 devices sends 3 blocks of [32, 16] f32


def test_masking_moves_experts_in_place_of_tokens_and_drops_none(experts: Path) -> None:
    claims = {
        "fewer all-to-alls": "confirmed",
        "no all-to-all": "confirmed",
        "more all-gather bytes": "confirmed",
        "less peak memory": "refuted",
        "less traffic": "refuted",
        "same all-reduce bytes": "confirmed",  # of the gradients that all devices share
    }
    found = tf.diff(experts / "capacity", experts / "masked", list(claims))
    assert verdicts(found) == claims
    assert found.numerics is not None
    assert found.numerics.outputs[0].name == "loss"
    with np.load(experts / "capacity" / "routing.npz") as routing:
        dropped = int(routing["dropped"].sum())
    assert found.numerics.same is (dropped == 0)


@pytest.mark.parametrize("form", ["gather", "ring"])
def test_a_recording_differs_from_itself_in_nothing(product: Path, form: str) -> None:
    found = tf.diff(product / form, product / form, ["same communication bytes", "same live_peak_bytes"])
    assert (found.verdict, found.plan_changes) == ("no difference", ())
    assert set(verdicts(found).values()) == {"confirmed"}
    assert [one.name for one in found.quantities if one.change.significant is not False] == []
