"""Pages as a browser takes them apart, for tests of reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from traceflow.report.html import render_report
from traceflow.report.subject import WHOLE, Asked
from traceflow.run import Run

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Node:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What it says at first sight, without tips, with white space as a browser shows it."""
        return " ".join("".join(self._words()).split())

    @property
    def classes(self) -> set[str]:
        """Its classes."""
        return set(self.attributes.get("class", "").split())

    def all(self, tag: str, of_class: str | None = None) -> list[Node]:
        """Every element of a kind below this one, in order."""
        found = [node for node in self._below() if node.tag == tag]
        return [node for node in found if of_class is None or of_class in node.classes]

    def _below(self) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child._below()

    def _words(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            elif "tip" not in child.classes:
                yield from child._words()


class Page(HTMLParser):
    """Parses a page into nodes; every element must be closed by its own end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert [node.tag for node in self.open] == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def page_of(run: Run, asked: Asked = WHOLE) -> Node:
    """The parsed report of a run."""
    return Page(render_report(run, asked)).root


def section(page: Node, name: str) -> Node:
    """One section of the first run."""
    return next(node for node in page.all("section") if node.attributes["id"] == f"run0-{name}")


def rows(table: Node) -> list[list[str]]:
    """The cells of a table's body."""
    return [[cell.text for cell in row.all("td")] for row in table.all("tbody")[0].all("tr")]


def table_called(page: Node, title: str) -> Node:
    """The table with a caption."""
    return next(t for t in page.all("table") if [c.text for c in t.all("caption")] == [title])


def timeline_of(page: Node) -> dict[str, Any]:
    """What the script draws."""
    (data,) = [s for s in page.all("script") if s.attributes.get("type") == "application/json"]
    parsed: dict[str, Any] = json.loads(data.text)
    return parsed
