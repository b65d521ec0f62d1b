"""Gates for a terminal, for tools that read JUnit XML, and for a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.names import printable
from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_WHOLE = 100_000  # from here on, no fraction of a figure is told


def gate_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """Every gate with its figure and its limit, and why a figure is not known.

    Args:
        result: The `result` of `traceflow check`.
        top: Longest table, in rows.
    """
    gates = sorted(result["gates"], key=lambda gate: bool(gate["passed"]))
    failed = sum(not gate["passed"] for gate in gates)
    yield Text(f"{len(gates) - failed} of {len(gates)} gates hold", style="bold")
    yield heading("Gates (times in ns, sizes in bytes)")
    rows = [(_outcome(gate), _figure(gate["value"]), _figure(gate["limit"]), gate["expression"]) for gate in gates]
    yield Rows(("gate", "figure", "limit", "name"), rows[:top])
    yield from left_out(gates, top, "gates")
    for gate in gates[:top]:
        if gate["reason"]:
            yield Text(printable(gate["reason"], 1000))


def gates_as_junit(result: Row, source: str) -> str:
    """Gates as one suite of tests, each a case that passed or failed.

    Args:
        result: The `result` of `traceflow check`.
        source: What was checked.
    """
    from xml.etree.ElementTree import Element, SubElement, indent, tostring

    gates = result["gates"]
    failures = sum(not gate["passed"] for gate in gates)
    suites = Element("testsuites", tests=str(len(gates)), failures=str(failures))
    suite = SubElement(
        suites,
        "testsuite",
        name="traceflow check",
        tests=str(len(gates)),
        failures=str(failures),
        errors="0",
        skipped="0",
    )
    for gate in gates:
        case = SubElement(
            suite, "testcase", classname=f"traceflow.{printable(source)}", name=printable(gate["expression"])
        )
        told = _told(gate)
        if not gate["passed"]:
            SubElement(case, "failure", message=told, type="gate").text = told
        else:
            SubElement(case, "system-out").text = told
    indent(suites)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{tostring(suites, encoding='unicode')}\n"


def gates_as_markdown(result: Row, source: str) -> str:
    """Gates as a table, those that do not hold first.

    Args:
        result: The `result` of `traceflow check`.
        source: What was checked.
    """
    gates = sorted(result["gates"], key=lambda gate: bool(gate["passed"]))
    failed = sum(not gate["passed"] for gate in gates)
    lines = [
        f"### traceflow check: {_cell(source)}",
        "",
        f"{len(gates) - failed} of {len(gates)} gates hold.",
        "",
        "| gate | expression | figure | limit | why it is not known |",
        "|---|---|--:|--:|---|",
    ]
    lines += [
        f"| {_outcome(gate)} | `{_cell(gate['expression'])}` | {_figure(gate['value'])} | {_figure(gate['limit'])} "
        f"| {_cell(gate['reason'] or '')} |"
        for gate in gates
    ]
    return "\n".join(lines) + "\n"


def _outcome(gate: Row) -> str:
    return "holds" if gate["passed"] else "unknown" if gate["reason"] else "FAILS"


def _told(gate: Row) -> str:
    known = f"figure {_figure(gate['value'])}, limit {_figure(gate['limit'])}"
    return f"{known}: {printable(gate['reason'], 1000)}" if gate["reason"] else known


def _figure(value: float | None) -> str:
    """A figure as it is, with its thousands divided.

    Example:
        >>> _figure(72317597), _figure(0.725769850107), _figure(345984345.5), _figure(None)
        ('72,317,597', '0.72577', '345,984,346', 'n/a')
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= _WHOLE else f"{value:,.6g}"


def _cell(text: str) -> str:
    """Text in a cell of a table, where a bar would end it and a backquote the code."""
    return printable(text, 500).replace("|", "\\|").replace("`", "'")
