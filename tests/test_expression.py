"""Expressions: what they mean, where a mistake in one is, and that nothing in them can be run."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.expression import (
    ExpressionError,
    Span,
    dimension_of,
    holds,
    parsed,
    quantities,
    value_of,
)

KNOWN = {"a": 2.0, "b": 3.0, "step_ns": 5e6, "peak_bytes": 1024.0, "exposed_share": 0.1}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def true(text: str) -> bool | None:
    comparison = parsed(text)
    left, right = (
        value_of(side, lambda quantity: Span.of(KNOWN[quantity.name]) if quantity.name in KNOWN else None)
        for side in (comparison.left, comparison.right)
    )
    return holds(comparison.sign, left, right)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a < b", True),
        ("a + b * 2 == 8", True),
        ("(a + b) * 2 == 10", True),
        ("b - a - 1 == 0", True),
        ("12 / a / b == 2", True),
        ("-a < -1", True),
        ("--a == 2", True),
        ("step_ns <= 5 ms", True),
        ("step_ns < 5000 us", False),
        ("5e-3 s >= step_ns", True),
        ("peak_bytes == 1 KiB", True),
        ("peak_bytes > 1 kB", True),
        ("exposed_share <= 10%", True),
        ("exposed_share < 0.1", False),
        ("step_ns / 2 < 2.5 ms", False),
        ("step_ns / 1_000_000 == 5", True),
        ("a != b", True),
        ("unheard_of < 3", None),
        ("a / (b - 3) < 1", None),
    ],
)
def test_what_an_expression_means(text: str, answer: object) -> None:
    assert true(text) is answer


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("exposed_share << 0.1", 15, "missing"),
        ("exposed_share = 0.1", 14, "no comparison"),
        ("exposed_share", 13, "no comparison"),
        ("", 0, "missing"),
        ("a <", 3, "missing"),
        ("a < b < 3", 6, "too much"),
        ("a < 3 4", 6, "too much"),
        ("a < 3 furlongs", 6, "no unit furlongs"),
        ("a $ b", 2, "'\\$' means nothing"),
        ("(a < 3", 3, "a \\) is missing"),
        ("middle(a) < 3", 0, "no function middle"),
        ("max(3) < 3", 4, "one name"),
        ("max(a < 3", 6, "a \\) is missing"),
        ("exposed_share < 5 ms", 14, "a number and a time"),
        ("step_ns + peak_bytes < 5", 8, "a time and a size"),
        ("a < 1e999", 4, "too large"),
        ("a < 1e300 TB", 4, "too large"),  # in bytes
        ("a < 1__0", 5, "too much"),
        ("a < 1" + " + 1" * 3000, 1201, "too long"),
        ("__import__('os').system('true') < 1", 11, "means nothing"),
        ("(lambda: 1)() < 2", 7, "means nothing"),
        ("a[0] < 2", 1, "means nothing"),
        ("a ** 99999999 < 2", 3, "missing"),
        ("(" * 500 + "a < 1", 20, "nested"),
        ("-" * 500 + "a < 1", 20, "nested"),
    ],
)
def test_a_mistake_has_its_place(text: str, at: int, why: str) -> None:
    with pytest.raises(ExpressionError, match=why) as failure:
        parsed(text)
    assert failure.value.at == at
    assert failure.value.code == "TF112"
    shown, caret = failure.value.pointer.split("\n")
    assert (shown, caret) == (text, " " * at + "^")


def test_names_are_found_with_their_functions() -> None:
    names = quantities(parsed("max(communication.exposed_share) <= 1.1 * baseline"))
    assert [str(name) for name in names] == ["max(communication.exposed_share)", "baseline"]


@pytest.mark.parametrize(
    ("name", "dimension"),
    [("step_ns", "time"), ("by_kind_ns.compute", "time"), ("a.peak_bytes", "size"), ("x_ratio", "number"), ("x", None)],
)
def test_a_name_tells_what_it_is_measured_in(name: str, dimension: str | None) -> None:
    assert dimension_of(name) == dimension


SPANS = st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda pair: Span(min(pair), max(pair)))


@given(SPANS, SPANS, st.sampled_from(sorted(COMPARE)))
def test_a_comparison_of_spans_is_that_of_all_their_values(left: Span, right: Span, sign: str) -> None:
    """Over whole numbers: true of all pairs, of none, or of some."""
    pairs = [
        COMPARE[sign](x, y)
        for x in range(int(left.low), int(left.high) + 1)
        for y in range(int(right.low), int(right.high) + 1)
    ]
    answer = holds(sign, left, right)
    if answer is None:
        assert len(set(pairs)) == 2
    else:
        assert set(pairs) == {answer}


@given(SPANS, SPANS, st.sampled_from("+-*"), st.data())
def test_arithmetic_of_spans_holds_every_value(left: Span, right: Span, sign: str, data: st.DataObject) -> None:
    comparison = parsed(f"x {sign} y < 0")
    known = {"x": left, "y": right}
    whole = value_of(comparison.left, lambda quantity: known[quantity.name])
    assert whole is not None
    x, y = (data.draw(st.floats(span.low, span.high)) for span in (left, right))
    value = {"+": x + y, "-": x - y, "*": x * y}[sign]
    assert whole.low - 1e-9 <= value <= whole.high + 1e-9


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_at_a_place_within_it(text: str) -> None:
    place = 0
    try:
        parsed(text)
    except ExpressionError as error:
        place = error.at
    assert 0 <= place <= len(text)
