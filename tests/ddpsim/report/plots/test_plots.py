from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ddpsim.collectives.trees import double_binary_tree
from ddpsim.report.charts import Axis, BoxBar, Chart, StackedBar
from ddpsim.report.charts.timeline import timeline_from_trace
from ddpsim.report.plots import (
    CapCurve,
    plot_caps,
    plot_lanes,
    plot_sizes,
    plot_steps,
    plot_timeline,
    plot_topology,
    plot_validation,
    save_charts,
)
from ddpsim.topology.spec import load_topology
from tests.pictures import check_picture
from tests.traces import example_trace

RING = ("gpu0", "gpu2", "gpu1", "gpu3", "gpu0")
CAPS = CapCurve([(1, 0.1), (5, 0.09), (25, 0.12)], 0.11, (25, 0.11))
STACKS = (StackedBar("x", (("f", 0.4), ("b", 0.6))), StackedBar("y", (("f", 0.4),), 0.3, 0.6, 0.5))
BARS = Chart("bars", Axis(""), Axis("share"), bars=STACKS)
BOXES = Chart("boxes", Axis("MB"), Axis("", "s"), boxes=(BoxBar("5", (1, 1.5, 2, 2.5, 3), best=True),))
BAND = (0.1, 0.09, 0.12)
STEPS = [("1", BAND), ("2", (0.2, 0.19, 0.24))]

PICTURES: dict[str, Callable[[Path], None]] = {
    "caps": lambda path: plot_caps({"m": dict.fromkeys("abc", CAPS), "one": {"a": CAPS}}, path),
    "sizes": lambda path: plot_sizes({"predicted": [(8, 10.0), (1 << 20, 90.0)], "measured": [(64, 11.0)]}, path),
    "steps": lambda path: plot_steps({"m": dict.fromkeys("abc", STEPS), "one": {"a": STEPS}}, path, "nodes"),
    "validation": lambda path: plot_validation({"lab": [(0.1, 0.102), (2.0, 1.9)]}, path),
    "lanes": lambda path: plot_lanes(
        [timeline_from_trace(example_trace(n), 0.1, f"{n} buckets") for n in (2, 3)], path
    ),
    "bars": lambda path: save_charts([BARS, BOXES], path),
    "timeline": lambda path: plot_timeline({"predicted": example_trace(2), "measured": example_trace(3)}, path),
    "machine": lambda path: plot_topology(load_topology("dgx-1v"), path),
    "rings": lambda path: plot_topology(load_topology("hgx-a100-4"), path, {"hgx-a100-4": {"one node": [RING] * 9}}),
    "rings between NICs": lambda path: plot_topology(
        load_topology("dgx-1v"),
        path,
        {"dgx-1v": {"several nodes": [("nic0", "gpu0", "gpu1", "nic0"), ("nic0", "gpu1", "gpu0", "nic3")]}},
        [tree.parents for tree in double_binary_tree(5)],
    ),
    "trees too large": lambda path: plot_topology(
        load_topology("dgx-1v"), path, None, [tree.parents for tree in double_binary_tree(100)]
    ),
    "rails": lambda path: plot_topology(load_topology("dgx-a100"), path),
    "many processes": lambda path: plot_topology(load_topology("loopback"), path),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_png_of_a_readable_size_and_repeat(tmp_path: Path, name: str) -> None:
    check_picture(PICTURES[name], tmp_path)


@pytest.mark.parametrize(
    ("module", "name"), [("charts", "caps"), ("charts", "sizes"), ("charts", "validation"),
                         ("timeline", "timeline")]
)  # fmt: skip
def test_legends_cover_no_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    figure = drawn(monkeypatch, module, lambda: PICTURES[name](tmp_path / "x.png"))
    panels = [axes.get_window_extent() for axes in figure.axes]
    legends = [axes.get_legend().get_window_extent() for axes in figure.axes]
    assert not any(legend.overlaps(panel) for legend in legends for panel in panels)


def test_equal_curves_all_show_and_panels_share_a_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = CapCurve([(1, 0.3), (25, 0.2)], 0.2, (25, 0.2))
    panels = {"m": dict.fromkeys("abc", CAPS), "one": {"a": slower}}
    figure = drawn(monkeypatch, "charts", lambda: plot_caps(panels, tmp_path / "x.png"))
    first, second = figure.axes
    assert first.get_ylim() == second.get_ylim()
    lines = [line for line in first.lines if ": default 110 ms" in str(line.get_label())]
    assert len({float(line.get_xdata()[0]) for line in lines}) == 3
    assert {tuple(line.get_ydata()) for line in lines} == {(0.1 / 0.11, 0.09 / 0.11, 0.12 / 0.11)}


def test_steps_show_side_by_side_with_their_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = {"m": dict.fromkeys("ab", STEPS), "one": {"a": STEPS[1:]}}
    figure = drawn(monkeypatch, "charts", lambda: plot_steps(panels, tmp_path / "x.png", "nodes"))
    first, second = figure.axes
    assert first.get_ylim() == second.get_ylim()
    assert [text.get_text() for text in first.get_xticklabels()] == ["1", "2"]
    (left, right) = (container[0] for container in first.containers)
    assert list(left.get_ydata()) == list(right.get_ydata()) == pytest.approx([100, 200])
    assert list(left.get_xdata()) == [place - 0.25 for place in right.get_xdata()]
    ends = first.containers[0][2][0].get_segments()
    assert [tuple(point[1] for point in segment) for segment in ends] == [
        pytest.approx((90, 120)),
        pytest.approx((190, 240)),
    ]


@pytest.mark.parametrize(
    ("lines", "ticks"),
    [
        ({"a": [("4", BAND), ("2", BAND)], "b": [("1", BAND), ("16", BAND)]}, ["1", "2", "4", "16"]),
        ({"a": [("default", BAND), ("25", BAND)], "b": [("1", BAND)]}, ["default", "25", "1"]),
    ],
)
def test_numbers_ascend_whatever_line_has_them_first(
    lines: Any, ticks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [axes] = drawn(monkeypatch, "charts", lambda: plot_steps({"model": lines}, tmp_path / "x.png", "nodes")).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ticks
    for line in axes.lines:
        places = list(line.get_xdata())
        assert places == sorted(places)


def test_an_axis_that_panels_share_holds_what_every_panel_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panels = {"short": {"a": STEPS}, "long": {"a": [("1", (5.0, 4.0, 6.0))]}}
    figure = drawn(monkeypatch, "charts", lambda: plot_steps(panels, tmp_path / "x.png", "nodes"))
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low < 90 < 6000 < high
        assert axes.get_xlim() == (-0.5, axes.get_xticks()[-1] + 0.5)


def drawn(monkeypatch: pytest.MonkeyPatch, module: str, draw: Callable[[], None]) -> Figure:
    """Return the figure that `draw` would have written, laid out."""
    kept: list[Figure] = []
    monkeypatch.setattr(f"ddpsim.report.plots.{module}.save", lambda figure, path: kept.append(figure))
    draw()
    kept[0].draw_without_rendering()
    return kept[0]
