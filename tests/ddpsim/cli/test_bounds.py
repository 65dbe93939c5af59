"""Counts and factors have bounds that fit what is simulated: one message, at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--nodes", "10000000", "at most 100000 nodes"),
        ("--nodes", "1" + "0" * 30, "at most 100000 nodes"),
        ("--iterations", "100000000", "moments"),
        ("--accumulate", "10000000", "moments"),
        ("--process-groups", "100000000", "at most 64"),
        ("--straggler", "0:1e308", "out of range"),
        ("--scale-compute", "1e308", "out of range"),
        ("--scale-host", "1e-300", "out of range"),
    ],
)
def test_what_is_too_large_is_refused(ddpsim: Callable, tiny: Path, option: str, value: str, said: str) -> None:
    result = ddpsim("predict", "--workload", tiny, "--topology", "dgx-1v", option, value)
    result.refused(said, option)


@pytest.mark.parametrize(
    "node",
    [
        "gpus: {count: 2147483648, model: V100}",
        "{gpus: {count: 8, model: V100}, cpu: {sockets: 2147483648}}",
        "{gpus: {count: 8, model: V100}, nics: [{count: 2147483648, rate: 1Gb/s}]}",
        "{gpus: {count: 8, model: V100}, nvswitch: {links_per_gpu: 2147483648}}",
        "processes: {count: 2147483648, rate: 1GB/s, total: 1GB/s}",
        "processes: {count: 8, rate: 1e300GB/s, total: 1GB/s}",
        "processes: {count: 8, rate: 1GB/s, total: 1GB/s, delay: 1e300s}",
    ],
)
def test_a_machine_that_is_too_large_is_refused(ddpsim: Callable, tmp_path: Path, node: str) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(f"name: large\nnode: {node if node.startswith('{') else '{' + node + '}'}\n")
    ddpsim("topo", "show", file).refused("machine.yaml")
    file.write_text("name: many\nnodes: 2147483648\nnode: {gpus: {count: 8, model: V100}, nics: [{rate: 1Gb/s}]}\n")
    ddpsim("topo", "show", file).refused("machine.yaml", "at most 100000")
