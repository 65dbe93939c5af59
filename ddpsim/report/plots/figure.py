"""How every picture is written, with its legends and labels."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from ddpsim.common.files import write_whole

MARKERS = "os^Dv<>Pph"
"""Of groups that one picture holds, by number."""

_PAGE_COLOURS = {
    **{to_hex(f"C{number}"): f"var(--c{number})" for number in range(10)},
    to_hex("black"): "var(--text)", to_hex("grey"): "var(--soft)", to_hex("0.4"): "var(--soft)",
    to_hex("0.85"): "var(--line)", "#b0b0b0": "var(--soft)",
}  # fmt: skip
"""By colours of a picture, those of a page's style sheet, which are others in the dark."""

_COLOUR, _FONT = re.compile(r"#[0-9a-f]{6}\b(?=;|$)"), re.compile(r" font-family: [^;]+;")
_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"


def save(figure: Figure, path: str | Path) -> None:
    """Write `figure` to `path` as PNG without software or time in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_whole(path, buffer.getvalue())


def svg_of(figure: Figure, label: str) -> str:
    """Return `figure` as an SVG element of a page, in its colours, called `label` by readers that hear it.

    What an artist's `gid` holds, a JSON list of texts, is told on hover of its marks.
    """
    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ddpsim"}):
        # A name of metadata without a value is left out: the page says elsewhere who made it.
        unsaid = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=unsaid)
    root = ElementTree.fromstring(buffer.getvalue())
    # The style in it would be for everything in the page.
    root.remove(root[0])
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.text, element.tail = (text and text.strip() for text in (element.text, element.tail))
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            coloured = _COLOUR.sub(lambda found: _PAGE_COLOURS.get(found[0], found[0]), value)
            element.set(name.removeprefix(_XLINK), _FONT.sub("", coloured))
    for group in root.iter("g"):
        hover_texts = group.attrib.pop("id", "")
        for mark, text in zip(
            group.iter("use"), json.loads(hover_texts) if hover_texts.startswith("[") else (), strict=False
        ):
            ElementTree.SubElement(mark, "title").text = text
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def legend_beside(axes: Any, **style: Any) -> None:
    """Draw the legend to the right of `axes`, where it covers nothing."""
    axes.legend(**{"fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0, **style})


def legend_below(axes: Any, lines: int = 1, **style: Any) -> None:
    """Draw the legend under `axes` and its labels of so many lines, where it covers nothing."""
    # In points, since labels of an axis take as many however high it is.
    below = ScaledTranslation(0, -(26 + 12 * lines) / 72, axes.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": axes.transAxes + below}
    axes.legend(**{"fontsize": 8, "borderaxespad": 0.0, **place, **style})


def label_logarithms(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis between its ends as `log_ticks` says, in plain numbers."""
    axis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
    if len(decades(low, high)) < len(_DIGITS):
        axis.set_minor_locator(NullLocator())  # lines of 3 and 4 would stand between labels of other steps


_DIGITS = (1, 2, 5)
"""Of each power of ten, what is labelled."""

_MOST_DECADES_IN_FULL = 3
"""Powers of ten up to which 2 and 5 of each are labelled too."""


def decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each power of ten between the ends; powers alone where those are many.

    >>> decades(3, 60), decades(0.5, 5e4)
    ([5.0, 10.0, 20.0, 50.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = _DIGITS if math.log10(high / low) <= _MOST_DECADES_IN_FULL else (1,)
    return [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]


def log_ticks(low: float, high: float) -> list[float]:
    """Return `decades`, or round steps between the ends where fewer than three of those lie there.

    >>> log_ticks(100, 130)
    [100.0, 110.0, 120.0, 130.0]
    """
    found = decades(low, high)
    return found if len(found) >= 3 else [value for value in round_steps(low, high) if low <= value <= high]


def round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers from below `low` to above `high`.

    >>> round_steps(8, 31)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    spread = high - low or abs(high) * 0.1 or 1.0
    low, high = low - 0.04 * spread if low > 0.04 * spread else min(low, 0.0), high + 0.04 * spread
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, last + 1)]
