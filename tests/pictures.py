"""What every picture is: a PNG of a readable size, the same each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def check_picture(draw: Callable[[Path], None], folder: Path) -> None:
    """Draw twice into `folder` and fail where the files differ, are no PNG, or are too small or large to read."""
    contents = []
    for number in (1, 2):
        path = folder / f"{number}.png"
        draw(path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].startswith(b"\x89PNG")
    width, height = (int.from_bytes(contents[0][start : start + 4], "big") for start in (16, 20))
    assert 400 < width < 3500
    assert 300 < height < 2000
