"""How every picture is written."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from ddpsim.files import write_whole


def save(figure: Figure, path: str | Path) -> None:
    """Write `figure` to `path` as PNG without software or time in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_whole(path, buffer.getvalue())
