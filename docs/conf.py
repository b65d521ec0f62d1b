"""How the documentation is built. Warnings are errors: see `make docs`."""

from __future__ import annotations

import re
from importlib import metadata
from typing import TYPE_CHECKING

from traceflow.codes import CODES, Code

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "traceflow"
copyright = "the traceflow authors"  # noqa: A001  # the name that Sphinx reads
release = metadata.version("traceflow-ml")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

default_role = "literal"  # docstrings mark code as Markdown does, with single backticks
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
add_module_names = False

html_theme = "furo"
html_title = "traceflow"
html_copy_source = False


def code_section(code: Code) -> str:
    """One code, as a section that `codes.html#tf101` leads to."""
    said = (
        (code.explanation, ""),
        (code.formula, "*Formula:* "),
        (code.example, "*Example:* "),
        (code.remedy, "*What to do:* "),
    )
    paragraphs = "\n\n".join(f"{label}{text}" for text, label in said if text)
    return f"({code.code.lower()})=\n### {code.code}: {code.title}\n\n{paragraphs}\n\n"


def sections_of(family: re.Match[str]) -> str:
    """All codes of a family, such as TF1."""
    return "".join(code_section(code) for code in CODES.values() if code.code.startswith(family[1]))


def put_codes(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put the registry into the places that docs/codes.md keeps for it, one per family."""
    if page == "codes":
        source[0] = re.sub(r"<!-- (TF\d) -->", sections_of, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", put_codes)
