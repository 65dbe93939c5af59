"""The templates of pages, and how they are filled in: text is escaped, `Markup` is not.

`table` is a table of rows, `summary_card` the short card that a notebook shows for an object.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

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


__all__ = ["Markup", "call_macro", "render_template"]


def render_template(name: str, **values: Any) -> Markup:
    """Return a template of `pages` with these values; one that a template needs and is not given is an error."""
    return Markup(_environment().get_template(name).render(values))


def call_macro(template: str, name: str, *values: Any) -> Markup:
    """Return what a macro of a template makes of these values."""
    return Markup(getattr(_environment().get_template(template).module, name)(*values))


@cache
def _environment() -> Environment:
    # Jinja2 takes as long to import as a small prediction, and most commands write no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ddpsim.common.markup", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made
