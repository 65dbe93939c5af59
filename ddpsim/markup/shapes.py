"""Shapes of an SVG picture as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ddpsim.markup.templates import Markup, call_macro


@dataclass(frozen=True, slots=True)
class SvgShape:
    """One element of a picture.

    Attributes:
        tag: `line`, `rect`, `path`, `circle`, `text`.
        attributes: of the element; None is none.
        text: inside it.
        title: what it tells on hover.
    """

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    title: str = ""


def svg(shapes: Iterable[SvgShape], label: str, **attributes: object) -> Markup:
    """Return a picture of these shapes, which is called `label` by readers that hear it.

    Args:
        shapes: from the lowest to the topmost.
        label: of the picture.
        attributes: of the `svg` element.
    """
    given = {**attributes, "role": "img", "aria-label": label}
    drawn = [replace(shape, attributes=_texts(shape.attributes)) for shape in shapes]
    return call_macro("parts.html", "svg", drawn, _texts(given))


def _texts(attributes: Mapping[str, object]) -> dict[str, str]:
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in attributes.items()
        if value is not None
    }
