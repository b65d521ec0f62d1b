"""How results show themselves in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from handmade import Builder
from test_json_contract import on_the_host, on_two_devices, results

from traceflow.result import Finding, Provenance, Result, Severity, Shown
from traceflow.run import Run
from traceflow.trace.model import Kind

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


@pytest.mark.parametrize("run", [on_two_devices(), on_the_host()], ids=["devices", "host"])
def test_every_result_shows_itself(run: Run) -> None:
    for result in results(run):
        page = html_of(result)
        assert elements(page) <= {"p", "b", "ul", "li", "span", "table", "thead", "tbody", "tr", "th", "td"}
        assert f"<b>{result.kind}</b>" in page
        assert all(finding.code in page for finding in result.findings[:10])


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

    class Said(Shown):
        kind = "said"
        to_pandas = path.to_pandas
        findings = (
            Finding(
                code="TF201",
                severity=Severity.INFO,
                title=HOSTILE,
                provenance=Provenance.MEASURED,
                suggestion='"><b>',
            ),
        )

    assert "script" not in elements(Said()._repr_html_())  # type: ignore[misc]  # it answers nothing else
