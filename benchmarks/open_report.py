"""How long a browser takes to open the report on a trace, and to draw it anew; needs Chromium and Playwright.

Opening lasts from the start of the navigation until the first frame after the page's own script has drawn.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUNS = 5
KEYS = ("+", "+", "d", "-", "0")
OPENED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
REDRAWN = """(key) => new Promise((done) => {
  const root = document.querySelector('.timeline'), began = performance.now();
  root.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
})"""


def main(trace: str) -> None:
    """Write the report on `trace`, open it several times in one browser, and print JSON."""
    import traceflow

    with tempfile.TemporaryDirectory() as folder:
        page = traceflow.open(trace).report(Path(folder) / "report.html")
        print(json.dumps({"page_bytes": page.stat().st_size, **_measured(page.as_uri())}))


def _measured(address: str) -> dict[str, object]:
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        opened_ms = [_opened_ms(tab, address) for _ in range(RUNS)]
        redrawn_ms = [tab.evaluate(REDRAWN, key) for key in KEYS]
        browser.close()
    return {
        "opened_ms": round(median(opened_ms)),
        "slowest_ms": round(max(opened_ms)),
        "redrawn_ms": round(median(redrawn_ms)),
        "complaints": complaints,
    }


def _opened_ms(tab: Page, address: str) -> float:
    tab.goto("about:blank")
    tab.goto(address)
    return float(tab.evaluate(OPENED))


if __name__ == "__main__":
    main(sys.argv[1])
