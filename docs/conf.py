"""How the documentation is built. Warnings are errors: see `make docs`."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from traceflow.codes import CODES, Code
from traceflow.schemas import KINDS, OTHERS, schema

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

smartquotes = False  # what is to be typed stands in plain text, too

html_theme = "furo"
html_title = "traceflow"
html_copy_source = False


CODE_PAGES = Path(__file__).parent / "codes"  # written anew with each build
FAMILY = re.compile(r"<!-- (TF\d) -->")


def code_page(code: Code) -> str:
    """The page of one code, which `#tf101` leads to from any other page."""
    said = (
        (code.explanation, ""),
        (code.formula, "**Formula:** "),
        (code.example, "**Example:** "),
        (f"```console\n$ {code.command}\n{fill(code.output, 80)}\n```" if code.command else "", ""),
        (code.remedy, "**What to do:** "),
    )
    paragraphs = "\n\n".join(f"{label}{text}" for text, label in said if text)
    return f"({code.code.lower()})=\n# {code.code}: {code.title}\n\n{paragraphs}\n"


def write_code_pages(_app: Sphinx) -> None:
    """One page per code; those that are up to date stay, so that they are not built again."""
    CODE_PAGES.mkdir(exist_ok=True)
    pages = {f"{name.lower()}.md": code_page(code) for name, code in CODES.items()}
    for name, text in pages.items():
        page = CODE_PAGES / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
    for stray in {path.name for path in CODE_PAGES.glob("*.md")} - pages.keys():
        (CODE_PAGES / stray).unlink()


def family_table(family: re.Match[str]) -> str:
    """All codes of a family, such as TF1, with links to their pages."""
    rows = (
        f"| [{name}](#{name.lower()}) | {code.title} |" for name, code in CODES.items() if name.startswith(family[1])
    )
    return "\n".join(("| code | means |", "|---|---|", *rows))


def kinds_table() -> str:
    """All kinds of results, with what prints them and the file of their schema."""
    rows = (f"| `{kind}` | `{schema(kind)['title']}` | `{kind}.json` |" for kind in (*KINDS, *OTHERS))
    return "\n".join(("| kind | printed by | in `traceflow/schemas/` |", "|---|---|---|", *rows))


def put_registries(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put codes, one table per family, and kinds of results into the places that pages keep for them."""
    if page == "codes":
        source[0] = FAMILY.sub(family_table, source[0])
    if page == "json":
        source[0] = source[0].replace("<!-- kinds -->", kinds_table())


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_code_pages)
    app.connect("source-read", put_registries)
