"""A page as a reader of HTML sees it: elements that close, tables as text, addresses that it names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Element:
    """One element with its attributes, children and text in order."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Return every element of a tag below this one, with these attributes."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if child.tag == tag and all(child.attributes.get(k.rstrip("_")) == v for k, v in attributes.items()):
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """All text below this element."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, dict(attrs))
        self._open[-1].children.append(made)
        if tag not in VOID:
            self._open.append(made)

    def handle_endtag(self, tag: str) -> None:
        closed = self._open.pop()
        assert closed.tag == tag, f"</{tag}> closes <{closed.tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def close(self) -> None:
        super().close()
        assert self._open == [self.root], [each.tag for each in self._open]


def parse(page: str) -> Element:
    """Return the page's root; every element that opens has to close."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.root


def data(page: str) -> dict[str, Any]:
    """Return the document that the page holds."""
    [script] = parse(page).all("script", id="report")
    return json.loads(script.text)


def sections(page: str) -> dict[str, Element]:
    """Return the parts of a page by their headings."""
    root = parse(page)
    parts = [part for tag in ("section", "details") for part in root.all(tag, class_="part")]
    return {part.all("h2")[0].text: part for part in parts}


def table(part: Element) -> list[dict[str, str]]:
    """Return the first table below an element, a dictionary a row."""
    found = part.all("table")[0]
    header = [cell.text for cell in found.all("thead")[0].all("th")]
    rows = [[c.text for c in row.children if isinstance(c, Element)] for row in found.all("tbody")[0].all("tr")]
    return [dict(zip(header, row, strict=True)) for row in rows]


def addresses(page: str) -> list[str]:
    """Return what the page names for a browser to fetch or go to."""
    root = parse(page)
    everything = [e for tag in ("a", "link", "script", "img", "iframe", "form", "use", "image") for e in root.all(tag)]
    names = ("href", "src", "action", "data")
    return [str(e.attributes[name]) for e in everything for name in names if e.attributes.get(name)]
