"""Standard streams as commands use them: - for a file, and what cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.cli.progress import APART_S, Progress, shown

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


@pytest.mark.needs("wait")
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
    show(5, 5)
    assert capsys.readouterr().err == "iterations: 2 of 5, 12 s left\niterations: 5 of 5\n"


def test_the_time_left_is_told_of_what_was_done_now(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    show = Progress("predictions", clock=lambda: now[0])
    show(90, 100)
    now[0] = 100.0
    show(92, 100)
    show(93, 100)
    assert capsys.readouterr().err == "predictions: 92 of 100, 6 min 40 s left\n"
    # The next of several runs is as fast as itself.
    now[0] = 150.0
    show(0, 10)
    now[0] = 160.0
    show(5, 10)
    assert capsys.readouterr().err.splitlines() == ["predictions: 0 of 10", "predictions: 5 of 10, 10 s left"]


@pytest.mark.parametrize(("terminal", "drawn"), [(True, "\r\x1b[Kcounting ...\r\x1b[K"), (False, "")])
def test_what_is_under_way_is_shown_on_a_terminal_until_it_ends_or_fails(
    terminal: bool, drawn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with pytest.raises(ValueError, match="bad"), shown("counting ..."):
        raise ValueError("bad")
    assert capsys.readouterr().err == drawn


NAME = "a\x1b]0;title\x07\x1b[31m\x9bb\r\x7f\u202ec"
SHOWN = r"a\x1b]0;title\x07\x1b[31m\x9bb\x0d\x7f\u202ec"


@pytest.mark.parametrize("command", [("workload", "show"), ("buckets", "--workload"), ("predict", "--workload")])
def test_control_characters_of_names_are_shown_and_not_sent(
    command: tuple[str, ...], tiny: Path, tmp_path: Path, ddpsim: Callable
) -> None:
    document = json.loads(tiny.read_text())
    document["name"] = document["parameters"][0]["name"] = NAME
    file, machine = tmp_path / "named.json", tmp_path / "m.yaml"
    file.write_text(json.dumps(document))
    machine.write_text(json.dumps({"name": NAME, "node": "dgx-1v"}))
    where = ("--topology", machine, "--gpus-per-node", "2") if command[0] == "predict" else ()
    result = ddpsim(*command, file, *where)
    assert result.code == 0, result.err
    assert SHOWN in result.out + result.err
    assert not set(result.out + result.err) & set("\x1b\x07\x9b\r\x7f\u202e")


def test_control_characters_reach_no_message(ddpsim: Callable) -> None:
    result = ddpsim("topo", "show", NAME)
    assert result.code == 2
    assert not set(result.err) & set("\x1b\x07\x9b\r\x7f\u202e")
