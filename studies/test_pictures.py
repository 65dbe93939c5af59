"""Pictures that only studies draw are PNG of a readable size, and the same each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.report.charts import Axis, Chart
from ddpsim.report.plots import save_charts
from studies.paper.panels import LATENCY, LAYOUT, curve, gpus_axis, reported
from studies.validation.plot_errors import plot_errors
from tests.pictures import check_picture

PANELS = (
    Chart("lines", gpus_axis([1, 8]), Axis("", "s", scale="log"),
          (curve("a", [1, 8], [1, 2], ([0.5, 1], [2, 3])), reported("b", 8, 1))),
    Chart("steps", Axis("iteration"), LATENCY, (curve("c", range(50), range(50)),)),
)  # fmt: skip
PICTURES: dict[str, Callable[[Path], None]] = {
    "errors": lambda path: plot_errors({"lab": [(0.1, 0.102, 0.01), (2.0, 1.9, 0.0)]}, path),
    "panels": lambda path: save_charts(PANELS, path, LAYOUT),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_png_of_a_readable_size_and_repeat(tmp_path: Path, name: str) -> None:
    check_picture(PICTURES[name], tmp_path)
