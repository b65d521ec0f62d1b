"""Record small workloads on the device of this machine, and check what was recorded; see device_check.sh.

Each recording runs in processes of its own, so that one that fails does not end the others. Every capture is packed,
because few and small files travel best: `NAME.tar.gz`, beside `results.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from device_checks import CHECKS, Check, tiles

import traceflow
from traceflow.capture import read_manifest

PATIENCE_S = 90  # for one recording
ALTOGETHER_S = 340  # for all of them: what is checked ends within six minutes
_UNTIL_S = time.monotonic() + ALTOGETHER_S
STEPS = 3
PROGRAMS = Path(__file__).resolve().with_name("device_programs.py")
WORKLOADS = "traceflow.collectors.workloads"
CLI = "import sys; from traceflow.cli import main; sys.exit(main())"
SETTINGS = {
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",  # the workloads compare with a reference on the host
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def commands(folder: Path, platform: str) -> dict[str, list[str]]:
    """What to record: each leaves one or several captures in `folder/NAME`."""
    python, this = sys.executable, str(Path(__file__).resolve())
    one = ["--devices", "1", "--steps", f"{STEPS}", "--platform", platform, "--output"]
    run = [python, "-c", CLI, "run", "--steps", f"{STEPS}", "--output"]
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    product = {name: [python, f"{PROGRAMS}", name, platform, f"{folder / name / 'capture'}"] for name in CHECKS}
    return product | {
        "matmul": [python, "-m", f"{WORKLOADS}.collective_matmul", *one, f"{folder / 'matmul'}"],
        "moe-jax": [
            python,
            "-m",
            f"{WORKLOADS}.moe_jax",
            "--variants",
            "capacity",
            "ragged",
            *one,
            f"{folder / 'moe-jax'}",
        ],
        "moe-torch": [python, this, "moe-torch", platform, f"{folder / 'moe-torch'}"],
        "run-jax": [*run, f"{folder / 'run-jax'}", "--", python, this, "train-jax", platform],
        "run-torch": [*run, f"{folder / 'run-torch'}", "--", *torchrun, this, "train-torch", platform],
    }


def main(out: Path) -> int:
    """Record and check everything; the number of failures."""
    platform = "gpu" if shutil.which("nvidia-smi") and not subprocess.call(["nvidia-smi", "--list-gpus"]) else "cpu"
    say(
        f"device check on the {platform}"
        + ("" if platform == "gpu" else ": no GPU, so that only what a CPU can is checked")
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        results = [
            checked(name, command, folder, out, platform) for name, command in commands(folder, platform).items()
        ]
    (out / "results.json").write_text(json.dumps({"platform": platform, "recordings": results}, indent=1) + "\n")
    failures = sum(result["problem"] is not None for result in results)
    say(f"{len(results) - failures} of {len(results)} recordings are as they should be")
    return failures


def say(text: str) -> None:
    print(text, flush=True)


def checked(name: str, command: list[str], folder: Path, out: Path, platform: str) -> dict[str, Any]:
    """Record one workload, check its captures, and pack them."""
    began = time.monotonic()
    patience_s = min(PATIENCE_S, max(_UNTIL_S - began, 1))
    result: dict[str, Any] = {"name": name, "problem": None, "captures": []}
    environment = {**SETTINGS, **os.environ} | ({"JAX_PLATFORMS": "cpu"} if platform == "cpu" else {})
    try:
        subprocess.run(command, check=True, timeout=patience_s, env=environment, stdout=sys.stderr)
        result["captures"] = [figures(capture, platform) for capture in captures(folder / name)]
        result["checks"] = held(folder / name, CHECKS.get(name, ()))
    except (AssertionError, OSError, subprocess.SubprocessError, traceflow.TraceflowError) as error:
        result["problem"] = f"{type(error).__name__}: {error}"
    left = sorted(folder.glob(f"{name}*"))
    if left:
        with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
            for entry in left:
                archive.add(entry, entry.name)
        result["bytes"] = (out / f"{name}.tar.gz").stat().st_size
    result["seconds"] = round(time.monotonic() - began, 1)
    say(f"{name}: {json.dumps({key: value for key, value in result.items() if key != 'name'})}")
    return result


def captures(folder: Path) -> list[Path]:
    """The captures that a recording left, itself or those in it."""
    found = (
        [folder]
        if (folder / "manifest.json").exists()
        else sorted(path.parent for path in folder.glob("*/manifest.json"))
    )
    assert found, "no capture was left"
    return found


def figures(capture: Path, platform: str) -> dict[str, Any]:
    """What a capture says of itself, when it is complete, opens, has all its steps, and its paths tile."""
    manifest = read_manifest(capture)
    assert manifest is not None, "the capture has no manifest"
    assert manifest.complete, "the capture is not complete"
    run = traceflow.open(capture)
    steps = run.trace.marks.step.tolist()
    assert len(steps) == STEPS, f"{len(steps)} steps were recorded"
    tiles(run, {})
    path = run.critical_path(step=steps[-1])
    summary = run.summary()
    assert platform == "cpu" or summary.devices, "the trace has no device"
    assert platform == "cpu" or path.by_kind_ns.get("compute"), "nothing on the path was computed by the device"
    return {
        "name": capture.name,
        "frameworks": manifest.frameworks,
        "device": None if manifest.devices is None else manifest.devices.kind,
        "events": summary.event_count,
        "steps": steps,
        "makespan_ns": path.makespan_ns,
        "by_kind_ns": path.by_kind_ns,
        "notes": [str(note.code) for note in summary.notes],
    }


def held(folder: Path, checks: Sequence[Check]) -> dict[str, Any]:
    """What each check found; all are made, and what failed is told at once."""
    if not checks:
        return {}
    run, measured = traceflow.open(folder / "capture"), json.loads((folder / "told.json").read_text())
    found: dict[str, Any] = {}
    failed = []
    for check in checks:
        try:
            found[check.__name__] = check(run, measured)
        except (AssertionError, traceflow.TraceflowError) as error:
            found[check.__name__] = str(error)
            failed.append(f"{check.__name__}: {error}")
    say(f"{folder.name}: {json.dumps(found)}")
    assert not failed, "; ".join(failed)
    return found


def train_jax(platform: str) -> None:
    """A JAX program that knows nothing of traceflow and annotates its steps."""
    import jax

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for weight in weights:
                y = jax.numpy.tanh(y @ weight)
            return (y**2).mean()

        slopes = jax.grad(loss)(weights)
        return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, slopes)

    assert jax.default_backend() == platform
    keys = jax.random.split(jax.random.key(0), 5)
    weights = [jax.random.normal(key, (512, 512)) / 512 for key in keys[:4]]
    batch = jax.random.normal(keys[4], (256, 512))
    for number in range(8):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            weights = step(weights, batch)


def train_torch(platform: str) -> Generator[Any]:
    """A PyTorch program that knows nothing of traceflow: the step of a small mixture of experts; yields its losses."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", 0) if platform == "gpu" else torch.device("cpu")
    options = {"device_id": device} if platform == "gpu" else {}
    dist.init_process_group("nccl" if platform == "gpu" else "gloo", **options)
    torch.manual_seed(0)
    hidden, experts, tokens = 256, 4, 512
    router = torch.nn.Linear(hidden, experts, device=device)
    layers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(hidden, 512), torch.nn.SiLU(), torch.nn.Linear(512, hidden)).to(device)
        for _ in range(experts)
    )
    parameters = [*router.parameters(), *layers.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    batch = torch.randn(tokens, hidden, device=device)
    for _ in range(8):
        gates, chosen = router(batch).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        rows, sent = batch[order], torch.empty(tokens, hidden, device=device)
        dist.all_to_all_single(sent, rows)
        counts = torch.bincount(chosen, minlength=experts).tolist()
        outputs = torch.cat([layer(part) for layer, part in zip(layers, sent.split(counts), strict=True)])
        loss = ((outputs * gates[order, None] - rows) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in parameters:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        yield loss.detach()
    dist.destroy_process_group()


def moe_torch(platform: str, path: str) -> None:
    """The same program with its loop recorded by traceflow."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    losses = train_torch(platform)
    with traceflow.record(path, framework="torch", warmup=2, steps=STEPS) as recorder:
        for _ in range(2 + STEPS):
            with recorder.step() as step:
                step.fetch(next(losses))
    losses.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["train-jax", platform]:
            train_jax(platform)
        case ["train-torch", platform]:
            sys.stdout.write(f"{[round(float(loss), 4) for loss in train_torch(platform)]}\n")
        case ["moe-torch", platform, path]:
            moe_torch(platform, path)
        case [out]:
            sys.exit(main(Path(out)))
