"""Tables, and the short card that a notebook shows for an object."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ddpsim.markup.elements import Markup, element, joined

SCREEN = 20
"""Rows that a notebook shows; chosen by hand, for one screen."""

_LONG = 48
"""Characters from which the text of a cell may be broken into lines; chosen by hand."""


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Container[int] = (0,), most: int | None = None
) -> Markup:
    """Return a table, whose rows begin with their heading, for readers that hear it.

    Args:
        header: headings of the columns.
        rows: their cells.
        words: numbers of the columns that hold text; the others hold numbers, which end at the right.
        most: rows that are shown, and how many more there are below them; None is all.
    """
    head = element("thead", element("tr", *(_heading(text, n, words) for n, text in enumerate(header))))
    body = element("tbody", *(_row(row, words) for row in rows[:most]))
    left = 0 if most is None else len(rows) - most
    more = [element("tfoot", element("tr", element("td", f"and {left} more", colspan=len(header))))] if left > 0 else []
    return element("table", head, body, *more)


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
