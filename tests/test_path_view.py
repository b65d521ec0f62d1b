"""A critical path to click through: what it tells, what it calls, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from handmade import MS, Builder, hostile, two_rounds

from traceflow.errors import TraceflowError
from traceflow.report import path_view
from traceflow.report.path_view import MOST_SEGMENTS, PathView
from traceflow.run import Run, open_run
from traceflow.trace.model import Kind

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def view() -> PathView:
    """Two ranks in two rounds: a1 on rank 0, a transfer, b2 on rank 1, a transfer."""
    return two_rounds().run().path_view()


def test_the_longest_segment_is_selected_first(view: PathView) -> None:
    assert view.selected == 0
    assert repr(view) == "<PathView: 4 segments>"
    segment = view.segment
    assert (segment["name"], segment["kind"], segment["who"]) == ("a1", "compute", "rank 0, device 0")
    assert (segment["start_ns"], segment["duration_ns"], segment["slack_ns"]) == (0, 10 * MS, 0)
    assert segment["why"] == "it begins the window"
    assert segment["slack"].startswith("none")


def test_a_segment_tells_its_dependencies(view: PathView) -> None:
    view.selected = 1
    segment = view.segment
    assert segment["why"] == "rendezvous, the last was rank 0, device 0"
    assert [(one["where"], one["gap_ns"], one["slack_ns"], one["row"]) for one in segment["before"]] == [
        ("rank 0, device 0, stream 7", 0, 0, None),
        ("rank 1, device 0, stream 7", 8 * MS, 8 * MS, 1),
    ]
    assert [(one["name"], one["row"]) for one in segment["after"]] == [("b2", 2)]
    assert segment["before"][0]["text"] == "rendezvous, at once"


def test_python_is_told_what_is_selected(view: PathView) -> None:
    heard: list[str] = []
    view.on_select(lambda segment: heard.append(segment["name"]))
    view.selected = 2
    view.selected = 2
    view.selected = 0
    assert heard == ["b2", "a1"]
    with pytest.raises(IndexError, match="segments 0 to 3"):
        view.selected = 4


def test_a_click_in_a_notebook_reaches_python(view: PathView) -> None:
    pytest.importorskip("anywidget", reason="no anywidget to make a widget with")
    heard: list[Mapping[str, Any]] = []
    view.on_select(heard.append)
    widget = view.widget()
    assert widget is view.widget()
    assert [segment["name"] for segment in widget.data["segments"]] == ["a1", "all-reduce", "b2", "all-reduce"]
    widget.set_state({"selected": 2})  # what arrives from the page
    assert view.selected == 2
    assert view.segment["name"] == "b2"
    assert [segment["name"] for segment in heard] == ["b2"]
    view.selected = 3  # and back
    assert widget.selected == 3
    assert len(heard) == 2


def test_without_anywidget_there_is_still_the_page(view: PathView, monkeypatch: pytest.MonkeyPatch) -> None:
    path_view._widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(TraceflowError, match="TF123: cannot make a widget of the path: anywidget is not installed"):
        view.widget()
    assert "<iframe" in view._repr_html_()
    view.selected = 1
    assert view.segment["name"] == "all-reduce"


def test_the_page_needs_no_network_and_no_name_breaks_out_of_it() -> None:
    assert re.findall(r"(?:src|href)=|url\(|@import|https?://", two_rounds().run().path_view().to_html()) == []
    page = hostile().run().path_view().to_html()
    assert page.count("<script") == page.count("</script") == 2
    assert "<img" not in page
    frame = hostile().run().path_view()._repr_html_()
    assert frame.count("'") == 4  # those of two attributes: nothing within ends them


def test_of_a_long_path_the_longest_segments_are_shown() -> None:
    build = Builder()
    lane = build.lane(0, "stream 7", 0)
    for at in range(MOST_SEGMENTS + 20):
        build.event(lane, 1_000 * at, 1_000 * at + (990 if at % 2 else 1_000), f"kernel_{at}", Kind.COMPUTE)
    view = build.run().path_view()
    data = data_of(view)
    assert len(data["segments"]) == MOST_SEGMENTS
    assert re.search(r"without its \d+ shortest segments", data["title"])
    rows = [segment["row"] for segment in data["segments"]]
    assert rows == sorted(rows)


def data_of(view: PathView) -> Any:
    """What the page is told."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', view.to_html(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_step_or_a_window_can_be_looked_at() -> None:
    build = Builder()
    host, lane = build.lane(0, "thread 1"), build.lane(0, "stream 7", 0)
    for step in range(2):
        start = 100_000 * step
        build.event(host, start, start + 4_000, "forward", Kind.HOST)
        build.event(host, start, start + 3_000, "cudaLaunchKernel", Kind.CALL, step + 1)
        build.event(lane, start + 5_000, start + 80_000 + step, f"gemm_{step}", Kind.COMPUTE, step + 1)
        build.mark(step, 0, start, start + 4_000)
    run = build.run()
    of_step, of_window = (
        {segment["name"] for segment in data_of(view)["segments"]}
        for view in (run.path_view(step=1), run.path_view(window="forward"))
    )
    assert {"gemm_0", "gemm_1"} & of_step == {"gemm_1"}
    assert {"gemm_0", "gemm_1"} & of_window == {"gemm_0"}


def test_source_lines_of_recorded_programs_are_told(corpus: Callable[[str], Path]) -> None:
    data = data_of(open_run(corpus("xplane/mi300_conv.xplane.pb")).path_view())
    assert any(segment["source"] for segment in data["segments"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One headless browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser with")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Callable[[Run], Page]]:
    """Opens the page of a run's path; whatever the browser complains of or asks for is an error."""
    page = browser.new_page(viewport={"width": 1200, "height": 600})
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.extend([] if request.url.startswith("file:") else [request.url]))

    def show(run: Run) -> Page:
        (file := tmp_path / "path.html").write_text(run.path_view().to_html(), encoding="utf-8")
        page.goto(file.as_uri())
        opened: Page = page
        return opened

    yield show
    page.close()
    assert wrong == []


@pytest.mark.xdist_group("browser")
def test_a_stored_notebook_holds_the_page_in_a_frame(browser: Any, tmp_path: Path) -> None:
    (file := tmp_path / "stored.html").write_text(two_rounds().run().path_view()._repr_html_(), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 600})
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".track button").nth(1).click()
    assert frame.locator(".told h4").first.inner_text() == "4 of 4: all-reduce"
    page.close()


def title(page: Page) -> str:
    """Which segment is told of."""
    return str(page.inner_text(".told h4"))


@pytest.mark.xdist_group("browser")
def test_a_click_and_the_keys_choose_a_segment(shown: Callable[[Run], Page]) -> None:
    page = shown(two_rounds().run())
    assert title(page) == "1 of 4: a1"
    page.click(".track >> nth=1 >> button >> nth=1")
    assert title(page) == "3 of 4: b2"
    assert "rank 1, device 0, stream 7" in page.inner_text(".told dl")
    page.keyboard.press("ArrowRight")
    assert title(page) == "4 of 4: all-reduce"
    page.keyboard.press("ArrowRight")
    assert title(page) == "4 of 4: all-reduce"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert title(page) == "2 of 4: all-reduce"
    assert page.locator(".track button[aria-pressed=true]").count() == 1
    page.click(".told li button")  # what waited for it
    assert title(page) == "3 of 4: b2"


@pytest.mark.xdist_group("browser")
def test_closer_is_wider(shown: Callable[[Run], Page]) -> None:
    page = shown(two_rounds().run())
    width = "document.querySelector('.track').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.focus(".traceflow-path")
    page.keyboard.press("+")
    assert page.evaluate(width) == pytest.approx(2 * before, rel=0.02)
    page.keyboard.press("-")
    assert page.evaluate(width) == pytest.approx(before, rel=0.02)


@pytest.mark.xdist_group("browser")
def test_no_name_runs_in_the_page(shown: Callable[[Run], Page]) -> None:
    page = shown(hostile().run())
    assert page.locator(".told img, .told script").count() == 0
    assert page.evaluate("typeof window.harmed") == "undefined"
