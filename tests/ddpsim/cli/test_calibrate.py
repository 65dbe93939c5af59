"""`ddpsim calibrate` end to end: from tables of one and two nodes to thirty-two, and what it says of rows it doubts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import PRIORS, Collectives
from ddpsim.topology.spec import load_topology

DGX = load_topology("dgx-1v")
SIZES = [1024 << 2 * k for k in range(10)]
PRIOR = Calibration("nccl", {constant.name: constant for constant in PRIORS["nccl"]})
TRUTH = PRIOR.with_values(
    {
        name: PRIOR[name] * factor
        for name, factor in (
            ("nccl.efficiency.net.simple", 0.8),
            ("nccl.efficiency.net.ll128", 0.8),
            ("nccl.efficiency.nvlink.simple", 0.9),
            ("nccl.ring.hop.nvlink.ll_s", 1.3),
        )
    },
    source="truth",
)


def times_s(nodes: int, constants: Calibration, sizes: list[int]) -> list[float]:
    collectives = Collectives(
        None, DGX.place(nodes), backend="nccl", calibration=constants, algorithm="ring", isolated=False
    )
    return [collectives.estimate_s(size) for size in sizes]


def write_table(path: Path, nodes: int, wild: int | None = None) -> Path:
    times = times_s(nodes, TRUTH, SIZES)
    rows = [f"{s},{t * 1e6 * (9 if n == wild else 1):.2f}" for n, (s, t) in enumerate(zip(SIZES, times, strict=True))]
    path.write_text(
        "\n".join([f"# ranks: {8 * nodes}", "# nccl: 2.30.3", "# algorithm: ring", "size_bytes,time_us", *rows, ""])
    )
    return path


def test_tables_of_one_and_two_nodes_predict_thirty_two(ddpsim: Callable, tmp_path: Path) -> None:
    tables = [write_table(tmp_path / f"{nodes}.csv", nodes) for nodes in (1, 2)]
    made, drawn = tmp_path / "c.json", tmp_path / "c.png"
    report = ddpsim(
        "calibrate", *tables, "--topology", "dgx-1v", "--nodes", "1,2", "-o", made, "--plot", drawn, "--json"
    ).document
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert report["fit_error"] < 0.03
    assert report["held_out_error"] < 0.1
    there = (
        "allreduce",
        "--topology",
        "dgx-1v",
        "--nodes",
        "32",
        "--algorithm",
        "ring",
        "-b",
        "64M",
        "-e",
        "4G",
        "-f",
        "4",
    )
    found = ddpsim(*there, "--calibration", made, "--json").document
    assert found["correcting_rows"] == 0
    sizes = [row["size_bytes"] for row in found["rows"]]
    truth, prior = (times_s(32, constants, sizes) for constants in (TRUTH, PRIOR))
    for row, true_s, prior_s in zip(found["rows"], truth, prior, strict=True):
        assert row["time_us"] * 1e-6 == pytest.approx(true_s, rel=0.05)
        assert prior_s != pytest.approx(true_s, rel=0.1)
        assert row["time_low_us"] < row["time_us"] < row["time_high_us"]


def test_a_row_that_is_far_off_and_constants_that_no_row_tells_are_named(ddpsim: Callable, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", 1, wild=4)
    said = ddpsim("calibrate", table, "--topology", "dgx-1v", "-o", tmp_path / "c.json")
    named = dict(re.findall(r"row (\d+): outlier, measured (\S+) times", said.err))
    assert float(named.pop("9")) > 2
    assert all(0.5 < float(factor) < 2 for factor in named.values())
    unused = next(line for line in said.err.splitlines() if "no row depends on" in line)
    assert "nccl.efficiency.net.simple" in unused
    assert unused.endswith("the priors stay")
    row = next(line for line in said.out.splitlines() if line.startswith("nccl.efficiency.net.simple"))
    assert row.endswith("prior: no row uses it")
