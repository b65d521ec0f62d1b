"""The options that all workloads have as scripts."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any, TypeVar

Shape = TypeVar("Shape")

JAX_PLATFORMS = ("cpu", "gpu", "tpu")


def parser(description: str, *, output: str, steps: int, platforms: Iterable[str]) -> ArgumentParser:
    """A parser that knows where to record, how many steps, on what, and whether to replace.

    Args:
        description: What the script does.
        output: What it makes in `--output`.
        steps: Recorded steps where none are asked for.
        platforms: The choice; the first is usual.
    """
    first, *more = platforms
    parser = ArgumentParser(description=description)
    parser.add_argument("--output", metavar="DIR", required=True, help=f"folder of {output}")
    parser.add_argument("--steps", type=int, default=steps, help="recorded steps, after the warm-up")
    parser.add_argument("--platform", choices=(first, *more), default=first, help="what to compute on")
    parser.add_argument("--force", action="store_true", help="replace what was recorded there")
    return parser


def add_shape(parser: ArgumentParser, shape: type[Any], **helps: str) -> None:
    """Add an option for each field of a dataclass of numbers, which has defaults for all of them."""
    for field in fields(shape):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=_number(field), default=field.default, help=helps.get(field.name))


def _number(field: Field[Any]) -> type:
    return float if field.default is None else type(field.default)


def take_shape(given: dict[str, Any], shape: type[Shape]) -> Shape:
    """Take the values of these options out of those that were given."""
    return shape(**{field.name: given.pop(field.name) for field in fields(shape)})  # type: ignore[arg-type]
