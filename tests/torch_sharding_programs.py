"""PyTorch programs that are sharded wrongly, each with a twin that is right, and what is to be found in them.

All of them run in each of four processes, one after another: starting processes takes longer than they do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from traceflow.collectors.torch_sharding import audit
from traceflow.collectors.workloads import fsdp_tp_torch
from traceflow.intent.intent import Intent, intent
from traceflow.program.torch_audit import TorchAudit

PROCESSES = 4
WIDTH = 8


@dataclass(frozen=True)
class Program:
    """A model with its plan, and a step of it that returns a number."""

    model: Any
    step: Callable[[], Any]
    plan: Mapping[str, Any] | None = None
    countable: bool = True  # PyTorch's counter fails where a module runs twice


@dataclass(frozen=True)
class Case:
    """A program, with what its author adds and the findings that it deserves."""

    name: str
    build: Callable[[], Program]
    codes: frozenset[str]
    stated: Intent | None


@dataclass(frozen=True)
class Outcome:
    """Of one process: the audit, the step's result with and without it, and PyTorch's own counts of collectives."""

    audit: TorchAudit
    watched: float
    unwatched: float
    counts: dict[str, int] | None


CASES: dict[str, Case] = {}


def case(*codes: str, stated: Intent | None = None) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    def register(build: Callable[[], Program]) -> Callable[[], Program]:
        CASES[build.__name__] = Case(build.__name__, build, frozenset(codes), stated)
        return build

    return register


def run_all() -> dict[str, Outcome]:
    """Every program in this process."""
    return {name: _run(one.build) for name, one in CASES.items()}


def audited(build: Callable[[], Program]) -> Any:
    """The audit of one program's step."""
    program = build()
    with audit(program.model, plan=program.plan) as found:
        program.step()
    return found


def _run(build: Callable[[], Program]) -> Outcome:
    from torch.distributed.tensor.debug import CommDebugMode

    program = build()
    with audit(program.model, plan=program.plan) as audited:
        watched = program.step().detach()
    again = build()
    counter: Any = CommDebugMode() if program.countable else nullcontext()
    with warnings.catch_warnings(action="ignore"), counter:  # its hooks warn of inputs without slope
        unwatched = again.step().detach()
    counts = None
    if program.countable:
        counts = {str(operator).rpartition(".")[2]: n for operator, n in counter.get_comm_counts().items()}
    return Outcome(audited.content, float(watched), float(unwatched), counts)


def mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (PROCESSES,), mesh_dim_names=("tp",))


def mlp(plan: Mapping[str, Any], *, bias: bool = False) -> Program:
    """Two matrices with an activation in between, split as `plan` says."""
    import torch
    from torch import nn
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(0)

    class Mlp(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=bias), nn.Linear(4 * WIDTH, WIDTH, bias=bias)

        def forward(self, x: Any) -> Any:
            return self.down(nn.functional.gelu(self.up(x)))

    model, x = Mlp(), torch.randn(4, WIDTH)
    parallelize_module(model, mesh(), {key: style for key, style in plan.items() if key in {"up", "down"}})

    def step() -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return Program(model, step, plan)


def styles() -> Any:
    from torch.distributed.tensor import parallel

    return parallel


def tensors(step: Callable[..., Any], *placements: Any) -> Program:
    """A step of distributed tensors [8, 8] that lie as is said, without a model."""
    import torch
    from torch.distributed.tensor import distribute_tensor

    torch.manual_seed(0)
    grid = mesh()
    arrays = [distribute_tensor(torch.randn(8, 8), grid, [each]) for each in placements]
    return Program(torch.nn.Module(), lambda: step(*arrays).full_tensor().sum())


def shard(dimension: int) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(dimension)


def replicate() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


# Plans


@case()
def columns_then_rows() -> Program:
    return mlp({"up": styles().ColwiseParallel(), "down": styles().RowwiseParallel()})


@case()
def columns_then_rows_with_biases() -> Program:
    return mlp({"up": styles().ColwiseParallel(), "down": styles().RowwiseParallel()}, bias=True)


@case("TF234")
def gathered_between_columns_and_rows() -> Program:
    up = styles().ColwiseParallel(output_layouts=replicate())
    return mlp({"up": up, "down": styles().RowwiseParallel(input_layouts=replicate())})


@case()
def gradients_clipped() -> Program:
    import torch

    program = columns_then_rows()

    def step() -> Any:
        loss = program.step()
        torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
        return loss

    return Program(program.model, step, program.plan)


@case("TF246", stated=intent(expect=["all-reduce(tp)"]))
def gathered_though_one_all_reduce_is_stated() -> Program:
    return gathered_between_columns_and_rows()


@case(stated=intent(expect=["all-reduce(tp)"]))
def one_all_reduce_as_stated() -> Program:
    return columns_then_rows()


@case("TF247")
def misspelt_plan() -> Program:
    return mlp({"upp": styles().ColwiseParallel(), "down": styles().RowwiseParallel(input_layouts=replicate())})


@case()
def only_one_matrix_in_the_plan() -> Program:
    return mlp({"down": styles().RowwiseParallel(input_layouts=replicate())})


@case("TF245", stated=intent(params={"up.weight": "P('tp')", "down.weight": "P(None, 'tp')"}))
def parameter_not_as_stated() -> Program:
    return only_one_matrix_in_the_plan()


@case(stated=intent(params={"up.weight": "P('tp')", "down.weight": "P(None, 'tp')"}))
def parameters_as_stated() -> Program:
    return columns_then_rows()


def _blocks(leaving: Any, *, sequence: bool) -> Program:
    """Two residual blocks; with `sequence`, tokens are split where matrices are not."""
    import torch
    from torch import nn
    from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel, parallelize_module

    torch.manual_seed(0)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            return x + self.mlp(self.norm(x))

    model = nn.Sequential(Block(), Block())
    plan: dict[str, Any] = {"*.mlp.0": styles().ColwiseParallel(), "*.mlp.2": leaving}
    x = torch.randn(2, 8, WIDTH)
    if sequence:
        layouts = {"input_layouts": (shard(1),), "desired_input_layouts": (replicate(),)}
        plan |= {"*.norm": SequenceParallel(), "*.mlp": PrepareModuleInput(**layouts)}
    parallelize_module(model, mesh(), plan)
    return Program(model, _sequence_step(model, x) if sequence else _whole_step(model, x), plan)


def _whole_step(model: Any, x: Any) -> Callable[[], Any]:
    def step() -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def _sequence_step(model: Any, x: Any) -> Callable[[], Any]:
    from torch.distributed.tensor import distribute_tensor

    tokens = distribute_tensor(x, mesh(), [shard(1)])

    def step() -> Any:
        loss = model(tokens).square().mean().full_tensor()
        loss.backward()
        return loss

    return step


@case()
def residual_blocks() -> Program:
    return _blocks(styles().RowwiseParallel(), sequence=False)


@case()
def sequence_parallel_blocks() -> Program:
    leaving = styles().RowwiseParallel(output_layouts=shard(1), use_local_output=False)
    return _blocks(leaving, sequence=True)


@case("TF232")
def reduced_and_cut_before_the_next_norm() -> Program:
    """All sums on every rank, of which the residual stream keeps its tokens alone."""
    return _blocks(_then_cut(styles().RowwiseParallel), sequence=True)


def _then_cut(style: Any) -> Any:
    class Cut(style):  # type: ignore[misc]
        """Rows whose sums are cut by tokens after all ranks have them."""

        @staticmethod
        def _prepare_output_fn(layouts: Any, local: Any, module: Any, outputs: Any, grid: Any) -> Any:  # noqa: ARG004
            whole = outputs.redistribute(placements=layouts)
            return whole.redistribute(placements=[shard(1)])

    return Cut(output_layouts=replicate(), use_local_output=False)


@case()
def fully_sharded_and_tensor_parallel() -> Program:
    import torch

    size = fsdp_tp_torch.Size(sequences=4, length=6, model=16, heads=4, hidden=24, blocks=2)
    grid = fsdp_tp_torch.mesh_of(2, 2)
    model = fsdp_tp_torch.split(fsdp_tp_torch.transformer(size), grid)
    descent = torch.optim.AdamW(model.parameters())
    batch = fsdp_tp_torch.local_batch(grid, *fsdp_tp_torch.batch(size, 0))

    def step() -> Any:
        loss = fsdp_tp_torch.learn(model, *batch)
        descent.step()
        return loss

    return Program(model, step)


def _language_model(*, parallel_loss: bool, checkpoint: bool = False) -> Program:
    """Tokens, one block of attention and an MLP, and logits: split as the tutorials of PyTorch do."""
    import torch
    from torch import nn
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )
    from torch.utils.checkpoint import checkpoint as checkpointed

    torch.manual_seed(0)

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))

        def forward(self, x: Any) -> Any:
            parts = [part(x).unflatten(2, (-1, 4)).transpose(1, 2) for part in (self.query, self.key, self.value)]
            return self.out(nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.attention, self.mlp_norm = nn.LayerNorm(16), Attention(), nn.LayerNorm(16)
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.attention_norm(x))
            return x + self.mlp(self.mlp_norm(x))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.block, self.norm = nn.Embedding(32, 16), Block(), nn.LayerNorm(16)
            self.logits = nn.Linear(16, 32, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids)
            x = checkpointed(self.block, x, use_reentrant=False) if checkpoint else self.block(x)
            return self.logits(self.norm(x))

    whole = {"desired_input_layouts": (replicate(),), "input_layouts": (shard(1),)}
    plan = {
        "tokens": RowwiseParallel(input_layouts=replicate(), output_layouts=shard(1)),
        "block.attention_norm": SequenceParallel(),
        "block.attention": PrepareModuleInput(**whole),
        "block.attention.query": ColwiseParallel(),
        "block.attention.key": ColwiseParallel(),
        "block.attention.value": ColwiseParallel(),
        "block.attention.out": RowwiseParallel(output_layouts=shard(1)),
        "block.mlp_norm": SequenceParallel(),
        "block.mlp": PrepareModuleInput(**whole),
        "block.mlp.0": ColwiseParallel(),
        "block.mlp.2": RowwiseParallel(output_layouts=shard(1)),
        "norm": SequenceParallel(),
        "logits": ColwiseParallel(
            input_layouts=shard(1),
            output_layouts=shard(-1) if parallel_loss else replicate(),
            use_local_output=not parallel_loss,
        ),
    }
    model = parallelize_module(Model(), mesh(), plan)
    ids = torch.arange(16).reshape(2, 8)
    descent = torch.optim.AdamW(model.parameters())

    def learn() -> Any:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        return loss

    def step() -> Any:
        with loss_parallel() if parallel_loss else nullcontext():
            loss = learn()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        descent.step()
        return loss.full_tensor() if parallel_loss else loss

    return Program(model, step, plan, countable=not checkpoint)


@case()
def language_model_with_whole_logits() -> Program:
    return _language_model(parallel_loss=False)


@case()
def language_model_with_split_logits() -> Program:
    return _language_model(parallel_loss=True)


@case()
def language_model_that_computes_activations_again() -> Program:
    return _language_model(parallel_loss=False, checkpoint=True)


@case()
def batches_in_two_parts() -> Program:
    """Modules run twice before the update."""
    program = columns_then_rows()
    return Program(program.model, lambda: program.step() + program.step(), program.plan, countable=False)


@case()
def fully_sharded_alone() -> Program:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    fully_shard(model, mesh=mesh())
    descent, x = torch.optim.AdamW(model.parameters()), torch.randn(4, 8)

    def step() -> Any:
        loss = model(x).float().square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        descent.step()
        return loss

    return Program(model, step)


@case()
def replicated_in_each_process() -> Program:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))

    def step() -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return Program(model, step)


@case()
def gathered_to_be_halved() -> Program:
    """The halves of a whole are no halves of its pieces."""
    from torch.distributed.tensor import DTensor

    def step(a: Any) -> Any:
        gate, value = a.redistribute(placements=[replicate()]).to_local().chunk(2, dim=1)
        return DTensor.from_local(gate * value, a.device_mesh, [replicate()]).redistribute(placements=[shard(1)])

    return tensors(step, shard(1))


def _rows_of_numbers() -> Any:
    import torch

    return torch.linspace(0, 1, 4 * WIDTH).reshape(4, WIDTH)


@case("TF234")
def gathered_and_dropped_before_it_is_cut() -> Program:
    import torch

    program = gathered_between_columns_and_rows()
    torch.manual_seed(0)

    def step() -> Any:
        torch.manual_seed(1)
        kept = torch.nn.functional.dropout(program.model.up(_rows_of_numbers()).relu(), 0.5)
        return program.model.down(kept).sum()

    return Program(program.model, step)


@case()
def gathered_between_two_columns() -> Program:
    up = styles().ColwiseParallel(output_layouts=replicate())
    return mlp({"up": up, "down": styles().ColwiseParallel(output_layouts=replicate())})


@case()
def gathered_for_a_norm_and_cut() -> Program:
    import torch

    program = gathered_between_columns_and_rows()

    def step() -> Any:
        whole = program.model.up(_rows_of_numbers())
        return program.model.down(torch.nn.functional.layer_norm(whole, (4 * WIDTH,))).sum()

    return Program(program.model, step)


@case()
def sharded_within_replicas() -> Program:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(torch.nn.Linear(8, 8), mesh=grid)
    x = torch.ones(4, 8)
    return Program(model, _whole_step(model, x))


# Operands that lie differently


@case("TF248")
def sum_of_tensors_that_lie_differently() -> Program:
    return tensors(lambda a, b: a + b, shard(0), shard(1))


@case()
def sum_of_tensors_that_lie_alike() -> Program:
    return tensors(lambda a, b: a + b, shard(0), shard(0))


@case("TF248")
def softmax_over_what_is_split() -> Program:
    return tensors(lambda a: a.softmax(1), shard(1))


@case()
def softmax_of_what_each_has_whole() -> Program:
    return tensors(lambda a: a.softmax(1), shard(0))


@case()
def partial_sums_that_an_operator_needs_whole() -> Program:
    """What is summed over ranks must be added up before a function that is not linear."""
    return tensors(lambda a, b: (a @ b).relu(), shard(1), shard(0))


@case()
def layout_changed_by_the_program() -> Program:
    return tensors(lambda a, b: a.redistribute(placements=[shard(1)]) + b, shard(0), shard(1))


@case()
def gathered_by_the_program_for_a_product() -> Program:
    return tensors(lambda a, b: a.redistribute(placements=[replicate()]) @ b, shard(0), shard(1))


@case("TF234")
def gathered_and_cut_elsewhere() -> Program:
    def step(a: Any) -> Any:
        return (a.redistribute(placements=[replicate()]) * 2).redistribute(placements=[shard(1)])

    return tensors(step, shard(0))


def _split_linear(batch: int) -> Program:
    """Each rank has a part of the batch and of the matrix [32, 8]; one of the two is needed whole."""
    import torch
    from torch.distributed.tensor import distribute_tensor

    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh(), [shard(0)]))
    x = distribute_tensor(torch.randn(batch, WIDTH), mesh(), [shard(0)]).requires_grad_()

    def step() -> Any:
        loss = model(x).square().sum().full_tensor()
        loss.backward()
        return loss

    return Program(model, step)


@case()
def parameter_gathered_as_full_sharding_means_it() -> Program:
    return _split_linear(batch=256)


@case("TF248")
def batch_gathered_instead_of_the_parameter() -> Program:
    return _split_linear(batch=8)


# Values


def _claimed(values: Callable[[int], Any]) -> Program:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, distribute_tensor

    torch.manual_seed(0)
    grid = mesh()
    weight = distribute_tensor(torch.randn(8, 8), grid, [shard(1)])
    own = values(dist.get_rank())

    def step() -> Any:
        x = DTensor.from_local(own, grid, [replicate()], run_check=False)
        return (x @ weight).full_tensor().sum()

    return Program(torch.nn.Module(), step)


@case("TF249")
def batches_that_differ_claimed_alike() -> Program:
    import torch

    return _claimed(lambda rank: torch.randn(4, 8, generator=torch.Generator().manual_seed(rank)))


@case()
def one_batch_in_all() -> Program:
    import torch

    return _claimed(lambda _: torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))


@case()
def batches_that_differ_by_rounding() -> Program:
    import torch

    base = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    return _claimed(lambda rank: base * (1 + 1e-7 * rank))


def _norm(initial: Callable[[int], float]) -> Program:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.LayerNorm(WIDTH))
    torch.nn.init.constant_(model[0].weight, initial(dist.get_rank()))
    plan = {"0": SequenceParallel(use_local_output=True)}
    parallelize_module(model, mesh(), plan)
    x = torch.randn(2, 2, WIDTH)
    return Program(model, lambda: model(x).square().sum(), plan)


@case("TF249")
def parameter_that_began_differently() -> Program:
    """SequenceParallel takes the values that are there, and claims them alike."""
    return _norm(lambda rank: 1.0 + 0.001 * rank)


@case()
def parameter_that_began_alike() -> Program:
    return _norm(lambda _: 1.0)


# Shards


def _rows(rows: int) -> Program:
    import torch
    from torch.distributed.tensor import distribute_tensor

    torch.manual_seed(0)
    model, grid = torch.nn.Linear(WIDTH, rows, bias=False), mesh()
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), grid, [shard(0)]))
    x = distribute_tensor(torch.randn(4, WIDTH), grid, [replicate()])
    return Program(model, lambda: model(x).square().sum().full_tensor())


@case("TF236")
def rows_that_do_not_divide() -> Program:
    return _rows(6)


@case()
def rows_that_divide() -> Program:
    return _rows(8)
