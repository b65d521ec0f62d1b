"""The HTML report in a browser: it draws, it listens, it asks nobody for anything, and no name harms it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from handmade import Builder, hostile, two_rounds
from test_memory import executing, small
from test_operation_runs import two_stages, written

import traceflow
from traceflow.evidence import Evidence
from traceflow.report.html import Part, write_comparison, write_report
from traceflow.run import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Route

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser with")
pytestmark = [
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium"),
    pytest.mark.xdist_group("browser"),  # one browser for all
]

PIXELS = """(selector) => {
  const canvas = document.querySelector(selector);
  const bytes = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Map();
  let sum = 0;
  for (let i = 0; i < bytes.length; i += 4) {
    const colour = (bytes[i] << 16) | (bytes[i + 1] << 8) | bytes[i + 2];
    colours.set(colour, (colours.get(colour) || 0) + 1);
    sum = (sum * 31 + colour) % 2147483647;
  }
  const [paper, many] = [...colours].sort((a, b) => b[1] - a[1])[0];
  return {paper, drawn: 1 - many / (bytes.length / 4), colours: colours.size, sum};
}"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@dataclass
class Tab:
    """A page, and all that it asked for or that the browser complained of."""

    page: Page
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Note what happens, and let nothing but files through."""
        self.page.route("**/*", self._asked)
        self.page.on("console", self._told)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _asked(self, route: Route) -> None:
        self.asked.append(route.request.url)
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            route.abort()

    def _told(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def pixels(self, canvas: str = "canvas.body") -> dict[str, Any]:
        """What is painted: the most frequent colour, the share of other pixels, and a checksum."""
        self.settle()
        return dict(self.page.evaluate(PIXELS, canvas))

    def settle(self) -> None:
        """Wait until what was asked to be drawn is drawn."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str) -> None:
        """Press keys in the timeline."""
        self.page.focus(".timeline")
        self.settle()
        for key in keys:
            self.page.keyboard.press(key)

    def point_at(self, x: float, y: float, canvas: str = "canvas.body") -> None:
        """Move the pointer to a place on a canvas, from its upper left corner."""
        box = self.page.evaluate(
            "(s) => { const e = document.querySelector(s); e.scrollIntoView({block: 'center'});"
            "const {x, y} = e.getBoundingClientRect(); return {x, y}; }",
            canvas,
        )
        self.settle()  # a page that scrolls lets go of what it tells
        self.page.mouse.move(box["x"] + x, box["y"] + y)

    def across(self, share: float) -> float:
        """How far from the left of the lanes a share of the window is."""
        return float(
            GUTTER + (self.page.evaluate("document.querySelector('canvas.body').clientWidth") - GUTTER) * share
        )

    def bubble(self) -> list[str]:
        """What the tooltip of the timeline says, line by line; nothing where it is hidden."""
        said = self.page.locator(".bubble")
        return str(said.inner_text()).splitlines() if said.is_visible() else []

    def said_aloud(self) -> str:
        """What a screen reader was told last."""
        return str(self.page.text_content(".live"))


GUTTER = 176


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One headless browser."""
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def empty(browser: Browser) -> Iterator[Tab]:
    """A tab without a page, watched."""
    tab = Tab(browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme="light"))
    tab.watch()
    yield tab
    tab.page.close()


@pytest.fixture
def tab(empty: Tab, tmp_path: Path) -> Tab:
    """The report of two ranks in two rounds."""
    return shown(empty, two_rounds(), tmp_path)


def shown(tab: Tab, builder: Builder, folder: Path) -> Tab:
    """Write a report and open it."""
    tab.page.goto(write_report(builder.run(), folder / "report.html").as_uri())
    return tab


def test_it_loads_without_errors_and_without_network(tab: Tab) -> None:
    assert tab.errors == []
    assert [url.partition(":")[0] for url in tab.asked] == ["file"]


def test_what_another_page_asks_for_is_noticed(empty: Tab) -> None:
    empty.page.set_content("<img src='http://127.0.0.1:9/x.png'>")
    assert empty.asked == ["http://127.0.0.1:9/x.png"]
    assert "ERR_FAILED" in empty.errors[0]


def test_a_script_that_is_not_the_pages_own_is_refused(tab: Tab) -> None:
    tab.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.harmed = 1'}))"
    )
    assert tab.page.evaluate("window.harmed") is None
    assert "Content Security Policy" in tab.errors[0]


def test_the_timeline_is_painted(tab: Tab) -> None:
    for canvas in ("canvas.head", "canvas.body"):
        painted = tab.pixels(canvas)
        assert painted["drawn"] > 0.05
        assert painted["colours"] > 5


def test_keys_zoom_move_and_reset(tab: Tab) -> None:
    before = tab.pixels()["sum"]
    tab.press("+")
    zoomed = tab.pixels()["sum"]
    tab.press("d")
    moved = tab.pixels()["sum"]
    assert len({before, zoomed, moved}) == 3
    tab.press("0")
    assert tab.pixels()["sum"] == before


def test_the_wheel_scrolls_the_page_until_the_timeline_was_chosen(tab: Tab) -> None:
    tab.point_at(500, 32)
    tab.page.mouse.wheel(0, -60)
    tab.page.mouse.move(0, 0)
    before = tab.pixels()["sum"]
    tab.page.focus(".timeline")
    tab.point_at(500, 32)
    tab.page.mouse.wheel(0, -60)
    tab.page.mouse.move(0, 0)
    assert tab.pixels()["sum"] != before


def test_dragging_moves_what_is_zoomed(tab: Tab) -> None:
    tab.press("+", "+")
    before = tab.pixels()["sum"]
    tab.point_at(700, 32)
    tab.page.mouse.down()
    tab.page.mouse.move(0, 0, steps=3)
    tab.page.mouse.up()
    assert tab.pixels()["sum"] != before


def test_the_tooltip_says_what_is_under_the_pointer(tab: Tab) -> None:
    assert tab.bubble() == []
    tab.point_at(300, 32)
    assert tab.bubble()[0] == "a1"
    assert "10\u202fms" in tab.bubble()
    assert "none: on the critical path" in tab.bubble()
    tab.point_at(30, 32)
    assert tab.bubble() == []


def test_slack_is_told_off_the_path(tab: Tab) -> None:
    tab.point_at(tab.across(12 / 22), 32)
    told = tab.bubble()
    assert told[0] == "a2"
    assert told[told.index("slack") + 1] == "8\u202fms"


def test_what_the_program_tells_is_told_of_every_slice(empty: Tab, tmp_path: Path) -> None:
    program = small()
    run = Run(Evidence(executing(program), {7: program}), ("a",))
    empty.page.goto(write_report(run, tmp_path / "report.html").as_uri())
    told = set()
    for share in range(2, 100, 4):
        empty.point_at(empty.across(share / 100), 32)
        said = empty.bubble()
        if "source" in said:
            told.add((said[0], said[said.index("source") + 1]))
    known = {name: source for name, source in zip(program.instruction_name, program.source, strict=True) if source}
    assert told
    assert all(known[name] == source for name, source in told)


def test_the_path_can_be_walked_by_keyboard(tab: Tab) -> None:
    told = []
    for _ in range(4):
        tab.press(".")
        told.append(tab.said_aloud())
    assert [text.split(",")[0] for text in told] == ["a1", "all-reduce", "b2", "all-reduce"]
    assert "start 11\u202fms" in told[2]


def test_a_click_keeps_what_is_told_until_escape(tab: Tab) -> None:
    tab.point_at(300, 32)
    tab.page.mouse.down()
    tab.page.mouse.up()
    tab.page.mouse.move(5, 5)
    assert tab.bubble()[0] == "a1"
    assert "on the critical path" in tab.said_aloud()
    tab.press("Escape")
    assert tab.bubble() == []


def test_a_wait_says_whom_it_is_for_and_is_hatched(tab: Tab) -> None:
    middle = tab.across(17 / 22)
    tab.point_at(middle, 32)
    told = tab.bubble()
    assert told[told.index("kind") + 1] == "waits for a late participant"
    assert told[told.index("waited for") + 1].startswith("rank 1, device 0")
    shades = tab.page.evaluate(
        "(x) => { const c = document.querySelector('canvas.body'), r = c.width / c.clientWidth;"
        "const row = c.getContext('2d').getImageData(x * r, 36 * r, 60 * r, 1).data;"
        "return new Set(Array.from({length: row.length / 4}, (_, i) => row.slice(4 * i, 4 * i + 3).join())).size; }",
        middle,
    )
    assert shades > 2


def test_it_zooms_from_the_window_to_a_nanosecond(tab: Tab) -> None:
    tab.press(*"+" * 45)
    tab.settle()
    told = tab.page.evaluate(
        "(() => { const g = CanvasRenderingContext2D.prototype, fill = g.fillText; const told = [];"
        "g.fillText = function (text, ...where) { told.push(text); fill.call(this, text, ...where); };"
        "document.getElementById('theme').click(); g.fillText = fill; return told; })()"
    )
    ticks = [text for text in told if text.endswith("\u202fms")]
    moments = [round(float(text.removesuffix("\u202fms")) * 1_000_000) for text in ticks]
    assert len(moments) > 3
    assert {after - before for before, after in pairwise(moments)} <= {1, 2}


def test_every_link_leads_somewhere_and_every_control_has_a_name(tab: Tab) -> None:
    links = tab.page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((a) => a.hash.slice(1))")
    there = tab.page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(links) > 10
    assert set(links) <= set(there)
    assert len(there) == len(set(there))
    unnamed = tab.page.evaluate(
        "[...document.querySelectorAll('button, a')].filter((e) => !(e.textContent.trim() || e.ariaLabel)).length"
    )
    assert unnamed == 0


def test_a_link_brings_its_section_into_view(tab: Tab) -> None:
    tab.page.click("nav a[href='#run0-communication']")
    top = tab.page.evaluate("document.getElementById('run0-communication').getBoundingClientRect().top")
    assert 0 <= top < 200


def test_the_first_screen_holds_the_verdict_its_evidence_and_what_to_do(tab: Tab) -> None:
    for selector in (".verdict", ".evidence", ".savings li:nth-child(3)", ".loudest"):
        bottom = tab.page.evaluate("(s) => document.querySelector(s).getBoundingClientRect().bottom", selector)
        assert 0 < bottom <= 900, selector
    assert "Evidence: good." in str(tab.page.inner_text(".evidence"))


@pytest.mark.parametrize("width", [1400, 800])
def test_the_page_is_no_wider_than_the_window(tab: Tab, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 900})
    tab.settle()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_keyboard_reaches_everything_in_order(tab: Tab) -> None:
    reached = []
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("document.activeElement.className || document.activeElement.id"))
    assert reached[0] == "skip"
    assert reached.index("theme") < reached.index("figure") < reached.index("timeline")


def test_a_printed_page_is_light_whatever_the_screen(tab: Tab) -> None:
    tab.page.click("#theme")
    dark = tab.pixels()["paper"]
    tab.page.evaluate(
        f"window.addEventListener('beforeprint', () => {{ window.printed = ({PIXELS})('canvas.body').paper; }})"
    )
    assert tab.page.pdf().startswith(b"%PDF")
    assert tab.page.evaluate("window.printed") == 0xFFFFFF
    assert tab.pixels()["paper"] == dark != 0xFFFFFF


def test_a_stretch_of_a_table_can_be_shown(tab: Tab) -> None:
    before = tab.pixels()["sum"]
    tab.page.click("button.jump[data-start='21000000'] >> nth=0")
    assert tab.pixels()["sum"] != before
    assert tab.page.evaluate("document.activeElement.className") == "timeline"


def test_the_theme_can_be_changed(tab: Tab) -> None:
    before, painted = tab.page.evaluate(BACKGROUND), tab.pixels()["paper"]
    tab.page.click("#theme")
    assert tab.page.evaluate(BACKGROUND) != before
    assert tab.pixels()["paper"] != painted
    tab.page.click("#theme")
    assert tab.page.evaluate(BACKGROUND) == before


def test_the_theme_follows_the_system_until_it_is_chosen(tab: Tab) -> None:
    light, painted = tab.page.evaluate(BACKGROUND), tab.pixels()["paper"]
    tab.page.emulate_media(color_scheme="dark")
    assert tab.page.evaluate(BACKGROUND) != light
    assert tab.pixels()["paper"] != painted


def test_a_definition_shows_on_focus(tab: Tab) -> None:
    tip = tab.page.locator(".verdict .figure .tip").first
    assert not tip.is_visible()
    tab.page.focus(".verdict .figure >> nth=0")
    assert tip.is_visible()
    assert str(tip.inner_text()).startswith("measured")


def test_hostile_names_do_nothing(empty: Tab, tmp_path: Path) -> None:
    tab = shown(empty, hostile(), tmp_path)
    tab.point_at(500, 32)
    tab.press(".", ".", "+")
    assert tab.page.evaluate("window.harmed") is None
    assert tab.page.evaluate("document.images.length") == 0
    assert tab.errors == []


def test_each_of_two_runs_has_its_own_timeline(empty: Tab, tmp_path: Path) -> None:
    parts = [Part("first", two_rounds().run()), Part("second", hostile().run())]
    empty.page.goto(write_comparison(parts, tmp_path / "both.html").as_uri())
    first, second = empty.pixels("#run0-tl canvas.body"), empty.pixels("#run1-tl canvas.body")
    assert first["drawn"] > 0.05
    assert second["drawn"] > 0.01
    empty.press("+")
    assert empty.pixels("#run0-tl canvas.body")["sum"] != first["sum"]
    assert empty.pixels("#run1-tl canvas.body")["sum"] == second["sum"]


def test_every_worker_has_its_place_on_the_heat_map(empty: Tab, tmp_path: Path) -> None:
    table = written(two_stages(slow=5_000_000), tmp_path / "job.csv")
    empty.page.goto(traceflow.open(table).report(tmp_path / "report.html").as_uri())
    assert empty.errors == []
    cells = empty.page.evaluate(
        "[...document.querySelectorAll('.heat rect')].map((rect) => { const {x, y} = rect.getBoundingClientRect();"
        "return {place: `${x},${y}`, slow: rect.matches('.slower.deep rect'), says: rect.textContent.slice(0, 6),"
        "fill: getComputedStyle(rect).fill}; })"
    )
    assert len(cells) == len({cell["place"] for cell in cells}) == 4
    assert [cell["says"] for cell in cells if cell["slow"]] == ["rank 3"]
    assert {c["fill"] for c in cells if c["slow"]}.isdisjoint(c["fill"] for c in cells if not c["slow"])


def test_live_bytes_are_drawn_as_high_as_they_are(empty: Tab, tmp_path: Path) -> None:
    program = small()
    run = Run(Evidence(executing(program), {7: program}), ("a",))
    empty.page.goto(write_report(run, tmp_path / "report.html").as_uri())
    heights = empty.page.evaluate(
        "[...document.querySelectorAll('svg.in-use rect')].map((rect) => rect.getBoundingClientRect().height)"
    )
    assert [round(height / heights[1], 3) for height in heights] == [0.909, 1, 0.818, 0.727, 0.727]
    assert heights[1] > 50
    assert empty.errors == []


def test_devices_that_hold_the_same_are_painted_alike(empty: Tab, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from test_sharding_report import run_of

    run = run_of("weight_gathered_over_another_axis", "all-gather")
    empty.page.goto(write_report(run, tmp_path / "report.html").as_uri())
    assert empty.errors == []
    fills = empty.page.evaluate(
        "[...document.querySelector('figure.mesh').querySelectorAll('rect')].map((rect) => getComputedStyle(rect).fill)"
    )
    assert len(fills) == 8
    assert len(set(fills[:4])) == len(set(fills[4:])) == 1
    assert fills[0] != fills[4]
    empty.page.locator("figure.mesh summary").first.press("Enter")
    rows = empty.page.locator("figure.mesh details").first.locator("tbody tr").all_inner_texts()
    assert [" ".join(row.split()) for row in rows] == ["#0 0:512, : 0-3", "#1 512:1024, : 4-7"]
