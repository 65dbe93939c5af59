"""`--plot` of `ddpsim sweep` and `ddpsim compare`: what is drawn are the rows that are printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpsim.report import plots

COMMANDS: dict[str, tuple[str, ...]] = {
    "sweep": ("sweep", "--topology", "dgx-1v", "--nodes", "1,2", "--bucket-cap-mb", "1,5"),
    "compare": ("compare", "--topology", "dgx-1v", "--topology", "dgx-a100", "--nodes", "1,2"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_row_is_drawn_with_its_band(
    ddpsim: Callable[..., Any], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "plot_steps", lambda panels, path, varied: drawn.append(panels))
    result = ddpsim(*COMMANDS[command], "--workload", tiny, "--plot", tmp_path / "x.png", "--json")
    steps = sorted(step for lines in drawn[0].values() for line in lines.values() for _, step in line)
    keys = ("iteration_s", "iteration_low_s", "iteration_high_s")
    assert steps == sorted(tuple(row[key] for key in keys) for row in json.loads(result.out)["rows"])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_picture_is_a_png(ddpsim: Callable[..., Any], tiny: Path, tmp_path: Path, command: str) -> None:
    path = tmp_path / "x.png"
    result = ddpsim(*COMMANDS[command], "--workload", tiny, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {path}" in result.err
