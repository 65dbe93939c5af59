"""Tables, and the short card that a notebook shows for an object."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from ddpsim.markup.elements import Markup, element, joined

_LONG = 48
"""Characters from which the text of a cell may be broken into lines; chosen by hand."""


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, words: Container[int] = (0,), caption: str = ""
) -> Markup:
    """Return a table; the columns in `words` are text, the others numbers, which end at the right.

    The first cell of a row is its heading, for readers that hear the table.
    """
    named = [element("caption", caption)] if caption else []
    head = element("thead", element("tr", *(_heading(text, n, words) for n, text in enumerate(header))))
    body = element("tbody", *(_row(row, words) for row in rows))
    return element("table", *named, head, body)


def summary_card(title: str, facts: Mapping[str, str]) -> Markup:
    """Return what a notebook shows for an object: its title, and one line a fact."""
    lines = (
        element("tr", element("th", name, style="text-align:left"), element("td", fact)) for name, fact in facts.items()
    )
    return element("div", element("strong", title), element("table", element("tbody", joined(lines))))


def _heading(text: str, number: int, words: Container[int]) -> Markup:
    return element("th", text, scope="col", class_="words" if number in words else None)


def _row(row: Sequence[str], words: Container[int]) -> Markup:
    return element("tr", *(_cell(text, number, number in words) for number, text in enumerate(row)))


def _cell(text: str, number: int, is_words: bool) -> Markup:
    classes = "words long" if is_words and len(text) > _LONG else "words" if is_words else None
    return element("td" if number else "th", text, class_=classes, scope=None if number else "row")
