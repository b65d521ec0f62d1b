"""Watches a step of a PyTorch program: what is laid out anew, by which collectives, where, and why."""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from traceflow.collectors.collector import FAILURES, reason
from traceflow.collectors.torch_collectives import operation, sent
from traceflow.collectors.torch_flow import Flow, storage_of
from traceflow.collectors.torch_modules import Modules
from traceflow.collectors.torch_values import fingerprint
from traceflow.program.torch_audit import CollectiveCall, Place, Placements, Redistribution, Return, TorchMesh, Value

if TYPE_CHECKING:
    import torch


@dataclass
class _Running:
    """A redistribution under way."""

    number: int  # of the event
    makes_whole: bool
    local: Any = None  # storage of what this process puts in, once it is known


class Watch:
    """What a step does with distributed tensors. What fails in here is told in `missing`; the program goes on.

    Args:
        modules: Which module runs.
        parameters: Names of the parameters by their storage.
    """

    def __init__(self, modules: Modules, parameters: Mapping[Any, str]) -> None:
        self._modules, self._parameters = modules, parameters
        self._operator: tuple[str, tuple[Placements, ...]] = "", ()
        self._running: list[_Running] = []
        self._events: list[Redistribution] = []
        self._collectives: list[tuple[CollectiveCall, int | None]] = []
        self._cuts: list[tuple[int, int]] = []
        self._compared: set[Any] = set()
        self._flow = Flow()
        self.values: list[Value] = []
        self.meshes: dict[TorchMesh, None] = {}  # those that others are parts of
        self.missing: list[str] = []

    @contextmanager
    def survive(self) -> Generator[None]:
        """Do a piece of our own work."""
        try:
            yield
        except FAILURES as error:
            said = f"a part of the step: {reason(error)}"
            self.missing += [] if said in self.missing else [said]

    def operator(self, operator: Any, arguments: Sequence[object]) -> None:
        """An operator of distributed tensors begins; it will run as operators of plain ones."""
        from torch.distributed.tensor import DTensor

        operands = [(i, one) for i, one in enumerate(arguments) if isinstance(one, DTensor)]
        self._operator = str(operator), tuple(_placements(one._spec) for _, one in operands)  # noqa: SLF001
        for number, one in operands:
            self._compare(number, one._local_tensor, one._spec)  # noqa: SLF001  # the public ones enter the graph

    def executed(self, operator: Any, arguments: Sequence[Any], inputs: Any, outputs: Any) -> None:
        """An operator of plain tensors has run."""
        running = self._running[-1] if self._running else None
        if (kind := operation(operator)) is not None:
            group, sent_bytes = sent(operator, arguments)
            place = self._events[running.number].place if running else self._place()
            call = CollectiveCall(place=place, operation=kind, group=group, sent_bytes=sent_bytes)
            self._collectives.append((call, running.number if running else None))
        if running is None:
            self._flow.follow(operator, inputs, outputs)
        elif running.makes_whole:
            fresh = [one for one in outputs if storage_of(one) != running.local]
            self._flow.put(fresh, frozenset({running.number}))

    @contextmanager
    def redistributing(self, what: Any, before: Any, after: Any, caller: FrameType) -> Generator[None]:
        """A tensor is laid out anew: at first the decision for an operator's argument, if any, then its execution.

        Args:
            what: Number of the argument, or the local tensor.
            before: A spec with the former, placements with the latter.
            after: The same.
            caller: The function that does it, for what PyTorch does not pass on.
        """
        begun = False
        with self.survive():
            if isinstance(what, int):
                begun = self._begin(before, after, implicit=True)
            else:
                lay, lie = caller.f_locals["current_spec"], caller.f_locals["target_spec"]
                begun = not self._running and self._begin(lay, lie, implicit=False)
                self._take_in(what, lay)
        try:
            yield
        finally:
            if begun:
                self._running.pop()

    def _begin(self, before: Any, after: Any, *, implicit: bool) -> bool:
        """Whether anything changes."""
        lay, lie = _placements(before), _placements(after)
        if lay == lie:
            return False
        self.meshes[root_of(before.mesh)] = None
        operator, beside = self._operator if implicit else ("", ())
        event = Redistribution(
            place=self._place(operator),
            implicit=implicit,
            shape=tuple(before.shape),
            dtype=str(before.tensor_meta.dtype).removeprefix("torch."),
            mesh=mesh_of(before.mesh),
            before=lay,
            after=lie,
            beside=beside,
        )
        self._running.append(_Running(len(self._events), _makes_whole(lay, lie)))
        self._events.append(event)
        return True

    def _take_in(self, local: torch.Tensor, spec: Any) -> None:
        """What this process puts into the redistribution under way, if there is one."""
        if not self._running:
            return
        running = self._running[-1]
        event, running.local = self._events[running.number], storage_of(local)
        if running.local in self._parameters:
            self._events[running.number] = replace(event, parameter=self._parameters[running.local])
        origins = self._flow.of([local])
        if _cuts(event.before, event.after):
            self._cuts += [(origin, running.number) for origin in origins]
        else:
            self._flow.needed |= origins
        if not event.implicit:
            self._compare(0, local, spec)

    def _compare(self, argument: int, local: Any, spec: Any) -> None:
        """Keep what tells whether ranks hold alike what they claim to, once for each tensor of the forward pass."""
        lie, mesh = _placements(spec), mesh_of(spec.mesh)
        claimed = any(one == "R" and size > 1 for one, size in zip(lie, mesh.sizes, strict=True))
        key = storage_of(local)
        place = self._place(self._operator[0])
        if not claimed or place.backward or key in self._compared or key in self._parameters:
            return
        self._compared.add(key)
        said = fingerprint(local)
        value = Value(
            place=place,
            argument=argument,
            mesh=mesh,
            placements=lie,
            shape=tuple(spec.shape),
            digest=said.digest,
            projections=said.projections,
            norm=said.norm,
            precision=said.precision,
        )
        self.values.append(value)

    def _place(self, operator: str = "") -> Place:
        module, backward = self._modules.now()
        return Place(module, operator, _source(), backward)

    def redistributions(self) -> tuple[Redistribution, ...]:
        """What was laid out anew, equal ones as one."""
        counts = Counter(self._events)
        return tuple(replace(one, count=count) for one, count in counts.items())

    def collectives(self) -> tuple[CollectiveCall, ...]:
        """The collectives, equal ones as one."""
        numbers = self._numbers()
        counts = Counter((call, None if at is None else numbers[at]) for call, at in self._collectives)
        return tuple(replace(call, redistribution=at, count=count) for (call, at), count in counts.items())

    def returns(self) -> tuple[Return, ...]:
        """What was made whole only to be cut again."""
        numbers = self._numbers()
        vain = [(numbers[whole], numbers[cut]) for whole, cut in self._cuts if whole not in self._flow.needed]
        return tuple(Return(whole, cut, count) for (whole, cut), count in Counter(vain).items())

    def _numbers(self) -> list[int]:
        """The number of each event among those that differ."""
        first = {event: number for number, event in enumerate(dict.fromkeys(self._events))}
        return [first[event] for event in self._events]


@cache
def mode_class() -> Any:
    """The class of the mode that tells a `Watch` what happens; PyTorch finds it where it looks for a `DebugMode`."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils import _pytree as pytree
    from torch.utils._debug_mode import DebugMode

    class Mode(DebugMode):  # type: ignore[misc]  # PyTorch is not looked into
        """Passes everything on as it is."""

        def __init__(self, watch: Watch) -> None:
            super().__init__(record_output=False)
            self._watch = watch

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = kwargs or {}
            if any(issubclass(kind, DTensor) for kind in types):
                with self._watch.survive():
                    self._watch.operator(func, pytree.tree_leaves((args, named)))
                return NotImplemented
            result = func(*args, **named)
            with self._watch.survive():
                if hasattr(func, "overloadpacket"):
                    self._watch.executed(func, args, _tensors((args, named)), _tensors(result))
            return result

        def record_redistribute_calls(self, arg: Any, src: Any, dst: Any, *_: Any, **__: Any) -> Any:
            return self._watch.redistributing(arg, src, dst, sys._getframe(1))  # noqa: SLF001

        def record_output_placements(self, output_spec: Any) -> None:
            """Follows from the rest."""

    def _tensors(tree: Any) -> list[torch.Tensor]:
        return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

    return Mode


def watching(watch: Watch) -> AbstractContextManager[object]:
    """Tell a watch what happens inside; where this PyTorch has no way to, the watch says so."""
    with suppress(*FAILURES):
        mode: AbstractContextManager[object] = mode_class()(watch)
        return mode
    watch.missing.append("redistributions: this version of PyTorch does not tell them")
    return nullcontext()


def mesh_of(mesh: Any) -> TorchMesh:
    """A device mesh; its axes are numbered where they have no names."""
    names = mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(mesh.ndim))
    return TorchMesh(tuple(names), tuple(mesh.shape), tuple(mesh.mesh.reshape(-1).tolist()))


def root_of(mesh: Any) -> TorchMesh:
    """The mesh that a device mesh is a part of, or itself."""
    root = getattr(mesh, "_get_root_mesh", None)  # nothing public tells
    return mesh_of(mesh if root is None else root())


def _placements(spec: Any) -> Placements:
    return tuple(placement_text(one, len(spec.shape)) for one in spec.placements)


def placement_text(placement: Any, rank: int) -> str:
    """A placement, briefly; dimensions count from the first."""
    if placement.is_replicate():
        return "R"
    dimension = getattr(placement, "dim", None)
    if dimension is None:
        return f"P({placement.reduce_op})"
    dimension = dimension % rank if rank else dimension
    factor = getattr(placement, "split_factor", None)
    return f"S({dimension})" if factor is None else f"_S({dimension}, {factor})"


def _makes_whole(before: Placements, after: Placements) -> bool:
    """Whether every change is from parts, or partial sums, to the whole."""
    changes = [(lay, lie) for lay, lie in zip(before, after, strict=True) if lay != lie]
    return bool(changes) and all(lay != "R" and lie == "R" for lay, lie in changes)


def _cuts(before: Placements, after: Placements) -> bool:
    """Whether every change is from the whole to parts."""
    changes = [(lay, lie) for lay, lie in zip(before, after, strict=True) if lay != lie]
    return bool(changes) and all(lay == "R" and "S(" in lie for lay, lie in changes)


def _source() -> str:
    """The line of the program's own code that is being executed, as file:line; "" where there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # a traceback of all of them is slow
    while frame is not None and _foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@cache
def _foreign(file: str) -> bool:
    """Whether a file is of PyTorch, of Python, or one that watches."""
    import torch

    paths = sysconfig.get_paths()
    library = file.startswith(paths["stdlib"]) and not file.startswith(paths["purelib"])
    return file == __file__ or file.startswith(("<", torch.__path__[0])) or library
