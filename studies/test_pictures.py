"""Pictures that only studies draw are PNG of a readable size, and the same each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from studies.paper.panels import Box, Line, Panel, Stack, plot_panels
from studies.validation.plot_errors import plot_errors
from tests.pictures import check_picture

STACKS = [Stack("x", [("f", 0.4), ("b", 0.6)]), Stack("y", [("f", 0.4)], (0.3, 0.6), 0.5)]
PANELS = (
    Panel("lines", "GPUs", "s", [Line("a", [1, 8], [1, 2], ([0, 1], [2, 3])), Line("b", [8], [1], reported=True)],
          xscale="log2", yscale="log", ticks=[(1, "1"), (8, "8")]),
    Panel("stacks", "", "share", stacks=STACKS),
    Panel("boxes", "MB", "s", boxes=[Box("0", (1, 2, 3, 4, 5)), Box("5", (1, 1.5, 2, 2.5, 3), best=True)]),
)  # fmt: skip
PICTURES: dict[str, Callable[[Path], None]] = {
    "errors": lambda path: plot_errors({"lab": [(0.1, 0.102, 0.01), (2.0, 1.9, 0.0)]}, path),
    "panels": lambda path: plot_panels(PANELS, path),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_png_of_a_readable_size_and_repeat(tmp_path: Path, name: str) -> None:
    check_picture(PICTURES[name], tmp_path)
