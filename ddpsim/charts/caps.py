"""The step over the bucket cap, beside torch's default's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from ddpsim.charts.model import Axis, Chart, ChartLine, ChartPoint

LEAST_CAP = 0.1
"""MiB at which a cap of 0, one bucket a gradient, is drawn on an axis of logarithms."""
_WIDE = 70
"""Characters of a line of the key."""
_APART = math.log(1.07)
"""Between the marks of neighbouring lines at one cap."""


@dataclass(frozen=True, slots=True)
class CapCurve:
    """The iteration over the bucket cap, of one machine and node count.

    Attributes:
        sweep: (cap in MiB, iteration in seconds), ascending.
        default_s: the iteration under torch's default.
        advised: where what is advised lies, in the same units.
        band: 80 % band of what is advised, over the default's; None where the default is advised or nobody asked.
        paste: what is advised and what is worth a trial, in words; empty is nothing.
    """

    sweep: Sequence[tuple[float, float]]
    default_s: float
    advised: tuple[float, float]
    band: tuple[float, float] | None = None
    paste: str = ""


def cap_charts(panels: Mapping[str, Mapping[str, CapCurve]]) -> tuple[Chart, ...]:
    """Return iteration latency over torch's default's against bucket cap: a chart a title, a line a label.

    Marks of one cap stand beside each other, so that those that coincide all show; the legends say what is 1.
    """
    x = Axis("bucket cap", "MiB", scale="log")
    y = Axis("step over the default's", level=1.0)
    return tuple(Chart(title, x, y, _lines(curves), key=_key(curves), apart=_APART) for title, curves in panels.items())


def _key(curves: Mapping[str, CapCurve]) -> str:
    """Return what the star is, and below it what to paste for each line, in lines that a picture has room for."""
    said = [f"{name}: {curve.paste}" for name, curve in curves.items() if curve.paste]
    return "\n".join(
        ["star: advised (a list at its mean bucket)", *(part for line in said for part in wrap(line, _WIDE))]
    )


def _lines(curves: Mapping[str, CapCurve]) -> tuple[ChartLine, ...]:
    lines = []
    for name, curve in curves.items():
        label = f"{name}: default {curve.default_s * 1e3:.4g} ms"
        points = tuple(ChartPoint(max(cap, LEAST_CAP), seconds / curve.default_s) for cap, seconds in curve.sweep)
        cap, seconds = curve.advised
        star = ChartPoint(max(cap, LEAST_CAP), seconds / curve.default_s, *(curve.band or (None, None)))
        lines += [ChartLine(label, points), ChartLine(f"{name}, advised", (star,), "star", label)]
    return tuple(lines)
