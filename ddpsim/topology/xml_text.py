"""XML with line numbers, for messages that name the line; entities are refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from ddpsim.common.errors import TopologyError

_MOST_LEVELS = 60
"""Nesting of a file at most; chosen by hand, far beyond NCCL's."""
_MOST_ELEMENTS = 100_000
"""Elements of a file at most; chosen by hand, likewise."""


@dataclass(slots=True, eq=False)
class Element:
    """An element with where it starts; two that say the same are two."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Element]:
        """Yield the elements `tag` below this one, in document order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)


def read_xml(text: str, place: str) -> Element:
    """Return the root element of `text`.

    Raises:
        TopologyError: malformed, with line and column, or with entity declarations.
    """
    parser = expat.ParserCreate()
    root = Element("", {}, 0)
    stack, count = [root], itertools.count(1)

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        where = f"{place}: line {element.line}"
        if len(stack) > _MOST_LEVELS:
            raise TopologyError(f"nested too deep, {_MOST_LEVELS} levels at most are read", place=where)
        if next(count) > _MOST_ELEMENTS:
            raise TopologyError(f"more than {_MOST_ELEMENTS:,} elements, the most that is read", place=where)
        stack[-1].children.append(element)
        stack.append(element)

    def refuse(*_: object) -> None:
        raise TopologyError("entities are not allowed", place=f"{place}: line {parser.CurrentLineNumber}")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.strip(), True)
    except expat.ExpatError as error:
        where = f"{place}: line {error.lineno}, column {error.offset + 1}"
        raise TopologyError(f"malformed XML: {expat.errors.messages[error.code]}", place=where) from error
    return root.children[0]
