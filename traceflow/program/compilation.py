"""The stages of one compilation: a program as written, with shardings everywhere, divided among devices, and compiled.

XLA dumps a module at each stage where it is asked to (`--xla_dump_to`, `--xla_dump_hlo_pass_re=spmd|shard`), in
files such as `module_0007.jit_step.0001.spmd-partitioner.after_shardy-xla.before_spmd-partitioning.hlo.pb`. The
numbers of passes change from version to version; their names tell the stages apart. A capture has the first and the
last stage of each instrumented function, as `step.before_optimizations.hlo.pb` and `step.hlo.pb`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from traceflow.program.dump import read_program, same_program

if TYPE_CHECKING:
    from traceflow.program.module import HloModule, Programs

_MODULE = re.compile(r"([^/]+?)(?:\.\d{4}\.|\.before_|\.(?:sm_[\d.]+_)?\w*after_|\.hlo\.pb)")


class Stage(StrEnum):
    """How far a program has come."""

    WRITTEN = "written"  # whole arrays, the user's axes, shardings where the author states them
    PROPAGATED = "propagated"  # whole arrays, a sharding on every instruction
    PARTITIONED = "partitioned"  # what one device holds; the collectives that this takes
    COMPILED = "compiled"  # what runs


# Endings of names, the best evidence of a stage first.
_ENDINGS = {
    Stage.WRITTEN: (r"before_shardy-xla", r"before_optimizations"),
    Stage.PROPAGATED: (r"after_shardy-xla\.before_spmd-partitioning", r"before_spmd-partitioning"),
    Stage.PARTITIONED: (r"after_spmd-partitioning[\w.-]*",),
    Stage.COMPILED: (r"after_optimizations", r"^(?!.*\.(?:before|\w*after)_).+"),
}
_STAGES = [
    (stage, rank, re.compile(rf"{ending}\.hlo\.pb(\.xz|\.gz)?$"))
    for stage, endings in _ENDINGS.items()
    for rank, ending in enumerate(endings)
]


@dataclass(frozen=True, slots=True)
class Compilation:
    """One program at the stages of its compilation, None where a stage was not kept."""

    name: str
    written: HloModule | None = None
    propagated: HloModule | None = None
    partitioned: HloModule | None = None
    compiled: HloModule | None = None
    warnings: tuple[str, ...] = ()  # lines that the compiler printed


def staged(names: list[str]) -> dict[str, dict[Stage, str]]:
    """Which of the files of a dump are the stages of which compilation.

    Args:
        names: Names of files; those of no stage are passed over.

    Returns:
        The name of the best file of each stage, by module such as ``module_0007.jit_step``.

    Example:
        >>> staged(["module_0007.jit_f.before_optimizations.hlo.pb", "module_0007.jit_f.debug_options"])
        {'module_0007.jit_f': {<Stage.WRITTEN: 'written'>: 'module_0007.jit_f.before_optimizations.hlo.pb'}}
    """
    best: dict[str, dict[Stage, tuple[int, str]]] = {}
    for name in sorted(names):
        module = _MODULE.match(name)
        for stage, rank, ending in _STAGES:
            if module and ending.search(name):
                stages = best.setdefault(module[1], {})
                stages[stage] = min(stages.get(stage, (rank, name)), (rank, name))
    return {module: {stage: name for stage, (_, name) in stages.items()} for module, stages in best.items()}


def compilations_of(files: Iterable[Path], programs: Programs) -> tuple[Compilation, ...]:
    """The programs of a run, at whatever stages are there.

    Args:
        files: Of a dump, or of a capture.
        programs: The last stages that are known already, by key.

    Returns:
        A compilation for each program, first those with stages before the last. The last stage of each is that of
        `programs` where it is one of them by content, so that its number is the one that a trace uses.

    Raises:
        TraceflowError: TF102 to TF105 where a stage cannot be read.
    """
    staged_ones = list(_read(files, programs))
    taken = {id(one.compiled) for one in staged_ones}
    plain = (Compilation(module.name, compiled=module) for module in programs.values() if id(module) not in taken)
    return (*staged_ones, *plain)


def _read(files: Iterable[Path], programs: Programs) -> Iterator[Compilation]:
    """Compilations of which more than the last stage is there, each once, whoever wrote it.

    What a dump tells of a program is more than what an instrumented function does, which says the same otherwise.
    """
    folders: dict[Path, list[str]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(file.name)
    found = [
        _read_stages(re.sub(r"^module_\d+\.", "", module), folder, stages, programs)
        for folder, names in sorted(folders.items())
        for module, stages in staged(names).items()
        if set(stages) - {Stage.COMPILED}
    ]
    best: dict[int, Compilation] = {}
    for one in found:
        known = best.setdefault(id(one.compiled or one), one)
        if known.propagated is None and one.propagated is not None:
            best[id(one.compiled)] = one
    return iter(best.values())


def _read_stages(name: str, folder: Path, stages: Mapping[Stage, str], programs: Programs) -> Compilation:
    modules = {stage.value: read_program(folder / file) for stage, file in stages.items()}
    last = modules.get(Stage.COMPILED.value)
    if last is not None:
        equal = (module for module in programs.values() if same_program(module, last))
        modules[Stage.COMPILED.value] = next(equal, last)
    return _compilation(name, modules)


def compilation(name: str, contents: Mapping[Stage, bytes], warnings: tuple[str, ...] = ()) -> Compilation:
    """Read the stages of one compilation.

    Args:
        name: Of the program.
        contents: A serialised `HloProto` by stage.
        warnings: Lines that the compiler printed.

    Raises:
        TraceflowError: TF103 where a stage cannot be read.
    """
    from traceflow.program.hlo_proto import read_hlo_proto

    modules = {stage.value: read_hlo_proto(content) for stage, content in contents.items()}
    return _compilation(name, modules, warnings)


def _compilation(name: str, modules: Mapping[str, HloModule], warnings: tuple[str, ...] = ()) -> Compilation:
    written, propagated, partitioned, compiled = (modules.get(stage.value) for stage in Stage)
    return Compilation(name, written, propagated, partitioned, compiled, warnings)
