"""How every picture is written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ddpsim.files import write_whole


def save(figure: Figure, path: str | Path) -> None:
    """Write `figure` to `path` as PNG without software or time in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_whole(path, buffer.getvalue())


def label_decades(axis: Any) -> None:
    """Label a logarithmic axis at 1, 2 and 5 of each power of ten, in plain numbers that do not overlap."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
