"""Standard streams as commands use them: - for a file, and what cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.cli.progress import APART_S, Progress

HERE = ("--topology", "loopback", "--gpus-per-node", "2")
TABLE = "size_bytes,time_us\n1024,20\n65536,60\n1048576,900\n16777216,14000\n# ranks: 2\n"


def command(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run ddpsim in a process of its own."""
    words = [sys.executable, "-m", "ddpsim", *map(str, arguments)]
    return subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("words", [("topo", "list"), ("--help",), ("--version",)])
def test_a_full_standard_output_is_one_message(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = command(*words, stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output: cannot be written: No space left on device")
    assert done.stderr.count("\n") == 1


def test_a_closed_standard_output_is_one_message() -> None:
    done = command("--version", preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "it is closed" in done.stderr


def test_a_file_goes_to_standard_output_and_the_text_beside_it(ddpsim: Callable, tiny: Path) -> None:
    for words in (("buckets",), ("plan", *HERE, "--bucket-cap-mb", "2")):
        result = ddpsim(*words, "--workload", tiny, "-o", "-")
        assert result.document["schema"] == "ddpsim.plan/1"
        assert "DistributedDataParallel" in result.err
    rows = ddpsim("sweep", "--workload", tiny, *HERE, "--bucket-cap-mb", "1,2", "-o", "-").out.splitlines()
    assert [json.loads(row)["bucket_cap_mb"] for row in rows] == [1, 2]
    ddpsim("buckets", "--workload", tiny, "-o", "-", "--json").refused("-o", "--json", "keep one")


def test_a_folder_that_is_made_is_announced(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    result = ddpsim("buckets", "--workload", tiny, "-o", tmp_path / "new" / "plan.json")
    assert result.code == 0
    assert f"note: {tmp_path / 'new'} is no folder yet, and is made" in result.err
    assert ddpsim("buckets", "--workload", tiny, "-o", tmp_path / "new" / "plan.json").err == ""


def test_files_are_read_from_standard_input(tiny: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    with tiny.open() as file:
        done = command("buckets", "--workload", "-", stdin=file, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    with table.open() as file:
        done = command("calibrate", "-", *HERE[:2], "-o", "-", stdin=file, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "constants" in json.loads(done.stdout)
    twice = command("predict", "--workload", "-", "--topology", "-", stdin=subprocess.DEVNULL)
    assert twice.returncode == 2
    with tiny.open() as file:
        twice = command("predict", "--workload", "-", "--topology", "-", stdin=file)
    assert "standard input was read already" in twice.stderr


def test_a_sweep_that_is_stopped_keeps_whole_lines(tiny: Path, tmp_path: Path) -> None:
    caps = ",".join(str(1 + n / 1000) for n in range(2000))
    out, told = tmp_path / "sweep.jsonl", tmp_path / "told"
    words = ("sweep", "--workload", str(tiny), "--topology", "dgx-1v", "--bucket-cap-mb", caps, "-o", str(out))
    signalled = (
        "import os, signal, sys, threading\n"
        "import ddpsim.planning.planner as planner\n"
        "counted = planner._counted\n"
        "def stopped(found, show, total):\n"
        "    for number, each in enumerate(counted(found, show, total)):\n"
        "        yield each\n"
        "        if number == 2:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "planner._counted = stopped\n"
        "from ddpsim.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    with told.open("w") as err:
        done = subprocess.run(
            [sys.executable, "-c", signalled, *words], stdout=subprocess.PIPE, stderr=err, text=True, check=False
        )
    assert done.returncode == 128 + signal.SIGTERM
    lines = out.read_text().splitlines()
    assert [json.loads(line)["bucket_cap_mb"] for line in lines] == [1, 1.001, 1.002]
    assert f"3 of 2000 predictions were done; {out} has them" in told.read_text()
    assert "Traceback" not in told.read_text()


def test_a_sweep_whose_point_fails_keeps_those_before(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.jsonl"
    result = ddpsim(
        "sweep", "--workload", tiny, "--topology", "dgx-1v", "--nodes", "1,9999999", "--bucket-cap-mb", "2", "-o", out
    )
    assert result.code == 2
    assert len(out.read_text().splitlines()) == 1
    assert "1 of 2 predictions were done" in result.err


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    show = Progress("iterations", clock=lambda: now[0])
    for done in range(5):
        now[0] += 0.4 * APART_S
        show(done, 5)
    show(5, 5)
    assert capsys.readouterr().err == "iterations: 2 of 5\n"
