"""How long a browser takes to open the report on a trace, and to draw it anew; needs Chromium, chromedriver and Selenium.

Opening lasts from the start of the navigation until the first frame after the page's own script has drawn.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

RUNS = 5
OPENED = """
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
"""
REDRAWN = """
const [key, done] = arguments, root = document.querySelector('.timeline'), began = performance.now();
root.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
"""


def main(trace: str) -> None:
    """Write the report on `trace`, open it several times in new tabs of one browser, and print JSON."""
    import traceflow

    with tempfile.TemporaryDirectory() as folder:
        page = traceflow.open(trace).report(Path(folder) / "report.html")
        browser = _browser(folder)
        try:
            opened_ms = [_opened(browser, page) for _ in range(RUNS)]
            redrawn_ms = [browser.execute_async_script(REDRAWN, key) for key in ("+", "+", "d", "-", "0")]
            complaints = [entry["message"] for entry in browser.get_log("browser")]
        finally:
            browser.quit()
        row = {
            "page_bytes": page.stat().st_size,
            "opened_ms": round(median(opened_ms)),
            "slowest_ms": round(max(opened_ms)),
            "redrawn_ms": round(median(redrawn_ms)),
            "complaints": complaints,
        }
    print(json.dumps(row))


def _browser(folder: str) -> Any:  # Selenium's own types differ between versions
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={folder}/profile")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def _opened(browser: Any, page: Path) -> float:
    browser.get("about:blank")
    browser.get(page.as_uri())
    return float(browser.execute_async_script(OPENED))


if __name__ == "__main__":
    main(sys.argv[1])
