from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from ddpsim.calibrating.measured import parse_table
from ddpsim.collectives.nccl.transport import NcclPaths
from ddpsim.collectives.schedules import Connection
from ddpsim.common.operation import Operation

HERE = ("--topology", "loopback", "--gpus-per-node", "2")
MICROBENCHMARK = {
    "config": {"nranks": 2, "backend": "gloo"},
    "results": [
        {
            "size": size, "count": size // 4, "type": "float", "redop": "sum", "root": -1,
            "out_of_place": {"time": 100 + size / 1500, "alg_bw": 0.0, "bus_bw": 0.0, "nwrong": 0},
        }
        for size in (4096, 65536, 1 << 20, 4 << 20, 16 << 20)
    ],
}  # fmt: skip


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A microbenchmark of 100 us and 1.5 GB/s."""
    path = tmp_path / "allreduce.json"
    path.write_text(json.dumps(MICROBENCHMARK))
    return path


def test_rows_have_nccl_tests_rates(ddpsim: Callable) -> None:
    four = ("--topology", "loopback", "--gpus-per-node", "4")
    rows = ddpsim("allreduce", *four, "-b", "8", "-e", "1M", "-f", "2", "--json").document["rows"]
    assert [row["size_bytes"] for row in rows] == [8 << n for n in range(18)]
    for row in rows:
        assert row["algbw_GBps"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 2 * (4 - 1) / 4)
    times = [row["time_us"] for row in rows]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))


@pytest.mark.parametrize("fidelity", ["flow", "steps", "closed"])
def test_a_gpu_alone_takes_a_launch(ddpsim: Callable, fidelity: str) -> None:
    alone = ("--topology", "dgx-1v", "--gpus-per-node", "1", "-b", "1K", "-e", "1M", "-f", "32", "--fidelity", fidelity)
    rows = ddpsim("allreduce", *alone, "--json").document["rows"]
    assert [row["time_us"] for row in rows] == pytest.approx([rows[0]["time_us"]] * 3)
    assert [row["busbw_GBps"] for row in rows] == [0, 0, 0]


def test_calibrated_predictions_stand_beside_the_measured(ddpsim: Callable, measured: Path, tmp_path: Path) -> None:
    calibration = tmp_path / "calibration.json"
    report = ddpsim("calibrate", measured, "--topology", "loopback", "-o", calibration, "--plot", tmp_path / "c.png")
    assert "held out of the fit" in report.out
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    beside = ("--topology", "loopback", "--measured", measured, "--calibration", calibration)
    rows = ddpsim("allreduce", *beside, "--json").document["rows"]
    assert [row["size_bytes"] for row in rows] == [entry["size"] for entry in MICROBENCHMARK["results"]]
    for row in rows:
        assert row["error"] == pytest.approx(row["time_us"] / row["measured_us"] - 1)
        assert abs(row["error"]) < 0.1
        assert row["time_low_us"] < row["time_us"] < row["time_high_us"]
    shown = ddpsim("allreduce", *beside, "--plot", tmp_path / "a.png").out
    for name in ("low", "high", "measured", "error"):
        assert name in shown.splitlines()[0]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_output_says_whether_rows_of_exactly_this_machine_correct_it(
    ddpsim: Callable, measured: Path, tmp_path: Path
) -> None:
    calibration = tmp_path / "calibration.json"
    ddpsim("calibrate", measured, "--topology", "loopback", "-o", calibration)
    for ranks, algorithm, rows in (("2", "auto", 5), ("4", "auto", 0), ("2", "gather-broadcast", 0)):
        there = ("--topology", "loopback", "--gpus-per-node", ranks, "--algorithm", algorithm)
        with_it = (*there, "--calibration", calibration, "--backend", "gloo")
        size = ("-b", "1M", "-e", "1M")
        assert ddpsim("allreduce", *with_it, *size, "--json").document["correcting_rows"] == rows
        said = f"corrected by {rows} measured rows of exactly this machine"
        assert (said in ddpsim("allreduce", *with_it, *size).out) == (rows > 0)
        predicted = ddpsim("predict", "--workload", "mlp", *with_it, "--json").document
        assert predicted["provenance"]["correcting_rows"] == rows
        assert (said in ddpsim("predict", "--workload", "mlp", *with_it).out) == (rows > 0)
    assert ddpsim("allreduce", *HERE, "-b", "1M", "-e", "1M", "--json").document["correcting_rows"] == 0


def test_a_table_is_predicted_as_it_was_measured(ddpsim: Callable, tmp_path: Path) -> None:
    def times(header: str, *options: str, ranks: int = 16) -> list[float]:
        table = tmp_path / "t.csv"
        table.write_text(f"# ranks: {ranks}\n{header}\nsize_bytes,time_us\n1024,40\n131072,90\n16777216,900\n")
        rows = ddpsim("allreduce", "--topology", "dgx-1v", "--measured", table, *options, "--json").document["rows"]
        return [row["time_us"] for row in rows]

    launches_us = 8 * 3.89
    a_process_each, one_process = (times(f"# mode: nThread 1 nGpus {gpus}", ranks=8) for gpus in (1, 8))
    assert a_process_each[0] < launches_us <= one_process[0]
    assert one_process[2] == pytest.approx(a_process_each[2], rel=1e-3)
    plain = times("")
    assert times("# isolated: true") == pytest.approx([each + 4 for each in plain], rel=1e-2)
    assert times("# algorithm: tree (NCCL_ALGO)") == times("", "--algorithm", "tree") != plain
    assert times("# algorithm: tree (NCCL_ALGO)", "--algorithm", "ring") == times("", "--algorithm", "ring")
    # The older line of constants changes to LL128 earlier.
    assert times("# nccl: 2.8.4")[1] > 1.2 * plain[1]
    assert times("# nccl: 2.23.4") == plain


def test_a_measured_tables_ranks_are_kept_on_any_number_of_nodes(ddpsim: Callable, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("# ranks: 4\nsize_bytes,time_us\n1048576,90\n4194304,300\n")
    here = ("allreduce", "--topology", "dgx-1v", "--measured", table, "--json")
    plain = ("allreduce", "--topology", "dgx-1v", "-b", "1M", "-e", "4M", "-f", "4", "--json")
    for nodes, each in ((1, 4), (2, 2), (4, 1)):
        rows = ddpsim(*here, "--nodes", nodes).document["rows"]
        alone = ddpsim(*plain, "--nodes", nodes, "--gpus-per-node", each).document["rows"]
        assert [row["time_us"] for row in rows] == [row["time_us"] for row in alone]
    assert ddpsim(*here, "--nodes", "2", "--gpus-per-node", "2").code == 0
    ddpsim(*here, "--nodes", "2", "--gpus-per-node", "4").refused("--gpus-per-node", "8 ranks", "t.csv", "with 4")
    ddpsim(*here, "--nodes", "3").refused("t.csv", "4 ranks on 3 nodes")
    ddpsim(*here, "--nodes", "0").refused("--nodes", "0 nodes", "at least one")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["-b", "1K", "-e", "8"], ["-b", "1024 B is more than 8 B", "-e"]),
        (["-b", "1KB"], ["-b", "'1KB'"]),
        (["-b", "0"], ["-b", "'0'"]),
        (["-e", "9" * 400], ["-e", "nccl-tests"]),
        (["-f", "1"], ["-f", "factor 1 ", "give 2 or more"]),
        (["-f", "1.05"], ["-f", "'1.05'"]),
        (["-b", "8", "--measured", "t.csv"], ["-b and --measured", "keep one"]),
        (["-f", "2", "--measured", "t.csv"], ["-f and --measured", "keep one"]),
        (["--backend", "mpi", "--algorithm", "tree"], ["MPI has no algorithm 'tree'", "rabenseifner"]),
        (["--measured", "none.csv"], ["none.csv"]),
    ],
)
def test_options_out_of_range(ddpsim: Callable, options: list[str], parts: list[str]) -> None:
    ddpsim("allreduce", *HERE, *options).refused(*parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("size_bytes,speed\n1024,12\n", ["columns wanted"]),
        ("size_bytes,time_ms\n1024,12\n2048,13\n", ["no time column", "time_ms", "another unit", "time_us"]),
        ("# ranks: 2\nsize_bytes,time_us\n1024,12e9\n", ["row 3 (1,024 B on 2 ranks", "is slower than"]),
        ("# ranks: 5000\nsize_bytes,time_us\n1024,12\n2048,13\n", ["5000"]),
    ],
)
def test_tables_that_cannot_be_used(ddpsim: Callable, tmp_path: Path, text: str, parts: list[str]) -> None:
    file = tmp_path / "table.csv"
    file.write_text(text)
    ddpsim("calibrate", file, "--topology", "loopback", "-o", tmp_path / "c.json").refused("table.csv", *parts)
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("machine", ["loopback", "hgx-a100-4"])
def test_what_calibrate_writes_is_read(ddpsim: Callable, measured: Path, tmp_path: Path, machine: str) -> None:
    there, calibration = ("--topology", machine, "--backend", "gloo"), tmp_path / "calibration.json"
    assert ddpsim("calibrate", measured, *there[:2], "-o", calibration).code == 0
    one = ("-b", "1M", "-e", "1M", "--gpus-per-node", "2")
    assert ddpsim("allreduce", *there, *one, "--calibration", calibration).code == 0
    ddpsim("calibrate", measured, *there[:2], "--backend", "glo").refused("--backend", "unknown backend 'glo'")
    measured.write_text(measured.read_text().replace('"gloo"', '"ucc"'))
    ddpsim("calibrate", measured, *there[:2]).refused("allreduce.json", "unknown backend 'ucc'")


def test_constants_of_nccl_are_of_a_machine_with_gpus(ddpsim: Callable, measured: Path, tmp_path: Path) -> None:
    there = ("--topology", "loopback", "-o", tmp_path / "c.json")
    ddpsim("calibrate", measured, *there, "--backend", "nccl").refused("--backend", "NCCL needs GPUs", "loopback")
    measured.write_text(measured.read_text().replace('"gloo"', '"nccl"'))
    ddpsim("calibrate", measured, *there).refused("allreduce.json", "NCCL needs GPUs")


def test_a_table_that_is_missing_or_no_text(ddpsim: Callable, tmp_path: Path) -> None:
    missing = ddpsim("allreduce", *HERE, "--measured", tmp_path / "none.txt")
    missing.refused("none.txt", "cannot be read: No such file", "nccl-tests' output")
    assert "Errno" not in missing.err
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    ddpsim("allreduce", *HERE, "--measured", tmp_path / "binary").refused("not text", "at byte 0", "CSV")
    ddpsim("allreduce", *HERE, "--measured", tmp_path).refused("Is a directory", "nccl-tests' output")


OPERATIONS = [operation for operation in Operation if operation is not Operation.ALLREDUCE]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("machine", ["dgx-1v", "loopback"])
def test_every_operation_has_nccl_tests_rates(ddpsim: Callable, machine: str, operation: Operation) -> None:
    asked = ("--topology", machine, "--gpus-per-node", "2", "-b", "1M", "-e", "1M")
    document = ddpsim("collective", "--op", operation, *asked, "--json").document
    [row] = document["rows"]
    assert document["operation"] == operation
    parts = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
    factor = 0.5 if operation in parts else 1.0
    assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * factor)
    assert row["time_low_us"] < row["time_us"] < row["time_high_us"]


def test_one_command_predicts_what_the_other_does(ddpsim: Callable) -> None:
    asked = (*HERE, "-b", "4K", "-e", "1M", "-f", "4", "--json")
    one, other = (
        ddpsim(*command, *asked).document for command in (("allreduce",), ("collective", "--op", "all_reduce"))
    )
    assert one == other


@pytest.mark.parametrize(
    ("operation", "count", "redop", "root"),
    [
        ("all_reduce", 262144, "sum", -1),
        ("all_gather", 131072, "none", -1),
        ("broadcast", 262144, "none", 0),
        ("reduce", 262144, "sum", 0),
    ],
)
def test_our_table_of_an_operation_reads_as_nccl_tests_output(
    ddpsim: Callable, operation: str, count: int, redop: str, root: int
) -> None:
    text = ddpsim("collective", "--op", operation, *HERE, "-b", "1M", "-e", "1M").out
    words = text.splitlines()[-1].split()
    assert words[1:5] == [str(count), "float", redop, str(root)]
    [row] = parse_table(f"# operation: {operation}\n# ranks: 2\n{text}", "ours").rows
    assert row.time_s * 1e6 == pytest.approx(float(words[5]))


def test_a_table_of_another_operation_is_refused_with_the_one_that_it_is_of(ddpsim: Callable, tmp_path: Path) -> None:
    path = tmp_path / "gather.csv"
    path.write_text("# ranks: 2\n# operation: all_gather\nsize_bytes,time_us\n1048576,900\n")
    refused = ddpsim("allreduce", "--topology", "loopback", "--measured", str(path))
    refused.refused("is of all_gather, allreduce is asked for; use `ddpsim collective --op all_gather`")
    [row] = ddpsim(
        "collective", "--op", "all_gather", "--topology", "loopback", "--measured", str(path), "--json"
    ).document["rows"]
    assert row["measured_us"] == pytest.approx(900)


def test_an_operation_that_is_none_is_named(ddpsim: Callable) -> None:
    ddpsim("collective", "--op", "all_gathr", *HERE).refused(
        "--op: unknown operation 'all_gathr'; did you mean all_gather?"
    )


def test_the_band_of_an_all_to_all_is_of_the_ways_that_its_times_were_found_on(
    ddpsim: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, connection = list[tuple[int, int]](), NcclPaths.connection

    def counted(ways: NcclPaths, source: int, target: int) -> Connection:
        found.append((source, target))
        return connection(ways, source, target)

    monkeypatch.setattr(NcclPaths, "connection", counted)
    rows = ddpsim("collective", "--op", "alltoall", "--topology", "dgx-h100", "--json").document["rows"]
    assert all(row["time_low_us"] < row["time_us"] < row["time_high_us"] for row in rows)
    assert len(found) == len(set(found)) == 8 * 7
