from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.collectives.trees import double_binary_tree
from ddpsim.plots import CapCurve, plot_caps, plot_errors, plot_sizes, plot_timeline, plot_topology, plot_validation
from ddpsim.topology.spec import load_topology
from tests.traces import example_trace

RING = ("gpu0", "gpu2", "gpu1", "gpu3", "gpu0")
CAPS = CapCurve([(1, 0.1), (5, 0.09), (25, 0.12)], 0.11, (25, 0.11))
PICTURES: dict[str, Callable[[Path], None]] = {
    "caps": lambda path: plot_caps({"m": dict.fromkeys("abc", CAPS), "one": {"a": CAPS}}, path),
    "sizes": lambda path: plot_sizes({"predicted": [(8, 10.0), (1 << 20, 90.0)], "measured": [(64, 11.0)]}, path),
    "validation": lambda path: plot_validation({"lab": [(0.1, 0.102), (2.0, 1.9)]}, path),
    "errors": lambda path: plot_errors({"lab": [(0.1, 0.102, 0.01), (2.0, 1.9, 0.0)]}, path),
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
    contents = []
    for number in (1, 2):
        path = tmp_path / f"{number}.png"
        PICTURES[name](path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].startswith(b"\x89PNG")
    width, height = (int.from_bytes(contents[0][start : start + 4], "big") for start in (16, 20))
    assert 400 < width < 3500
    assert 300 < height < 2000
