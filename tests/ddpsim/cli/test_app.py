from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpsim.cli.app import COMMANDS, carry_out, command_for, whole_command

PLOTTING = (
    ("plan", "--workload", "mlp", "--topology", "dgx-1v"),
    ("allreduce", "--topology", "dgx-1v"),
    ("calibrate", "no.csv", "--topology", "dgx-1v"),
    ("validate", "no.json", "no"),
    ("topo", "show", "dgx-1v"),
)
HEAVY = ("numpy", "networkx", "simpy", "pydantic", "matplotlib", "yaml", "rich", "torch", "pandas")


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from ddpsim.cli.app import run; code = run(['--help']); "
        f"print('loaded', [m for m in {HEAVY} if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "buckets" in done.stdout
    assert done.stdout.endswith("loaded []\n")


def test_the_help_that_imports_no_command_is_that_of_the_whole_program(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for command in (command_for(""), whole_command()):
        assert carry_out(command, ["--help"], "ddpsim") == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    listed = {each.name: each.summary for each in COMMANDS}
    assert listed == {
        name: command.help.split("\n\n")[0].replace("\n", " ") for name, command in whole_command().commands.items()
    }


def test_a_command_imports_no_other() -> None:
    program = (
        "import sys; from ddpsim.cli.app import run; run(['buckets', '--help']); "
        "print('loaded', sorted(m for m in sys.modules if m in ('ddpsim.cli.plan', 'ddpsim.cli.buckets')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded ['ddpsim.cli.buckets']\n")


@pytest.mark.parametrize("arguments", [["--help"], ["buckets", "--help"], ["workload", "--help"], ["--version"]])
def test_help_and_version_exit_with_zero(ddpsim: Callable, arguments: list[str]) -> None:
    result = ddpsim(*arguments)
    assert result.code == 0
    assert result.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["bukets"], "bukets"),
        (["buckets"], "--workload"),
        (["buckets", "--workload"], "--workload"),
        (["buckets", "--workload", "x", "--cap", "3"], "--cap"),
        (["buckets", "--workload", "x", "surplus"], "surplus"),
    ],
)
def test_wrong_usage_is_one_message(ddpsim: Callable, arguments: list[str], part: str) -> None:
    ddpsim(*arguments).refused(part, "--help")


def test_an_option_of_another_command_is_told_with_the_commands_that_have_it(ddpsim: Callable) -> None:
    ddpsim("predict", "--batch-size", "64").refused("--batch-size", "which `ddpsim compare` has; see `ddpsim predict")
    ddpsim("explain", "--micro_batch_size", "64").refused(", which `ddpsim plan` has; ")
    ddpsim("topo", "list", "--step", "1s").refused(", which `ddpsim workload anchor` has; ")
    ddpsim("topo", "list", "--nodes", "4").refused(", which `ddpsim predict`, `ddpsim sweep`, `ddpsim plan` and ")
    ddpsim("topo", "list", "--zzz").refused("No such option: --zzz; see")


def test_underscores_and_dashes_are_the_same(ddpsim: Callable, tiny: Path) -> None:
    with_dashes = ddpsim("buckets", "--workload", tiny, "--bucket-cap-mb", "2", "--json")
    assert with_dashes == ddpsim("buckets", "--workload", tiny, "--bucket_cap_mb", "2", "--json")
    assert with_dashes.code == 0


def test_the_module_is_the_command_and_a_closed_pipe_is_no_error(tiny: Path) -> None:
    command = [sys.executable, "-m", "ddpsim", "buckets", "--workload", str(tiny)]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_arguments_the_help_is_shown(ddpsim: Callable) -> None:
    for command in ([], ["topo"]):
        result = ddpsim(*command)
        assert result.code == 2
        assert result.err.startswith("Usage: ddpsim")
        assert "Commands:" in result.err
        assert "; see" not in result.err


@pytest.mark.parametrize(
    ("command", "option", "where"),
    [
        ("predict", "--trace", "taken"),
        ("predict", "--trace", "taken/x"),
        ("sweep", "--out", "taken/x.jsonl"),
        ("plan", "--out", "taken/deeper/x.json"),
        ("buckets", "--out", "."),
    ],
)
def test_where_no_file_can_be_one_message_says_so(
    ddpsim: Callable, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str, where: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.chdir(tmp_path)
    machine = () if command == "buckets" else ("--topology", "loopback", "--gpus-per-node", "2")
    result = ddpsim(command, "--workload", tiny, *machine, "--bucket-cap-mb", "2", option, where)
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith(f"error: {option} {where}")
    assert "cannot be written" in result.err
    assert (tmp_path / "taken").read_text() == "a file"
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("words", PLOTTING, ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["x.xyz", "x.pdf", "png"])
def test_a_picture_under_another_ending_is_refused_before_anything_else(
    ddpsim: Callable, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    ddpsim(*words, "--plot", tmp_path / name).refused("--plot", name, "FILE.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [("predict", "--nodes", "x" * 5000), ("x" * 5000,), ("topo", "show", "--" + "x" * 5000)]
)
def test_a_usage_error_is_short_whatever_was_given(ddpsim: Callable, arguments: tuple[str, ...]) -> None:
    result = ddpsim(*arguments)
    result.refused("error: ", "--help")
    assert len(result.err) < 1000


@pytest.mark.parametrize("words", [("explain",), ("order",), ("order-bench", "--traces")])
def test_a_name_that_no_file_system_takes_is_refused(words: tuple[str, ...], ddpsim: Callable[..., Any]) -> None:
    ended = ddpsim(*words, "9" * 600)
    assert (ended.code, ended.out, ended.err.count("error: ")) == (2, "", 1)
