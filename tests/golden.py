"""Expected outputs kept as files: `golden` compares with them, and --update-golden writes them anew to be reviewed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sources import ROOT

FOLDER = ROOT / "tests" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the expected outputs anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the expected one of that name."""

    def check(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
