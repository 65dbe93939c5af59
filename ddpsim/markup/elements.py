"""Elements of HTML and SVG as text that is told from text that a user gave."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is HTML already: elements take it as it is, and escape all other text."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """Return one element with its end tag, which HTML and SVG both take.

    Args:
        tag: name of the element.
        children: escaped, unless they are `Markup`.
        attributes: an underscore at the end is dropped, others are dashes (`class_`, `aria_label`); True is an
            attribute without a value, None and False are none.
    """
    given = "".join(
        _attribute(name, value) for name, value in attributes.items() if value is not None and value is not False
    )
    return Markup(f"<{tag}{given}>{joined(children)}</{tag}>")


def joined(children: Iterable[str]) -> Markup:
    """Return the children one after another, escaped unless they are `Markup`."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def _attribute(name: str, value: object) -> str:
    plain = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {plain}"
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {plain}="{html.escape(shown)}"'
