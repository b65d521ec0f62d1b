"""Functions over arrays as machine code that is compiled once and kept, so that running them loads no compiler.

A kernel is a function of arrays and whole numbers that allocates nothing and raises nothing: it fills arrays that it
is given. numba compiles it when it is first called with arguments of some types. What numba made is kept as an object
file, and every later process loads that alone: importing numba takes longer than reading most traces does.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from operator import index
from pathlib import Path
from threading import RLock
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from traceflow.user_cache import forget_unused, open_own, user_cache, write_whole

_Types: TypeAlias = tuple[tuple[str, int], ...]
"""Per argument of a call, the letter of its type and its number of dimensions, 0 for a number."""

_DIGEST_BYTES, _KEY_LENGTH = 32, 24
_ELSEWHERE = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What other versions of numba and llvmlite, and other machines, have in place of the machine code of a kernel."""

_loading = RLock()  # of several threads that call a kernel first, one compiles it


class Compiled:
    """A kernel, or a function that kernels call. Arguments that are not contiguous are copied: fill no such array."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Any = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._loaded: dict[_Types, Callable[..., Any] | None] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code for arguments of these types."""
        kinds: list[tuple[str, int]] = []
        flat: list[int] = []
        held = []  # copies have to live as long as the call
        for one in arguments:
            if isinstance(one, np.ndarray):
                array = one if one.flags.c_contiguous else np.ascontiguousarray(one)
                held.append(array)
                kinds.append((array.dtype.char, array.ndim))
                flat.append(array.__array_interface__["data"][0])
                flat.extend(array.shape)
            else:
                is_bool = isinstance(one, bool | np.bool_)
                kinds.append(("?" if is_bool else "l", 0))
                flat.append(bool(one) if is_bool else index(one))  # a fraction would be cut without a word
        types = tuple(kinds)
        if types not in self._loaded:
            with _loading:
                if types not in self._loaded:
                    self._loaded[types] = _load(self, types)
        code = self._loaded[types]
        return code(*flat) if code is not None else self.dispatcher(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba takes it, with all that it calls."""
        from numba import njit

        known = {**self.function.__globals__, **_as_numba_takes(self.function.__globals__, self.function.__code__)}
        plain = FunctionType(self.function.__code__, known, self.__name__)
        plain.__annotations__ = self.function.__annotations__
        return njit(error_model="numpy", forceinline=True)(plain)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the code, with that of all functions it calls, and with the constants that they use."""
        content = hashlib.sha256("".join(_spelled(self.function.__code__)).encode())
        for name, value in sorted(_named(self.function.__globals__, self.function.__code__)):
            if value is not self:  # as where it uses a method of its own name
                content.update(_constant(name, value))
        return content.hexdigest()


class Intrinsic(Compiled):
    """A single instruction of the processor that numba has no word for.

    Args:
        function: Takes numba's module of types and llvmlite's of instructions; returns the result's type, those of the
            arguments, and what builds the instruction.
    """

    @cached_property
    def dispatcher(self) -> Any:
        """The instruction as numba takes it."""
        from inspect import Parameter, Signature

        from llvmlite import ir
        from numba import types
        from numba.extending import intrinsic

        result, arguments, build = self.function(types, ir)

        def typed(_typing: Any, *_given: Any) -> Any:
            return result(*arguments), build

        named = (Parameter(f"a{place}", Parameter.POSITIONAL_OR_KEYWORD) for place in range(1 + len(arguments)))
        typed.__signature__ = Signature(list(named))  # type: ignore[attr-defined]
        return intrinsic(typed)


def _named(known: Mapping[str, Any], code: CodeType) -> Iterator[tuple[str, Any]]:
    """What the names in some code stand for, those that follow the name of a module included."""
    for name in _names(code) & known.keys():
        yield name, known[name]
        if isinstance(known[name], ModuleType):
            yield from ((f"{name}.{inner}", value) for inner, value in _named(vars(known[name]), code))


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _as_numba_takes(known: Mapping[str, Any], code: CodeType) -> dict[str, Any]:
    """The functions among the names in some code that numba has to compile, too, and the modules that hold such."""
    taken: dict[str, Any] = {}
    for name in set(code.co_names) & known.keys():
        if isinstance(one := known[name], Compiled):
            taken[name] = one.dispatcher
        elif isinstance(one, ModuleType) and (inner := _as_numba_takes(vars(one), code)):
            taken[name] = ModuleType(one.__name__)
            vars(taken[name]).update(vars(one) | inner)
    return taken


def _spelled(code: CodeType) -> Iterator[str]:
    yield from (code.co_code.hex(), repr(code.co_names), repr(code.co_varnames))
    for constant in code.co_consts:
        yield from _spelled(constant) if isinstance(constant, CodeType) else (repr(constant),)


def _constant(name: str, value: object) -> bytes:
    if isinstance(value, Compiled):
        return f"{name} {value.fingerprint}".encode()
    if isinstance(value, np.ndarray):
        return f"{name} {value.dtype} {value.shape}".encode() + value.tobytes()
    return f"{name} {value!r}".encode() if isinstance(value, int | float | np.generic) else name.encode()


def _load(kernel: Compiled, types: _Types) -> Callable[..., Any] | None:
    """The machine code for such arguments: what was kept, or else compiled now and kept.

    None where numba is to call the kernel itself: it is told not to compile, or is of a version or on a machine where
    its machine code cannot be taken out.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    with suppress(*_ELSEWHERE):
        return _kept_or_made(kernel, types)
    return None


def _kept_or_made(kernel: Compiled, types: _Types) -> Callable[..., Any]:
    name = f"{kernel.__name__}-{_key(kernel, types)}.kernel"
    for folder in _folders():
        with suppress(OSError):
            with open_own(folder / name) as file:  # it is run
                content = file.read()
            if hashlib.sha256(content[_DIGEST_BYTES:]).digest() == content[:_DIGEST_BYTES]:
                return _linked(content[_DIGEST_BYTES:], types)
    content = _made(kernel, types)
    for folder in _folders():
        with suppress(OSError):
            write_whole(folder / name, lambda file: file.write(hashlib.sha256(content).digest() + content))
            forget_unused(folder, f"*-{'[0-9a-f]' * _KEY_LENGTH}.kernel")  # of other releases and processors
            break
    return _linked(content, types)


def _folders() -> Iterator[Path]:
    """Where machine code is kept: beside that of Python, or the user's own where that may not be written."""
    yield Path(__file__).parent / "__pycache__"
    if (own := user_cache()) is not None:
        yield own / "kernels"


def _key(kernel: Compiled, types: _Types) -> str:
    spelled = json.dumps([kernel.fingerprint, types, *_here()])
    return hashlib.sha256(spelled.encode()).hexdigest()[:_KEY_LENGTH]


@cache
def _here() -> tuple[str, ...]:
    """What else the machine code depends on: how it is made and called, Python, the compiler and the processor."""
    from llvmlite import binding

    compiler = find_spec("numba")
    version = Path(compiler.origin).with_name("_version.py").stat() if compiler and compiler.origin else None
    stamp = f"{version.st_size} {version.st_mtime_ns}" if version else ""
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return own, sys.version, stamp, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def _made(kernel: Compiled, types: _Types) -> bytes:
    """Compile: the names of what the code refers to and its own, and behind them the object file."""
    from llvmlite import binding
    from numba import cfunc
    from numba import types as t

    scalars = {"l": t.int64, "?": t.boolean}
    signature: list[Any] = []
    for letter, dimensions in types:
        signature += [t.voidptr, *[t.int64] * dimensions] if dimensions else [scalars[letter]]
    returns = t.void if kernel.function.__annotations__["return"] in {None, "None"} else t.int64
    made: Any = cfunc(returns(*signature))(_adapter(kernel, types))
    module = made._library._final_module  # noqa: SLF001  # there is no public way to what was compiled
    outside = [one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")]
    names = json.dumps({"name": made.native_name, "outside": outside}).encode()
    return names + b"\n" + bytes(_machine(binding, 3).emit_object(module))


def _adapter(kernel: Compiled, types: _Types) -> Callable[..., Any]:
    """A function of addresses and extents that calls the kernel with arrays."""
    from numba import carray  # type: ignore[attr-defined]

    names, given = [], []
    known: dict[str, Any] = {"carray": carray, "kernel": kernel.dispatcher}
    for place, (letter, dimensions) in enumerate(types):
        extents = [f"a{place}_{axis}" for axis in range(dimensions)]
        names += [f"a{place}", *extents]
        known[f"t{place}"] = np.dtype(letter).type
        given.append(f"carray(a{place}, ({', '.join(extents)},), t{place})" if dimensions else f"a{place}")
    exec(f"def adapter({', '.join(names)}):\n    return kernel({', '.join(given)})", known)  # noqa: S102  # names of our own
    return known["adapter"]  # type: ignore[no-any-return]


_engines: list[Any] = []  # machine code lives as long as what loaded it


def _linked(content: bytes, types: _Types) -> Callable[..., Any]:
    """Load machine code into this process."""
    from llvmlite import binding

    head, _, code = content.partition(b"\n")
    said = json.loads(head)
    missing = [name for name in said["outside"] if not binding.address_of_symbol(name)]
    stubs = binding.parse_assembly(_never_called(missing))
    engine = binding.create_mcjit_compiler(stubs, _machine(binding, 0))  # compiling these well would take far longer
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    takes: list[Any] = []
    for letter, dimensions in types:
        takes += [ctypes.c_void_p, *[ctypes.c_int64] * dimensions] if dimensions else [_SCALARS[letter]]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *takes)(engine.get_function_address(said["name"]))


_SCALARS = {"l": ctypes.c_int64, "?": ctypes.c_bool}


@cache
def _machine(binding: Any, effort: int) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    here = {"cpu": binding.get_host_cpu_name(), "features": binding.get_host_cpu_features().flatten()}
    return binding.Target.from_default_triple().create_target_machine(
        opt=effort, jit=True, codemodel="jitdefault", **here
    )


def _never_called(names: Iterable[str]) -> str:
    """Functions under names that numba's code refers to, in LLVM's language; whoever calls one ends the process.

    They serve exceptions and allocation, and a kernel has neither. They are known to this code alone: numba finds its
    own under the same names.
    """
    bodies = (f'define void @"{name}"() {{ call void @llvm.trap() ret void }}' for name in names)
    return "\n".join(("declare void @llvm.trap()", *bodies))
