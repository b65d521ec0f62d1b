"""What the examples of findings are about: each scene puts an input into a folder, for the command to be run there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_builder import KinetoTrace
from sources import ROOT

SHARED = ROOT.parent / "shared"
MS = 1_000_000


@dataclass(frozen=True)
class Scene:
    """What is laid into a folder, under a name that those share who need the same; live ones give other times each time."""

    name: str
    lay: Callable[[Path], None]
    live: bool = False
    cores: int | None = None  # at most so many, or the finding need not show


def nothing(_folder: Path) -> None:
    """A command that needs no input."""


def link(folder: Path, *, source: Path, name: str) -> None:
    if not source.exists():
        pytest.skip(f"no {source.name} beside the checkout")
    (folder / name).symlink_to(source)


def public(name: str) -> Scene:
    """A trace of the corpus."""
    return Scene(name, partial(link, source=SHARED / "corpus" / "kineto" / name, name=name))


def case(name: str) -> Scene:
    """A small case with known answers."""
    return Scene(name, partial(link, source=SHARED / "cases" / name / "traces", name=name))


# Traces written by hand


def write(build: Callable[[], KinetoTrace], folder: Path) -> None:
    build().write(folder / "step.json")


def written(build: Callable[[], KinetoTrace]) -> Scene:
    return Scene(build.__name__, partial(write, build))


def pageable_copy() -> KinetoTrace:
    card = KinetoTrace()
    card.copy(0, 45 * MS, call=(0, MS // 100), name="Memcpy HtoD (Pageable -> Device)")
    card.kernel("gemm", 45 * MS, 75 * MS, call=(MS // 100, MS // 50))
    return card


def rows_put_by_a_library() -> KinetoTrace:
    card = KinetoTrace()
    card.kernel("matmul", 9_000, 109_000, call=(2_000, 5_000))
    for at in (20_000, 40_000):
        card.kernel("my::put_rows", at, at + 10_000, stream=33, call=(at - 3_000, at - 2_000))
    return card


def product_under_a_checkpoint() -> KinetoTrace:
    card = KinetoTrace()
    sizes = {"Input Dims": [[4096, 8192], [8192, 2048]], "Input type": ["c10::BFloat16"] * 2}
    spans = {"CheckpointFunctionBackward": (20 * MS, 90 * MS), "MmBackward0": (50 * MS, 80 * MS)}
    for name, (start, end) in spans.items():
        card.host(f"autograd::engine::evaluate_function: {name}", start, end)
    for at in (0, 30 * MS, 55 * MS):
        card.host("aten::mm", at, at + 10 * MS, arguments=sizes)
        card.kernel("gemm", at + 12 * MS, at + 13 * MS, call=(at + MS, at + 2 * MS))
    return card


def counts_copied_to_the_host() -> KinetoTrace:
    card = KinetoTrace()
    card.host("dispatch", 0, 9 * MS, category="user_annotation")
    card.kernel("count", MS, 8 * MS, call=(0, MS))
    card.runtime("cudaStreamSynchronize", 2 * MS, 8 * MS)
    return card


def ring_of_operators(product: int, message: tuple[int, int], folder: Path) -> None:
    """Three cards: each sends its block to the one before it twice, at a moment of its round."""
    sizes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float"] * 2}
    for rank in range(3):
        card = KinetoTrace(rank=rank, world_size=3)
        for turn, at in enumerate(range(0, 60_000, 20_000)):
            card.host("aten::mm", at + 1_000, at + 2_000, arguments=sizes)
            card.kernel("gemm", at + 5_000, at + 5_000 + product, call=(at + 1_200, at + 1_800))
            if turn < 2:
                begin, end = at + message[0], at + message[1]
                card.send(begin, end, to=(rank - 1) % 3, call=(at + 200, at + 300), stream=20, elements=1000)
                card.receive(begin, end, source=(rank + 1) % 3, call=(at + 400, at + 500), stream=21, elements=1000)
        (folder / "runs" / "ring").mkdir(parents=True, exist_ok=True)
        card.write(folder / "runs" / "ring" / f"rank{rank}.json")


# Programs that are compiled, and not run


def dumped(function: Any, arguments: Any, folder: Path) -> None:
    dump = {"xla_dump_to": str(folder), "xla_dump_hlo_as_proto": True, "xla_dump_hlo_pass_re": "spmd|shard"}
    function.lower(*arguments).compile(compiler_options=dump)


def sharded(name: str, intent: str = "") -> Scene:
    """One of the programs that are sharded wrongly, beside what its author states."""

    def lay(folder: Path) -> None:
        pytest.importorskip("jax")
        import sharding_manual_programs  # noqa: F401  # adds its programs to CASES
        from sharding_programs import CASES

        dumped(*CASES[name].build(), folder / "runs" / "a")
        (folder / "sharding.toml").write_text(intent, encoding="utf-8")

    return Scene(f"{name} {intent}", lay)


def ring(name: str) -> Scene:
    """One of the products in rounds that go wrong."""

    def lay(folder: Path) -> None:
        pytest.importorskip("jax")
        from ring_programs import lowered

        dumped(*lowered(name), folder / "runs" / "a")

    return Scene(name, lay)


def descent(folder: Path) -> None:
    jax = pytest.importorskip("jax")

    def descent(w: Any, slope: Any) -> Any:
        return w - 0.1 * slope

    shapes = (jax.ShapeDtypeStruct((1024, 1024), np.float32),) * 2
    dumped(jax.jit(descent), shapes, folder / "runs" / "a")


def padded(folder: Path) -> None:
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (x: bf16[1000,3]) -> bf16[1000,3] {
  %x = bf16[1000,3]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %y = bf16[1000,3]{1,0:T(8,128)(2,1)} negate(%x)
}
"""
    (folder / "step.hlo.txt").write_text(text, encoding="utf-8")


AUDIT = """
from sharding_programs import rematerialised_in_full

from traceflow.analyzers.sharding import sharding
from traceflow.collectors.jax import compile_only

function, arguments = rematerialised_in_full()
for finding in sharding([compile_only(function, *arguments)]).findings:
    print(finding.code, finding.title)
"""


def rematerialised(folder: Path) -> None:
    pytest.importorskip("jax")
    (folder / "audit.py").write_text(AUDIT, encoding="utf-8")


# Recordings


def shapes_that_change(folder: Path) -> None:
    jax = pytest.importorskip("jax")
    import traceflow

    update = jax.jit(lambda x: jax.numpy.tanh(x.T @ x).sum())
    with traceflow.record(folder / "runs" / "a", warmup=1) as recorder:
        for number in range(6):
            with recorder.step() as step:
                step.ready(update(np.ones((7 if number == 3 else 8, 64), np.float32)))


def sorted_product(folder: Path) -> None:
    jax = pytest.importorskip("jax")
    import traceflow

    def squared(x: Any) -> Any:
        return jax.numpy.sort(x @ x).sum()

    step: Any = traceflow.instrument(jax.jit(squared))
    with traceflow.record(folder / "runs" / "a", framework="jax", warmup=1, steps=1):
        for _ in range(2):
            step(jax.numpy.ones((64, 64)))


def gates_applied_twice(folder: Path) -> None:
    jax = pytest.importorskip("jax")
    import traceflow

    returned, gates = np.array([[1.0], [2.0], [3.0]]), np.array([[0.25, 0.75], [1.0, 0.0]])
    token, choice = np.array([0, 0, 1]), np.array([0, 1, 0])
    combined = np.zeros((2, 1))
    np.add.at(combined, token, returned * gates[token, choice][:, None] ** 2)
    values = {"returned": returned, "gates": gates, "token": token, "choice": choice, "combined": combined}
    with traceflow.record(folder / "runs" / "a", framework="jax", warmup=0, steps=1) as recorder:
        with recorder.step() as step:
            step.ready(jax.numpy.ones(8).sum())
        recorder.attach("combine.npz", {**values, "layer": np.array(0), "weighted": np.array(0)})


def demo(folder: Path) -> None:
    pytest.importorskip("jax")
    from traceflow.collectors.workloads.collective_matmul import record_collective_matmul
    from traceflow.collectors.workloads.moe_jax import record_moe

    record_collective_matmul(folder / "demo", devices=8, size=(256, 256, 512), steps=2)
    record_moe(folder / "demo", variants=("capacity", "masked"), devices=8)


def two_forms(folder: Path) -> None:
    """A product on four devices, in a gathered form and as a ring."""
    pytest.importorskip("jax")
    from traceflow.collectors.workloads.collective_matmul import record_collective_matmul

    record_collective_matmul(folder / "runs", devices=4, size=(8, 16, 16), steps=5)


def two_forms_that_differ(folder: Path) -> None:
    two_forms(folder)
    (outputs,) = (folder / "runs" / "ring").rglob("*outputs.npz")
    with np.load(outputs) as file:
        kept = dict(file)
    np.savez(outputs, **{**kept, "product": kept["product"] / 2})


def demo_torch(folder: Path) -> None:
    """A mixture of experts on four processes, and the same as if the ranks of its record had been mixed up."""
    pytest.importorskip("torch")
    from traceflow.collectors.workloads.moe_torch import record_moe

    right = record_moe(folder / "demo-torch" / "ep2_edp2", steps=1)
    wrong = folder / "demo-torch" / "mistaken"
    shutil.copytree(right, wrong)
    records = sorted(wrong.rglob("rank*.routing.npz"))
    for one, other in zip(records[::2], records[1::2], strict=True):
        kept = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(kept)


AUDITED = ("misspelt_plan", "sum_of_tensors_that_lie_differently", "batches_that_differ_claimed_alike")


def audit_some(folder: str) -> None:
    """In each process: audits of three programs, saved side by side."""
    from torch_sharding_programs import CASES, audited

    for name in AUDITED:
        audited(CASES[name].build).save(os.path.join(folder, name))  # noqa: PTH118  # `save` takes text


def audits(folder: Path) -> None:
    pytest.importorskip("torch")
    from traceflow.collectors.workloads import torch_processes

    torch_processes.run(audit_some, 4, str(folder / "runs"))


STATED = '[params]\n"w" = "P(None, \'model\')"\n'
EXPECTED = 'expect = ["all-gather(model)"]\n'
DEMO, DEMO_TORCH = Scene("demo", demo, live=True), Scene("demo-torch", demo_torch, live=True)
AUDITS, FORMS = Scene("audits", audits), Scene("two forms", two_forms, live=True)
RESNET, BERT = public("mi300_resnet_rank0of8.json.gz"), public("h100_bert_small.json.gz")
PLAN = Scene("nothing", nothing)

SCENES = {
    "TF201": RESNET,
    "TF202": case("moe_hot_rank"),
    "TF203": BERT,
    "TF205": Scene("shapes", shapes_that_change),
    "TF206": DEMO,
    "TF207": written(pageable_copy),
    "TF208": BERT,
    "TF209": RESNET,
    "TF210": written(rows_put_by_a_library),
    "TF211": Scene("sorted product", sorted_product, live=True),
    "TF212": Scene("descent", descent),
    "TF213": Scene("padded", padded),
    "TF214": BERT,
    "TF215": written(product_under_a_checkpoint),
    "TF216": Scene("demo", demo, live=True, cores=8),
    "TF217": DEMO,
    "TF218": DEMO,
    "TF219": DEMO,
    "TF220": written(counts_copied_to_the_host),
    "TF221": Scene("gates", gates_applied_twice),
    "TF222": DEMO_TORCH,
    "TF223": RESNET,
    "TF231": sharded("weight_gathered_over_another_axis"),
    "TF232": sharded("reduced_and_then_cut"),
    "TF233": sharded("activation_on_every_device"),
    "TF234": sharded("sum_of_arrays_that_lie_differently"),
    "TF235": Scene("rematerialised", rematerialised),
    "TF236": sharded("columns_that_do_not_divide"),
    "TF237": sharded("sum_split_on_one_side"),
    "TF238": sharded("sum_of_copies"),
    "TF239": sharded("copies_claimed_that_differ"),
    "TF244": sharded("experts_computed_and_masked"),
    "TF245": sharded("weight_gathered_over_another_axis", STATED),
    "TF246": sharded("sum_split_on_one_side", EXPECTED),
    "TF247": AUDITS,
    "TF248": AUDITS,
    "TF249": AUDITS,
    **dict.fromkeys(("TF250", "TF251", "TF252", "TF253"), PLAN),
    **dict.fromkeys(("TF254", "TF255", "TF256", "TF257"), DEMO_TORCH),
    "TF260": ring("backwards"),
    "TF261": ring("summed_again"),
    "TF262": ring("one_too_many"),
    "TF263": ring("in_turn"),
    "TF264": Scene("ring in turn", partial(ring_of_operators, 10_000, (15_000, 20_000))),
    "TF265": Scene("ring of short products", partial(ring_of_operators, 2_000, (6_000, 18_000))),
    "TF266": case("gather_then_matmul"),
    "TF281": Scene("two forms that differ", two_forms_that_differ, live=True),
    "TF282": FORMS,
    "TF283": case("moe_hot_rank"),
}
"""The scene of each finding's example."""
