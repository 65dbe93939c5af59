"""XML as lists and mappings, which mutate as a document does, and back."""

from __future__ import annotations

from random import Random
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from studies.fuzz.values import DEEP


def parsed(text: str) -> list[Any]:
    """Return an element as `[tag, attributes, children]`."""
    return _tree(ElementTree.fromstring(text))


def _tree(element: ElementTree.Element) -> list[Any]:
    return [element.tag, dict(element.attrib), [_tree(child) for child in element]]


def xml_bytes(tree: object, random: Random) -> bytes:
    """Return what is left of such a list as XML."""
    return _written(tree, random).encode("utf-8", "surrogatepass")


def _written(tree: object, random: Random) -> str:
    match tree:
        case [str(tag), dict(attributes), list(children)]:
            inside = "".join(_written(child, random) for child in children)
            named = "".join(f" {key}={quoteattr(str(value))}" for key, value in attributes.items())
            return f"<{tag}{named}>{inside}</{tag}>"
        case _ if tree == DEEP:
            levels = random.choice((30, 100, 100_000))
            return "<pci busid='0:1' class='0x060400'>" * levels + "</pci>" * levels
        case list():
            return "".join(_written(each, random) for each in tree)
        case _:
            return escape(str(tree))
