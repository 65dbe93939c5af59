"""The axis of `--plot` of sweeps and comparisons: numbers ascend whatever line has them first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpsim.plots import charts, plot_steps

TIMES = (0.1, 0.09, 0.12)


@pytest.mark.parametrize(
    ("lines", "ticks"),
    [
        ({"a": [("4", TIMES), ("2", TIMES)], "b": [("1", TIMES), ("16", TIMES)]}, ["1", "2", "4", "16"]),
        ({"a": [("default", TIMES), ("25", TIMES)], "b": [("1", TIMES)]}, ["default", "25", "1"]),
    ],
)
def test_node_counts_ascend(lines: Any, ticks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(charts, "save", lambda figure, path: drawn.append(figure))
    plot_steps({"model": lines}, tmp_path / "x.png", "nodes")
    [axes] = drawn[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ticks
    for line in axes.lines:
        places = list(line.get_xdata())
        assert places == sorted(places)
