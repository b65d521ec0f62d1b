"""Write Kineto traces of a simulated training job, with what the simulation knows about it beside them.

Data-parallel training of a stack of layers, laid out as the exporter lays it out. The main thread runs the
forward pass, another one the backward pass; every operator launches a kernel. Three streams: compute, NCCL,
copies from the host. Per layer one all-reduce, which starts when the last rank is ready and ends on all at
once. Synchronisation records, launch and forward-to-backward flows, step annotations on host and device.
`truth.txt` holds kernels and exposed communication per rank; it is no .json, so that no tool takes it for a trace.

    gen_kineto.py --events 1000000 --ranks 1 --out build/bench
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPUTE, NCCL, COPY = 7, 20, 24
PROCESS, FORWARD, BACKWARD = 4242, 4242, 4399
LAUNCH, COPY_ASYNC, RECORD, WAIT, SYNCHRONIZE = 430, 41, 135, 147, 165  # callback ids of runtime calls
BASE_NS = 1_720_000_000_000_000_000
ELEMENTS = 1 << 25

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<{}, {}, std::array<char*, {}ul> >(int, {}, std::array<char*, {}ul>)"
)
FUNCTOR_ADD = "at::native::CUDAFunctor_add<c10::BFloat16>"
GELU = "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}"
ADAM = "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>"
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Operator:
    """An operator, one inside it or none, and the kernel that it launches."""

    name: str
    inner: str | None
    kernel: str
    mean_us: float

    def backward(self) -> Operator:
        """The operator of the backward pass that undoes it, twice as expensive."""
        name = f"autograd::engine::evaluate_function: {self.name.removeprefix('aten::')}Backward0"
        return Operator(name, self.inner or self.name, self.kernel.replace("fwd", "bwd"), 2 * self.mean_us)


LAYER = (
    Operator(
        "aten::layer_norm",
        "aten::native_layer_norm",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
        "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
        9,
    ),
    Operator("aten::linear", "aten::addmm", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNT", 70),
    Operator(
        "aten::scaled_dot_product_attention",
        "aten::_scaled_dot_product_flash_attention",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
        "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
        55,
    ),
    Operator("aten::add", None, ELEMENTWISE.format(8, FUNCTOR_ADD, 3, FUNCTOR_ADD, 3), 6),
    Operator("aten::linear", "aten::addmm", "nvjet_tst_256x128_64x4_1x2_h_bz_coopB_TNN", 90),
    Operator("aten::gelu", None, ELEMENTWISE.format(4, GELU, 2, GELU, 2), 12),
)
OPTIMIZER = Operator(
    "Optimizer.step#AdamW.step",
    "aten::_foreach_add_",
    f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{ADAM}, FusedAdamMathFunctor<float, 4, ADAMW, false> >()",
    45,
)
DIMENSIONS = {"Input Dims": [[8192, 4096], [4096, 4096]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
KERNEL = {
    "queued": 0,
    "context": 1,
    "registers per thread": 168,
    "shared memory": 213504,
    "blocks per SM": 1.0,
    "warps per SM": 12.0,
    "grid": [132, 1, 1],
    "block": [384, 1, 1],
    "est. achieved occupancy %": 18,
}


@dataclass
class Rank:
    """One rank: its clock in us, when its streams are free, and the text of its trace."""

    rank: int
    world: int
    slowdown: float
    random: random.Random
    now: float = 1_000_000.0
    free: dict[int, float] = field(default_factory=lambda: dict.fromkeys((COMPUTE, NCCL, COPY), 0.0))
    busy: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: {COMPUTE: [], NCCL: [], COPY: []})
    host: list[str] = field(default_factory=list)
    device: list[str] = field(default_factory=list)
    correlation: int = 1000
    external: int = 1
    sequence: int = 1
    flow: int = 1
    event: int = 1

    @property
    def written(self) -> int:
        """Events so far."""
        return len(self.host) + len(self.device)

    def span(
        self, cat: str, name: str, where: tuple[int, int], times: tuple[float, float], args: dict[str, Any]
    ) -> None:
        """Write an event with a start and a duration."""
        section = self.host if cat in {"cpu_op", "user_annotation"} else self.device
        section.append(
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {where[0]}, "tid": {where[1]},\n'
            f'    "ts": {times[0]:.3f}, "dur": {times[1]:.3f},\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'
        )

    def arrow(self, phase: str, number: int, where: tuple[int, int], ts: float, cat: str = "ac2g") -> None:
        """Write one end of a flow."""
        binding = ', "bp": "e"' if phase == "f" else ""
        (self.host if cat == "fwdbwd" else self.device).append(
            f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {where[0]}, "tid": {where[1]}, "ts": {ts:.3f},\n'
            f'    "cat": "{cat}", "name": "{cat}"{binding}\n  }}'
        )

    def call(self, name: str, cbid: int, us: float, thread: int, *, launches: bool = True) -> None:
        """Call the runtime on a thread, under a new correlation number."""
        self.correlation += 1
        args = {"External id": self.external, "cbid": cbid, "correlation": self.correlation}
        self.span("cuda_runtime", name, (PROCESS, thread), (self.now, us), args)
        if launches:
            self.arrow("s", self.correlation, (PROCESS, thread), self.now)

    def work(self, cat: str, name: str, stream: int, times: tuple[float, float], args: dict[str, Any]) -> None:
        """Put the work of the last call on a stream."""
        place = {"device": self.rank % 8, "stream": stream, "correlation": self.correlation}
        self.span(cat, name, (self.rank % 8, stream), times, {"External id": self.external, **place, **args})
        self.arrow("f", self.correlation, (self.rank % 8, stream), times[0])
        self.busy[stream].append((times[0], sum(times)))
        self.free[stream] = sum(times)

    def synchronisation(self, kind: str, stream: int, awaited: tuple[int, int, int]) -> None:
        """Write what the last call made wait for what: (stream, call that recorded, event)."""
        keys = ("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id")
        place = {"stream": stream, "correlation": self.correlation, "device": self.rank % 8, "context": 1}
        args = {"External id": self.external, "cuda_sync_kind": kind, **dict(zip(keys, awaited, strict=True)), **place}
        self.span("cuda_sync", kind, (self.rank % 8, stream), (self.now + 1, 2.0), args)
        self.arrow("f", self.correlation, (self.rank % 8, stream), self.now + 1)

    def operator(self, op: Operator, thread: int) -> None:
        """Run an operator that launches its kernel."""
        self.external += 1
        start, lead, launch = self.now, self.random.uniform(2, 5), self.random.uniform(3, 7)
        within = 2 * lead + launch
        ids = {"External id": self.external, "Record function id": 0, "Ev Idx": self.written}
        links = {"Sequence number": self.sequence, "Fwd thread id": int(thread == BACKWARD)}
        self.span("cpu_op", op.name, (PROCESS, thread), (start, within + 3), {**ids, **links, **DIMENSIONS})
        if op.inner:
            self.external += 1
            ids["External id"] = self.external
            self.span("cpu_op", op.inner, (PROCESS, thread), (start + 1, within + 1), {**ids, **DIMENSIONS})
        self.now += lead
        self.call("cudaLaunchKernelExC", LAUNCH, launch, thread)
        us = max(1.5, self.random.gauss(op.mean_us, op.mean_us / 20)) * self.slowdown
        self.work("kernel", op.kernel, COMPUTE, (max(self.now + launch + 1.2, self.free[COMPUTE]), us), KERNEL)
        self.now = start + within + 3 + self.random.uniform(0.3, 2)

    def copy_in(self) -> None:
        """Copy a batch to the device."""
        self.call("cudaMemcpyAsync", COPY_ASYNC, 6.0, FORWARD)
        start = max(self.now + 8, self.free[COPY])
        args = {"context": 1, "bytes": 2097152, "memory bandwidth (GB/s)": 52.43}
        self.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", COPY, (start, 40.0), args)
        self.now += 9

    def post_allreduce(self) -> float:
        """Let the NCCL stream wait for the gradients; return when its all-reduce could start."""
        self.external += 1
        self.event += 1
        self.call("cudaEventRecord", RECORD, 1.1, BACKWARD)
        recorded = self.correlation
        self.now += 2
        self.call("cudaStreamWaitEvent", WAIT, 1.3, BACKWARD)
        ready = max(self.free[COMPUTE], self.free[NCCL], self.now + 9)
        self.synchronisation("Stream Wait Event", NCCL, (COMPUTE, recorded, self.event))
        self.now += 2
        return ready

    def run_allreduce(self, ready: float, end: float) -> tuple[int, int]:
        """Run it; return the call and the event that record its end."""
        posted = self.now - 4
        described = {
            "Collective name": "allreduce",
            "In msg nelems": ELEMENTS,
            "Out msg nelems": ELEMENTS,
            "Group size": self.world,
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.world))),
            "Rank": self.rank,
            "Seq": self.event,
        }
        ids = {"External id": self.external, "Record function id": 0, "Ev Idx": self.written}
        self.span("user_annotation", "nccl:all_reduce", (PROCESS, BACKWARD), (posted, 14.0), ids)
        self.external += 1
        ids = {**ids, "External id": self.external, "Ev Idx": self.written}
        self.span("cpu_op", "record_param_comms", (PROCESS, BACKWARD), (posted + 0.5, 13.0), {**ids, **described})
        self.call("cudaLaunchKernelExC", LAUNCH, 5.0, BACKWARD)
        self.work("kernel", ALLREDUCE, NCCL, (ready, end - ready), {**KERNEL, **described})
        self.annotate("nccl:all_reduce", NCCL, (ready, end - ready))
        self.now += 7
        self.event += 1
        self.call("cudaEventRecord", RECORD, 1.1, BACKWARD)
        self.now += 2
        return self.correlation, self.event

    def annotate(self, name: str, stream: int, times: tuple[float, float]) -> None:
        """Project an annotation on the device."""
        self.span("gpu_user_annotation", name, (self.rank % 8, stream), times, {"External id": self.external})

    def join(self, recorded: tuple[int, int]) -> None:
        """Let the compute stream wait for the last all-reduce."""
        self.call("cudaStreamWaitEvent", WAIT, 1.3, FORWARD)
        self.synchronisation("Stream Wait Event", COMPUTE, (NCCL, *recorded))
        self.free[COMPUTE] = max(self.free[COMPUTE], self.free[NCCL])
        self.now += 2

    def end_step(self, step: int, start: float, first_work: float) -> None:
        """Wait for the device and annotate the step."""
        done = max(self.free.values())
        self.call("cudaDeviceSynchronize", SYNCHRONIZE, max(2.0, done - self.now + 2), FORWARD, launches=False)
        self.synchronisation("Context Sync", -1, (-1, -1, -1))
        self.now = max(self.now, done) + 3
        ids = {"External id": self.external, "Record function id": 0, "Ev Idx": self.written}
        self.span("user_annotation", f"ProfilerStep#{step}", (PROCESS, FORWARD), (start, self.now - start), ids)
        self.annotate(f"ProfilerStep#{step}", COMPUTE, (first_work, done - first_work))


def run_step(ranks: list[Rank], step: int, layers: int) -> None:
    """One step on all ranks: forward, backward with an all-reduce per layer, optimiser."""
    starts = [rank.now for rank in ranks]
    for rank in ranks:
        rank.copy_in()
    firsts = [rank.busy[COPY][-1][0] for rank in ranks]
    forward: dict[int, list[float]] = {rank.rank: [] for rank in ranks}
    for rank in ranks:
        for op in LAYER * layers:
            rank.sequence += 1
            forward[rank.rank].append(rank.now)
            rank.operator(op, FORWARD)
    recorded: list[tuple[int, int]] = []
    for _ in range(layers):
        for rank in ranks:
            for op in reversed(LAYER):
                rank.flow += 1
                rank.arrow("s", rank.flow, (PROCESS, FORWARD), forward[rank.rank].pop(), "fwdbwd")
                rank.arrow("f", rank.flow, (PROCESS, BACKWARD), rank.now, "fwdbwd")
                rank.operator(op.backward(), BACKWARD)
        ready = [rank.post_allreduce() for rank in ranks]
        end = max(ready) + 140 + ranks[0].random.uniform(0, 30)
        recorded = [rank.run_allreduce(at, end) for rank, at in zip(ranks, ready, strict=True)]
    for rank, start, first, last in zip(ranks, starts, firsts, recorded, strict=True):
        rank.join(last)
        for _ in range(8):
            rank.operator(OPTIMIZER, FORWARD)
        rank.end_step(step, start, first)


def header(rank: Rank) -> dict[str, Any]:
    """What the exporter writes before the events."""
    device = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84943110144, "numSms": 132}
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": rank.world, "ranks": list(range(rank.world))}
    distributed = {"backend": "nccl", "rank": rank.rank, "world_size": rank.world, "pg_count": 1, "pg_config": [group]}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": i, **device} for i in range(8)],
        "distributedInfo": distributed,
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 12080,
        "record_shapes": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }


def write(rank: Rank, path: Path) -> None:
    """Write one rank's trace."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header(rank), indent=2).removesuffix("\n}") + ',\n  "traceEvents": [\n')
        for section in (rank.host, rank.device):
            file.writelines(f"{event},\n" for event in section)
        file.write('  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", ')
        file.write(f'"ts": {rank.now:.3f}\n  }}\n  ],\n  "traceName": {json.dumps(path.name)}\n}}\n')


def exposed_us(rank: Rank) -> float:
    """Time of the NCCL stream during which the compute stream has nothing to do; neither overlaps with itself."""
    exposed, compute, i = 0.0, rank.busy[COMPUTE], 0
    for start, end in rank.busy[NCCL]:
        while i < len(compute) and compute[i][1] <= start:
            i += 1
        covered, at = 0.0, i
        while at < len(compute) and compute[at][0] < end:
            covered += min(compute[at][1], end) - max(compute[at][0], start)
            at += 1
        exposed += end - start - covered
    return exposed


def main() -> None:
    """Simulate until the first rank has written the events that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--events", type=float, default=1e5, help="events per rank, about")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--straggler", type=float, default=1.08, help="slowdown of the last rank's kernels")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = parser.parse_args()
    slow = [given.straggler if given.ranks > 1 and i == given.ranks - 1 else 1.0 for i in range(given.ranks)]
    ranks = [Rank(i, given.ranks, slow[i], random.Random(given.seed * 1000 + i)) for i in range(given.ranks)]  # noqa: S311
    step = 0
    while ranks[0].written < given.events:
        run_step(ranks, step, given.layers)
        step += 1
    given.out.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        write(rank, given.out / f"rank{rank.rank}.json")
    truth = [
        {
            "rank": rank.rank,
            "steps": step,
            "kernels": sum(map(len, rank.busy.values())),
            "exposed_us": round(exposed_us(rank), 3),
        }
        for rank in ranks
    ]
    (given.out / "truth.txt").write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
