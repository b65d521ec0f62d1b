"""The HTML report in a browser: it draws, it listens, it asks nobody for anything, and no name harms it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
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
    from selenium.webdriver import Chrome

pytest.importorskip("selenium", reason="no selenium to drive a browser with")
pytestmark = [
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium"),
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="no chromedriver (Debian: chromium-driver)"),
    pytest.mark.xdist_group("browser"),  # one browser for all
]

PIXELS = """
const canvas = document.querySelector(arguments[0]);
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
"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One headless browser that logs what it fetches."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1300,900",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def page(chrome: Chrome, tmp_path: Path) -> Chrome:
    """The report of two ranks in two rounds."""
    return shown(chrome, two_rounds(), tmp_path)


def shown(chrome: Chrome, builder: Builder, folder: Path) -> Chrome:
    """Write a report and open it."""
    chrome.get(write_report(builder.run(), folder / "report.html").as_uri())
    return chrome


def errors(chrome: Chrome) -> list[str]:
    """What the browser complained of, and what it refused, since it was last asked."""
    return [entry["message"] for entry in logged(chrome, "browser") if entry["level"] == "SEVERE"]


def logged(chrome: Chrome, what: str) -> list[dict[str, Any]]:
    """A log of the browser's since it was last asked for."""
    get_log: Any = chrome.get_log
    return list(get_log(what))


def pixels(chrome: Chrome, canvas: str = "canvas.body") -> dict[str, Any]:
    """What is painted: the most frequent colour, the share of other pixels, and a checksum."""
    settled(chrome)
    painted: dict[str, Any] = chrome.execute_script(PIXELS, canvas)
    return painted


def settled(chrome: Chrome) -> None:
    """Wait until what was asked to be drawn is drawn."""
    chrome.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));")


def press(chrome: Chrome, *keys: str) -> None:
    """Press keys in the timeline."""
    chrome.find_element("css selector", ".timeline").send_keys(*keys)


def point_at(chrome: Chrome, canvas: str, x: int, y: int) -> None:
    """Move the pointer to a place on a canvas, from its upper left corner."""
    from selenium.webdriver import ActionChains

    element = chrome.find_element("css selector", canvas)
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    left, top = -element.size["width"] // 2, -element.size["height"] // 2
    ActionChains(chrome, duration=0).move_to_element_with_offset(element, left + x, top + y).perform()


def bubble(chrome: Chrome) -> str:
    """What the tooltip of the timeline says, nothing where it is hidden."""
    return str(chrome.find_element("css selector", ".bubble").text)


def test_it_loads_without_errors_and_without_network(page: Chrome) -> None:
    assert errors(page) == []
    messages = [json.loads(entry["message"])["message"] for entry in logged(page, "performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "chrome"}
    assert any(url.startswith("file:") for url in asked)


def test_a_script_that_is_not_the_pages_own_is_refused(page: Chrome) -> None:
    page.execute_script(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.harmed = 1'}))"
    )
    assert page.execute_script("return window.harmed") is None
    assert "Content Security Policy" in errors(page)[0]


def test_the_timeline_is_painted(page: Chrome) -> None:
    for canvas in ("canvas.head", "canvas.body"):
        painted = pixels(page, canvas)
        assert painted["drawn"] > 0.05
        assert painted["colours"] > 5


def test_keys_zoom_move_and_reset(page: Chrome) -> None:
    before = pixels(page)["sum"]
    press(page, "+")
    zoomed = pixels(page)["sum"]
    press(page, "d")
    moved = pixels(page)["sum"]
    assert len({before, zoomed, moved}) == 3
    press(page, "0")
    assert pixels(page)["sum"] == before


def test_the_wheel_scrolls_the_page_until_the_timeline_was_chosen(page: Chrome) -> None:
    before = pixels(page)["sum"]
    wheel(page)
    assert pixels(page)["sum"] == before
    page.execute_script("document.querySelector('.timeline').focus()")
    wheel(page)
    assert pixels(page)["sum"] != before


def wheel(chrome: Chrome) -> None:
    """Turn the wheel over the middle of the lanes."""
    chrome.execute_script(
        "document.querySelector('canvas.body').dispatchEvent("
        "new WheelEvent('wheel', {deltaY: -200, bubbles: true, cancelable: true}))"
    )


def test_dragging_moves_what_is_zoomed(page: Chrome) -> None:
    from selenium.webdriver import ActionChains

    press(page, "+", "+")
    before = pixels(page)["sum"]
    lanes = page.find_element("css selector", "canvas.body")
    ActionChains(page, duration=10).click_and_hold(lanes).move_by_offset(-120, 0).release().perform()
    assert pixels(page)["sum"] != before


def test_the_tooltip_says_what_is_under_the_pointer(page: Chrome) -> None:
    assert bubble(page) == ""
    point_at(page, "canvas.body", 300, 32)
    assert bubble(page).splitlines()[0] == "a1"
    assert "10\u202fms" in bubble(page)
    assert "on the critical path" in bubble(page)
    point_at(page, "canvas.body", 30, 32)
    assert bubble(page) == ""


def test_slack_is_told_off_the_path(page: Chrome) -> None:
    width = page.find_element("css selector", "canvas.body").size["width"]
    point_at(page, "canvas.body", 176 + (width - 176) * 12 // 22, 32)
    assert bubble(page).splitlines()[0] == "a2"
    assert "8\u202fms" in bubble(page)


def test_the_path_can_be_walked_by_keyboard(page: Chrome) -> None:
    told = []
    for _ in range(4):
        press(page, ".")
        told.append(page.find_element("css selector", ".live").get_attribute("textContent") or "")
    assert [text.split(",")[0] for text in told] == ["a1", "all-reduce", "b2", "all-reduce"]
    assert "start 11\u202fms" in told[2]


def test_a_click_keeps_what_is_told_until_escape(page: Chrome) -> None:
    from selenium.webdriver import ActionChains

    point_at(page, "canvas.body", 300, 32)
    ActionChains(page, duration=0).click().perform()
    ActionChains(page, duration=0).move_by_offset(-230, 0).perform()
    assert bubble(page).splitlines()[0] == "a1"
    assert "on the critical path" in str(page.find_element("css selector", ".live").get_attribute("textContent"))
    press(page, "\ue00c")
    assert bubble(page) == ""


def test_a_wait_says_whom_it_is_for_and_is_hatched(page: Chrome) -> None:
    assert pixels(page)["colours"] > 5
    width = page.find_element("css selector", "canvas.body").size["width"]
    point_at(page, "canvas.body", 176 + (width - 176) * 17 // 22, 32)
    told = bubble(page).splitlines()
    assert told[told.index("kind") + 1] == "waits for a late participant"
    assert told[told.index("waited for") + 1].startswith("rank 1, device 0")
    shade = page.execute_script(
        "const c = document.querySelector('canvas.body'), r = c.width / c.clientWidth;"
        "const row = c.getContext('2d').getImageData(arguments[0] * r, 36 * r, 60 * r, 1).data;"
        "return new Set(Array.from({length: row.length / 4}, (_, i) => row.slice(4 * i, 4 * i + 3).join())).size",
        176 + (width - 176) * 17 // 22,
    )
    assert shade > 2


def test_it_zooms_from_the_window_to_a_nanosecond(page: Chrome) -> None:
    press(page, *"+" * 45)
    ends = page.execute_script(
        "const g = CanvasRenderingContext2D.prototype, fill = g.fillText; const told = [];"
        "g.fillText = function (text, ...where) { told.push(text); fill.call(this, text, ...where); };"
        "document.getElementById('theme').click(); g.fillText = fill; return told"
    )
    page.find_element("id", "theme").click()
    ticks = [text for text in ends if text.endswith("\u202fms")]
    moments = [round(float(text.removesuffix("\u202fms")) * 1_000_000) for text in ticks]
    assert len(moments) > 3
    assert {after - before for before, after in pairwise(moments)} <= {1, 2}


def test_every_link_leads_somewhere_and_every_control_has_a_name(page: Chrome) -> None:
    links = page.execute_script(
        "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.hash.slice(1)))"
        ".map(a => a.hash)"
    )
    assert links == []
    unnamed = page.execute_script(
        "return [...document.querySelectorAll('button, a')].filter(e => !(e.textContent.trim() || e.ariaLabel)).length"
    )
    assert unnamed == 0


def test_the_first_screen_holds_the_verdict_its_evidence_and_what_to_do(page: Chrome) -> None:
    page.execute_script("window.scrollTo(0, 0)")
    tall = page.execute_script("return window.innerHeight")
    for selector in (".verdict", ".evidence", ".savings li:nth-child(3)", ".loudest"):
        box = page.find_element("css selector", selector).rect
        assert box["y"] + box["height"] <= tall, selector
    assert "Evidence: good." in page.find_element("css selector", ".evidence").text


@pytest.mark.parametrize("width", [1400, 800])
def test_the_page_is_no_wider_than_the_window(page: Chrome, width: int) -> None:
    before = page.get_window_size()
    page.set_window_size(width, 900)
    wide = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    page.set_window_size(before["width"], before["height"])
    assert wide[0] <= wide[1]


def test_the_keyboard_reaches_everything_in_order(page: Chrome) -> None:
    from selenium.webdriver import ActionChains

    page.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    ActionChains(page).send_keys("\ue004").perform()
    assert page.execute_script("return document.activeElement.className") == "skip"
    reached = []
    for _ in range(60):
        ActionChains(page).send_keys("\ue004").perform()
        reached.append(page.execute_script("return document.activeElement.className || document.activeElement.id"))
    assert reached.index("theme") < reached.index("figure") < reached.index("timeline")


def test_a_printed_page_is_light_whatever_the_screen(page: Chrome) -> None:
    page.find_element("id", "theme").click()
    dark = pixels(page)["paper"]
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert pixels(page)["paper"] == 0xFFFFFF
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert pixels(page)["paper"] == dark
    page.find_element("id", "theme").click()


def test_a_stretch_of_a_table_can_be_shown(page: Chrome) -> None:
    before = pixels(page)["sum"]
    button = page.find_element("css selector", "button.jump[data-start='21000000']")
    page.execute_script("arguments[0].click()", button)
    assert pixels(page)["sum"] != before
    assert page.execute_script("return document.activeElement.className") == "timeline"


def test_the_theme_can_be_changed(page: Chrome) -> None:
    ask = "return getComputedStyle(document.body).backgroundColor"
    before, painted = page.execute_script(ask), pixels(page)["paper"]
    page.find_element("id", "theme").click()
    assert page.execute_script(ask) != before
    assert pixels(page)["paper"] != painted
    page.find_element("id", "theme").click()
    assert page.execute_script(ask) == before


def test_a_definition_shows_on_focus(page: Chrome) -> None:
    figure = page.find_element("css selector", ".verdict .figure")
    tip = figure.find_element("css selector", ".tip")
    assert not tip.is_displayed()
    page.execute_script("arguments[0].focus()", figure)
    assert tip.is_displayed()
    assert tip.text.startswith("measured")


def test_hostile_names_do_nothing(chrome: Chrome, tmp_path: Path) -> None:
    page = shown(chrome, hostile(), tmp_path)
    point_at(page, "canvas.body", 500, 32)
    press(page, ".", ".", "+")
    assert page.execute_script("return window.harmed") is None
    assert page.execute_script("return document.images.length") == 0
    assert errors(page) == []


def test_each_of_two_runs_has_its_own_timeline(chrome: Chrome, tmp_path: Path) -> None:
    parts = [Part("first", two_rounds().run()), Part("second", hostile().run())]
    chrome.get(write_comparison(parts, tmp_path / "both.html").as_uri())
    first, second = pixels(chrome, "#run0-tl canvas.body"), pixels(chrome, "#run1-tl canvas.body")
    assert first["drawn"] > 0.05
    assert second["drawn"] > 0.01
    press(chrome, "+")
    assert pixels(chrome, "#run0-tl canvas.body")["sum"] != first["sum"]
    assert pixels(chrome, "#run1-tl canvas.body")["sum"] == second["sum"]


def test_every_worker_has_its_place_on_the_heat_map(chrome: Chrome, tmp_path: Path) -> None:
    table = written(two_stages(slow=5_000_000), tmp_path / "job.csv")
    chrome.get(traceflow.open(table).report(tmp_path / "report.html").as_uri())
    assert errors(chrome) == []
    cells = chrome.find_elements("css selector", ".heat rect")
    places = {(cell.location["x"], cell.location["y"]) for cell in cells if cell.is_displayed()}
    assert len(cells) == len(places) == 4
    slow = chrome.find_elements("css selector", ".heat .slower.deep rect")
    assert [str(cell.get_attribute("textContent"))[:6] for cell in slow] == ["rank 3"]
    painted = {cell.value_of_css_property("fill") for cell in slow}
    assert painted.isdisjoint(cell.value_of_css_property("fill") for cell in cells if cell not in slow)


def test_live_bytes_are_drawn_as_high_as_they_are(chrome: Chrome, tmp_path: Path) -> None:
    program = small()
    run = Run(Evidence(executing(program), {7: program}), ("a",))
    chrome.get(write_report(run, tmp_path / "report.html").as_uri())
    heights = chrome.execute_script(
        "return [...document.querySelectorAll('svg.in-use rect')].map(r => r.getBoundingClientRect().height)"
    )
    assert [round(height / heights[1], 3) for height in heights] == [0.909, 1, 0.818, 0.727, 0.727]
    assert heights[1] > 50
    assert errors(chrome) == []


def test_devices_that_hold_the_same_are_painted_alike(chrome: Chrome, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from test_sharding_report import run_of

    run = run_of("weight_gathered_over_another_axis", "all-gather")
    chrome.get(write_report(run, tmp_path / "report.html").as_uri())
    assert errors(chrome) == []
    picture = chrome.find_element("css selector", "figure.mesh")
    fills = [rect.value_of_css_property("fill") for rect in picture.find_elements("css selector", "rect")]
    assert len(fills) == 8
    assert len(set(fills[:4])) == len(set(fills[4:])) == 1
    assert fills[0] != fills[4]
    words = picture.find_element("css selector", "details")
    words.find_element("css selector", "summary").send_keys("\n")
    assert [row.text for row in words.find_elements("css selector", "tbody tr")] == [
        "#0 0:512, : 0-3",
        "#1 512:1024, : 4-7",
    ]
