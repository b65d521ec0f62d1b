"""Expressions over named quantities: parsed by hand, so that nothing can be run, and every mistake has its place.

comparison = sum ("<" | "<=" | ">" | ">=" | "==" | "!=") sum
sum        = product (("+" | "-") product)*
product    = factor (("*" | "/") factor)*
factor     = ["-"] (number [unit] | name | function "(" name ")" | "(" sum ")")
function   = "max" | "min" | "mean" | "median" | "sum"
unit       = ns us ms s | B kB MB GB TB KiB MiB GiB TiB | %
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from traceflow.errors import TraceflowError

FUNCTIONS = ("max", "min", "mean", "median", "sum")
"""What makes one value of several."""

_UNITS: dict[str, tuple[float, str]] = {
    **{name: (1000**power, "time") for power, name in enumerate(("ns", "us", "ms", "s"))},
    **{f"{prefix}B": (1000**power, "size") for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": (1024**power, "size") for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
    "%": (0.01, "number"),
}
_SUFFIXES = {"_ns": "time", "_bytes": "size", "_share": "number", "_ratio": "number"}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?:\s*(?P<unit>%|[A-Za-z]+))?"
    r"|(?P<name>[A-Za-z_]\w*(?:\.\w+)*)|(?P<sign>[<>=!]=|[<>=]|[-+*/()]))"
)
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_DEEPEST = 20  # parentheses
_LONGEST = 600  # names, numbers and signs: a chain of operations is walked as deep as it is long


class ExpressionError(TraceflowError):
    """A mistake in an expression: TF112, with the place of it.

    Args:
        text: The expression.
        at: Where in it the mistake is.
        why: What is wrong there.
        hint: What would be right.
    """

    def __init__(self, text: str, at: int, why: str, hint: str) -> None:
        super().__init__("TF112", f"cannot understand {text!r} at character {at + 1}", why, hint)
        self.text, self.at = text, at

    @property
    def pointer(self) -> str:
        """The expression with a caret below the mistake, on two lines."""
        return f"{self.text}\n{' ' * self.at}^"


@dataclass(frozen=True, slots=True)
class Number:
    """A number, in ns or bytes where it has a unit."""

    value: float
    dimension: str | None  # None: it has no unit and fits everything
    at: int


@dataclass(frozen=True, slots=True)
class Quantity:
    """A name, perhaps within a function."""

    name: str
    function: str | None
    at: int

    def __str__(self) -> str:
        return f"{self.function}({self.name})" if self.function else self.name


@dataclass(frozen=True, slots=True)
class Operation:
    """Two operands with +, -, * or / between them."""

    sign: str
    left: Node
    right: Node
    at: int


Node: TypeAlias = Number | Quantity | Operation


@dataclass(frozen=True, slots=True)
class Comparison:
    """A whole expression."""

    text: str
    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Span:
    """All values between two: what is known of a quantity that varies; of one that does not, both are the same."""

    low: float
    high: float

    @classmethod
    def of(cls, value: float) -> Span:
        """A single value."""
        return cls(value, value)


def parsed(text: str) -> Comparison:
    """Read an expression.

    Raises:
        ExpressionError: With the place of the first mistake.

    Example:
        >>> parsed("step_ns < 5 ms").right
        Number(value=5000000, dimension='time', at=10)
        >>> try:
        ...     parsed("exposed_share << 0.1")
        ... except ExpressionError as error:
        ...     print(error.pointer)
        exposed_share << 0.1
                       ^
    """
    return _Parser(text).comparison()


def quantities(node: Node | Comparison) -> tuple[Quantity, ...]:
    """The names of an expression, from left to right."""
    if isinstance(node, Quantity):
        return (node,)
    if isinstance(node, Number):
        return ()
    return (*quantities(node.left), *quantities(node.right))


def value_of(node: Node, known: Callable[[Quantity], Span | None]) -> Span | None:
    """The values that a side of an expression can have.

    Args:
        node: The side.
        known: What is known of a quantity; None where nothing is.

    Returns:
        None where a quantity is not known, or where something is divided by what may be zero.
    """
    if isinstance(node, Number):
        return Span.of(node.value)
    if isinstance(node, Quantity):
        return known(node)
    left, right = value_of(node.left, known), value_of(node.right, known)
    return None if left is None or right is None else _combined(node.sign, left, right)


def holds(sign: str, left: Span | None, right: Span | None) -> bool | None:
    """Whether a comparison is true of all values of two sides; False where it is true of none, else None.

    Example:
        >>> holds("<", Span(1, 2), Span(3, 4)), holds("<", Span(1, 3), Span(2, 4)), holds("<", Span(4, 4), Span(4, 4))
        (True, None, False)
    """
    if left is None or right is None:
        return None
    match sign:
        case "<":
            return _all_or_none(all_=left.high < right.low, none=left.low >= right.high)
        case "<=":
            return _all_or_none(all_=left.high <= right.low, none=left.low > right.high)
        case ">" | ">=":
            return holds(sign.replace(">", "<"), right, left)
        case "==":
            apart = left.high < right.low or right.high < left.low
            return _all_or_none(all_=left.low == left.high == right.low == right.high, none=apart)
        case _:
            equal = holds("==", left, right)
            return None if equal is None else not equal


def dimension_of(name: str) -> str | None:
    """What a quantity is measured in, by the ending of any part of its name; None where that does not tell.

    Example:
        >>> dimension_of("critical_path.by_kind_ns.compute"), dimension_of("rounds")
        ('time', None)
    """
    endings = (_SUFFIXES[end] for part in name.split(".") for end in _SUFFIXES if part.endswith(end))
    return next(endings, None)


def _all_or_none(*, all_: bool, none: bool) -> bool | None:
    return True if all_ else False if none else None


def _combined(sign: str, left: Span, right: Span) -> Span | None:
    if sign == "/" and right.low <= 0 <= right.high:
        return None
    operate: Callable[[float, float], float] = {
        "+": lambda x, y: x + y,
        "-": lambda x, y: x - y,
        "*": lambda x, y: x * y,
        "/": lambda x, y: x / y,
    }[sign]
    corners = [operate(x, y) for x in (left.low, left.high) for y in (right.low, right.high)]
    return Span(min(corners), max(corners)) if all(map(math.isfinite, corners)) else None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, name, sign, end
    text: str
    unit: str | None
    at: int


class _Parser:
    """Descends the grammar, one method per rule."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def comparison(self) -> Comparison:
        left = self._sum()
        sign = self._next
        if sign.text not in _COMPARISONS:
            hint = "equality is ==" if sign.text == "=" else f"compare with one of {' '.join(_COMPARISONS)}"
            raise self._mistake(sign.at, "there is no comparison here", hint)
        self._at += 1
        right = self._sum()
        if self._next.kind != "end":
            raise self._mistake(self._next.at, f"{self._next.text!r} is too much", "an expression is one comparison")
        self._same_dimension(left, right, sign.at)
        return Comparison(self._text, sign.text, left, right)

    def _split(self) -> list[_Token]:
        tokens, at = [], 0
        end = len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                place = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                raise self._mistake(
                    place, f"{self._text[place]!r} means nothing here", "use names, numbers, + - * / and ( )"
                )
            kind = str(found.lastgroup) if found.lastgroup != "unit" else "number"
            tokens.append(_Token(kind, found[kind], found["unit"], found.start(kind)))
            if (unit := found["unit"]) is not None and unit not in _UNITS:
                raise self._mistake(found.start("unit"), f"there is no unit {unit}", f"units are {' '.join(_UNITS)}")
            at = found.end()
            if len(tokens) > _LONGEST:
                raise self._mistake(at, "it is too long", f"use at most {_LONGEST} names, numbers and signs")
        return [*tokens, _Token("end", "", None, end)]

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _sum(self) -> Node:
        return self._chain(self._product, ("+", "-"))

    def _product(self) -> Node:
        return self._chain(self._factor, ("*", "/"))

    def _chain(self, part: Callable[[], Node], signs: tuple[str, ...]) -> Node:
        node = part()
        while (sign := self._next).text in signs:
            self._at += 1
            right = part()
            if sign.text in {"+", "-"}:
                self._same_dimension(node, right, sign.at)
            node = Operation(sign.text, node, right, sign.at)
        return node

    def _factor(self) -> Node:
        token = self._next
        self._at += token.kind != "end"
        if token.kind == "number":
            return self._number(token)
        if token.kind == "name":
            return self._quantity(token)
        if token.text == "-":
            return Operation("*", Number(-1, None, token.at), self._nested(self._factor, token), token.at)
        if token.text == "(":
            node = self._nested(self._sum, token)
            self._close()
            return node
        raise self._mistake(token.at, "a name or a number is missing here", "as in exposed_share < 0.15")

    def _nested(self, part: Callable[[], Node], token: _Token) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._mistake(
                token.at, "it is nested too deeply", f"use at most {_DEEPEST} parentheses in each other"
            )
        node = part()
        self._depth -= 1
        return node

    def _number(self, token: _Token) -> Number:
        factor, dimension = _UNITS[token.unit] if token.unit else (1, None)
        value: float = float(token.text)
        if not math.isfinite(value * factor):
            raise self._mistake(token.at, "it is too large a number", "use another unit")
        exact = int(token.text) if token.text.replace("_", "").isdigit() else value
        return Number(exact * factor, dimension, token.at)

    def _quantity(self, token: _Token) -> Quantity:
        if self._next.text != "(":
            return Quantity(token.text, None, token.at)
        if token.text not in FUNCTIONS:
            raise self._mistake(token.at, f"there is no function {token.text}", f"functions are {' '.join(FUNCTIONS)}")
        self._at += 1
        name = self._next
        if name.kind != "name":
            raise self._mistake(name.at, f"{token.text} is taken of one name", f"as in {token.text}(exposed_share)")
        self._at += 1
        self._close()
        return Quantity(name.text, token.text, token.at)

    def _close(self) -> None:
        if self._next.text != ")":
            raise self._mistake(self._next.at, "a ) is missing here", "close what was opened")
        self._at += 1

    def _same_dimension(self, left: Node, right: Node, at: int) -> None:
        one, other = _dimension(left), _dimension(right)
        if one is not None and other is not None and one != other:
            raise self._mistake(
                at, f"a {one} and a {other} cannot be compared or added", "give the number the unit of the name"
            )

    def _mistake(self, at: int, why: str, hint: str) -> ExpressionError:
        return ExpressionError(self._text, at, why, hint)


def _dimension(node: Node) -> str | None:
    if isinstance(node, Number):
        return node.dimension
    if isinstance(node, Quantity):
        return dimension_of(node.name)
    left, right = _dimension(node.left), _dimension(node.right)
    if node.sign in {"+", "-"}:
        return left or right
    if node.sign == "/":
        return "number" if left == right and left is not None else left if right in {None, "number"} else None
    scaled = [dimension for dimension in (left, right) if dimension not in {None, "number"}]
    return scaled[0] if len(scaled) == 1 else None
