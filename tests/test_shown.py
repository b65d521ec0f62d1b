"""How results show themselves: in a notebook, in a terminal, as a figure, and when one asks what they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from html.parser import HTMLParser
from io import StringIO
from typing import ClassVar

import pandas as pd
import pytest
from handmade import MS, Builder, two_rounds
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.lib import pretty as ipython
from rich.console import Console
from test_json_contract import on_the_host, on_two_devices, results

from traceflow.report.charts import CHARTS, figure_of
from traceflow.report.shown import as_html, as_text, rows_of
from traceflow.result import Finding, Json, Note, Provenance, Result, Severity, Shown, Skipped
from traceflow.run import Run
from traceflow.schemas import KINDS
from traceflow.trace.model import Kind

US = 1_000
HOSTILE = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Which elements there are, and whether each that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Note it."""
        del attrs
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        """It is the last that was opened."""
        assert self.open.pop() == tag


def html_of(result: Result) -> str:
    """What a notebook asks for."""
    assert isinstance(result, Shown)
    return result._repr_html_()


def elements(page: str) -> set[str]:
    """The elements of well-formed HTML."""
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags.seen


each_run = pytest.mark.parametrize("run", [on_two_devices(), on_the_host()], ids=["devices", "host"])


class Said(Shown):
    """An answer of a test's own, with whatever is to be shown."""

    kind: ClassVar[str] = "critical-path"

    def __init__(
        self,
        table: pd.DataFrame,
        findings: tuple[Finding, ...] = (),
        skipped: tuple[Skipped, ...] = (),
        said: dict[str, Json] | None = None,
    ) -> None:
        self.table, self.findings, self.skipped, self.said = table, findings, skipped, said or {}
        self.notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        return self.said

    def to_pandas(self) -> pd.DataFrame:
        return self.table


def in_ipython(result: Result) -> str:
    """What IPython prints in a terminal of 100 characters."""
    of: Callable[..., str] = ipython.pretty
    return of(result, max_width=100)


@each_run
def test_every_result_shows_itself(run: Run) -> None:
    for result in results(run):
        page = html_of(result)
        assert elements(page) <= {"p", "b", "ul", "li", "span", "table", "thead", "tbody", "tr", "th", "td"}
        assert f"<b>{result.kind}</b>" in page
        assert all(finding.code in page for finding in result.findings[:10])


@each_run
def test_every_result_has_the_same_words_for_a_terminal(run: Run) -> None:
    for result in results(run):
        (first, *lines) = in_ipython(result).splitlines()
        rows, found = len(result.to_pandas()), len(result.findings)
        assert first.startswith(f"{result.kind}, {rows:,} row{'s' * (rows != 1)}, {found} finding{'s' * (found != 1)}")
        assert all(any(line.startswith(finding.code) for line in lines) for finding in result.findings[:10])
        (console := Console(file=(printed := StringIO()), width=100)).print(result)
        assert console.width == 100
        assert printed.getvalue().split() == in_ipython(result).split()


def test_within_jupyter_nothing_is_shown_beside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    text = in_ipython(two_rounds().run().communication())
    assert "allreduce" in text
    assert capsys.readouterr().out == ""


@each_run
def test_the_repr_of_every_result_is_one_short_line(run: Run) -> None:
    for result in results(run):
        assert repr(result).startswith(f"<{type(result).__name__}, ")
        assert len(repr(result)) < 60


@each_run
def test_every_result_is_a_table_and_a_figure(run: Run) -> None:
    for result in results(run):
        figure = figure_of(result)
        assert isinstance(result, Shown)
        assert figure.to_json() == result.figure().to_json()
        (why,) = [note.text for note in figure.layout.annotations] or [""]
        assert figure.data or why.startswith("nothing to draw: "), result.kind
        assert isinstance(result.to_pandas(), pd.DataFrame)


def test_there_is_a_chart_for_every_kind_of_result() -> None:
    assert CHARTS.keys() == set(KINDS)


def test_figures_have_the_values_of_the_table_in_one_unit() -> None:
    run = two_rounds().run()
    saved = run.savings(top=5)
    (bars,) = saved.figure().data
    assert sorted(bars.x) == sorted(one.saved_ns / US for one in saved.savings)
    assert saved.figure().layout.xaxis.title.text == "saved (us)"
    waits = {bar.name: sum(bar.x) for bar in run.communication().figure().data}
    assert waits == {"wait": 16_000, "transfer": 4_000}


def test_a_figure_of_many_rows_says_how_many_are_drawn() -> None:
    build = Builder()
    lane = build.lane(0, "stream 7", 0)
    for step in range(40):
        build.event(lane, 100 * step, 100 * step + 90 + step, f"kernel_{step}", Kind.COMPUTE)
        build.mark(step, 0, 100 * step, 100 * step + 99)
    figure = build.run().summary().figure()
    assert figure.layout.title.text == "summary, the 30 largest of 40"
    assert len(figure.data[0].x) == 30


def test_quantities_are_shown_in_the_unit_of_their_column() -> None:
    columns = {"kind": ["a", "b"], "duration_ns": [1_500, None], "held_bytes": [1 << 20, 1 << 19], "of_share": [0.5, 1]}
    told = rows_of(Said(pd.DataFrame({**columns, "nothing": [None, None], "on": [{"rank": 1, "device": None}, None]})))
    assert told.columns == ("kind", "duration (us)", "held (MiB)", "of (%)", "on")
    assert told.rows == (("a", "1.500", "1.0", "50.0", "1:host"), ("b", "n/a", "0.5", "100.0", ""))
    assert told.is_number == (False, True, True, True, False)


def test_of_a_long_table_the_rows_with_most_are_shown_in_order() -> None:
    lengths = [*range(1_000, 20_000, 1_000)]
    table = pd.DataFrame({"name": [f"k{i}" for i in range(20)], "duration_ns": [*lengths[::-1], -30_000]})
    told = rows_of(Said(table))
    assert [row[told.columns.index("name")] for row in told.rows] == [*(f"k{i}" for i in range(9)), "k19"]
    assert "20 rows, 0 findings; the 10 rows with most duration" in as_text(Said(table))


def test_what_is_not_available_is_told_with_its_reason() -> None:
    gaps = tuple(Skipped(f"/result/rows/*/figure_{i}_ns", f"reason {i}") for i in range(7))
    text = as_text(Said(pd.DataFrame(), skipped=(*gaps, Skipped("/result/other", "reason 0"))))
    assert "not available: figure 0, other (reason 0)" in text
    assert "not available: figure 4 (reason 4)" in text
    assert "and 2 more, in .skipped" in text
    assert "figure 5" not in text
    assert "<li>not available: figure 0, other (reason 0)</li>" in as_html(
        Said(pd.DataFrame(), skipped=(*gaps, Skipped("/result/other", "reason 0")))
    )


def test_figures_by_kind_are_told_in_one_unit() -> None:
    compared: dict[str, Json] = {"a": 10 * MS, "b": 20 * MS, "change_ratio": 1.0, "significant": True}
    parts: dict[str, Json] = {"compute": 20 * MS, "transfer": 1_500_000}
    said: dict[str, Json] = {"makespan_ns": 22 * MS, "by_kind_ns": parts, "step_ns": compared}
    text = as_text(Said(pd.DataFrame(), said=said))
    assert "makespan 22.000 ms\n" in text
    assert "by kind (ms): compute 20.000, transfer 1.500\n" in text
    assert text.endswith("step (ms): a 10.000, b 20.000")


def test_a_terminal_that_is_narrow_loses_the_columns_that_matter_least() -> None:
    text = as_text(two_rounds().run().critical_path(), width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "kind      name" in text
    assert "the line is too short" in " ".join(text.split())


def test_names_from_a_trace_are_no_html() -> None:
    build = Builder()
    build.event(build.lane(0, "stream 7", 0), 0, 9_000, HOSTILE, Kind.COMPUTE)
    page = html_of(build.run("runs/a").critical_path())
    assert "script" not in elements(page)
    assert "&lt;script&gt;" in page


def test_a_finding_is_no_html_either_and_a_long_table_is_cut() -> None:
    build = Builder()
    lane = build.lane(0, "stream 7", 0)
    for at in range(50):
        build.event(lane, 10 * at, 10 * at + 10, f"kernel_{at}", Kind.COMPUTE)
    digest = build.run("runs/a").digest()
    path = digest.answers["critical-path"]
    page = html_of(path)
    assert page.count("<tr") == 11
    assert ", 50 rows, " in page

    finding = Finding(
        code="TF201",
        severity=Severity.INFO,
        title=HOSTILE,
        provenance=Provenance.MEASURED,
        suggestion='"><b>',
    )
    hostile = Said(path.to_pandas(), (finding,), (Skipped("/result/" + HOSTILE, HOSTILE),), {"figure": HOSTILE})
    assert "script" not in elements(as_html(hostile))
    assert "script" not in elements(as_html(Said(pd.DataFrame({HOSTILE: [HOSTILE]}))))


def test_an_answer_to_a_query_is_shown_as_a_table() -> None:
    page = on_two_devices().query(f"SELECT '{HOSTILE}' AS said")._repr_html_()
    assert "<table" in page
    assert "script" not in elements(page)


@pytest.fixture
def completions() -> Iterator[Callable[[str, object], set[str]]]:
    """What IPython offers after some text, where `it` is an object."""
    shell_of: Callable[[], InteractiveShell] = InteractiveShell
    shell = shell_of()

    def offered(text: str, it: object) -> set[str]:
        shell.user_ns["it"] = it
        with provisionalcompleter():
            return {one.text.removeprefix(".") for one in shell.Completer.completions(text, len(text))}

    yield offered
    InteractiveShell.clear_instance()


@each_run
def test_results_complete_on_tab(run: Run, completions: Callable[[str, object], set[str]]) -> None:
    for result in results(run):
        offered = completions("it.", result)
        own = {one.name for one in fields(result)} if not isinstance(result, Said) else set()  # type: ignore[arg-type]
        assert own | {"to_pandas", "to_dict", "figure", "findings", "skipped"} <= offered, result.kind


def test_a_question_completes_before_it_is_asked(completions: Callable[[str, object], set[str]]) -> None:
    run = on_two_devices()
    assert {"critical_path", "communication", "memory", "savings"} <= completions("it.", run)
    assert {"by_kind_ns", "to_pandas", "segments"} <= completions("it.critical_path().", run)
