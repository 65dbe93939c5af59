"""Tables, and the short card that a notebook shows for an object."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ddpsim.common.markup.templates import Markup, call_macro

SCREEN = 20
"""Rows that a notebook shows; chosen by hand, for one screen."""


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
    left = 0 if most is None else max(0, len(rows) - most)
    return call_macro("parts.html", "table", header, rows[:most], words, left)


def summary_card(title: str, facts: Mapping[str, str]) -> Markup:
    """Return what a notebook shows for an object: its title, and one line a fact."""
    return call_macro("parts.html", "card", title, facts)
