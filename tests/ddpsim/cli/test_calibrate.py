"""`ddpsim calibrate` end to end: from tables of one and two nodes to thirty-two, and what it says of rows it doubts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path

import pytest

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.calibration_file import load_calibration
from ddpsim.topology.spec import load_topology
from tests.ddpsim.collectives.groups import group_on

DGX = load_topology("dgx-1v")
SIZES = [1024 << 2 * k for k in range(10)]
PRIOR = Calibration.priors("nccl")
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


def times_s(nodes: int, constants: Calibration, sizes: Sequence[int]) -> list[float]:
    collectives = group_on(DGX.place(nodes), calibration=constants, algorithm="ring", isolated=False)
    return [collectives.estimate_s(size) for size in sizes]


def write_table(path: Path, nodes: int, wild: int | None = None, sizes: Sequence[int] = SIZES) -> Path:
    times = times_s(nodes, TRUTH, sizes)
    rows = [f"{s},{t * 1e6 * (9 if n == wild else 1):.2f}" for n, (s, t) in enumerate(zip(sizes, times, strict=True))]
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
    made = ddpsim("calibrate", table, "--topology", "dgx-1v", "-o", tmp_path / "c.json", "--json").document["unused"]
    assert "nccl.efficiency.net.simple" in made
    assert unused == f"note: no row depends on {', '.join(made[:3])} and {len(made) - 3} more: the defaults stay"
    assert "nccl.efficiency.net.simple" not in said.out
    assert "constants keep their documented default; -v lists them" in said.out
    every = ddpsim("calibrate", table, "--topology", "dgx-1v", "-o", tmp_path / "c.json", "-v").out
    row = next(line for line in every.splitlines() if line.startswith("nccl.efficiency.net.simple"))
    assert row.endswith("prior: no row uses it")


def test_a_misfit_is_refused_before_anything_is_written_unless_it_is_accepted(ddpsim: Callable, tmp_path: Path) -> None:
    slow = write_table(tmp_path / "slow.csv", 1)
    head, rows = slow.read_text().split("time_us\n")
    slow.write_text(head + "time_us\n" + re.sub(r",(.*)$", r",\g<1>e3", rows, flags=re.MULTILINE))
    made, drawn = tmp_path / "c.json", tmp_path / "c.png"
    words = ("calibrate", write_table(tmp_path / "t.csv", 1), slow, "--topology", "dgx-1v", "-o", made, "--plot", drawn)
    ddpsim(*words).refused("slow.csv: row 5 (", "contradicts", "t.csv: row 5 (", "--accept-misfit")
    assert not made.exists()
    assert not drawn.exists()
    accepted = ddpsim(*words, "--accept-misfit", "--json")
    assert "contradicts" in accepted.err
    assert accepted.document["misfit"]["worst_factor"] > 30
    assert accepted.document["misfit"]["contradictions"]
    assert ddpsim("allreduce", "--topology", "dgx-1v", "--calibration", made).code == 0


def test_measured_times_stand_beside_fitted_ones(ddpsim: Callable, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", 1, sizes=[1024 << k for k in range(17)] + [3072 << k for k in range(9)])
    words = ("calibrate", table, "--topology", "dgx-1v", "-o", tmp_path / "c.json")
    report, lines = ddpsim(*words, "--json").document, ddpsim(*words).out.splitlines()
    assert "the 24 farthest off of 26 rows; -v and --json have all" in lines
    at = next(n for n, line in enumerate(lines) if line.endswith("error"))
    shown = [line.split() for line in lines[at + 1 : at + 25]]
    farthest = sorted(report["rows"], key=lambda row: -abs(log(row["fitted_s"] / row["measured_s"])))[:24]
    assert shown == [
        [
            f"{row['size_bytes']:,}",
            f"{row['measured_s'] * 1e6:,.1f}",
            f"{row['fitted_s'] * 1e6:,.1f}",
            f"{100 * (row['fitted_s'] / row['measured_s'] - 1):+z.1f}",
            "%",
        ]
        for row in sorted(farthest, key=lambda row: row["size_bytes"])
    ]
    assert all(len(line) <= 120 for line in lines)


def test_a_version_that_does_not_run_on_the_gpus_is_refused(ddpsim: Callable, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", 1)
    table.write_text(table.read_text().replace("2.30.3", "2.8.4"))
    words = ("calibrate", table, "-o", tmp_path / "c.json", "--topology")
    ddpsim(*words, "dgx-h100").refused("t.csv", "NCCL 2.8 does not run on H100")
    assert not (tmp_path / "c.json").exists()


def test_a_table_without_its_version_is_never_put_before_its_gpus(ddpsim: Callable, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = [f"{size},{20 + size / 1.5e5:.2f}" for size in SIZES]
    table.write_text("\n".join(["# ranks: 8", "# algorithm: ring", "size_bytes,time_us", *rows, ""]))
    made = tmp_path / "c.json"
    assert ddpsim("calibrate", table, "--topology", "dgx-h100", "-o", made, "--accept-misfit").code == 0
    assert load_calibration(str(made))["nccl.version"] == 2030


def test_links_that_carry_more_than_they_have_are_refused(ddpsim: Callable, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", 1)
    head, rows = table.read_text().split("time_us\n")
    faster = [f"{size},{float(time) / 1.8}" for size, time in (row.split(",") for row in rows.split())]
    table.write_text(head + "time_us\n" + "\n".join(faster) + "\n")
    words = ("calibrate", table, "--topology", "dgx-1v", "-o", tmp_path / "c.json")
    ddpsim(*words).refused("nccl.efficiency.nvlink.ll128 comes to", "no link carries over 1.33", "--accept-misfit")
    assert ddpsim(*words, "--accept-misfit").code == 0
