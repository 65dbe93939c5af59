from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpexec.lab.netlab import command, probe, support
from ddpsim.common.errors import InputError

ROOT = Path(__file__).parents[4]
Words = tuple[int | None, str | None, str | None, str | None]


def test_the_words_of_the_command_line_are_the_topology() -> None:
    topology = command.parse_topology(4, "1gbit", "0.2ms", None)
    assert topology.nodes == 4
    assert topology.place().network_route((0, "nic0"), (1, "nic0"))[0].bandwidth == pytest.approx(125e6)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((4, None, None, None), "`rate`"),
        ((None, "1gbit", None, None), "`ranks`"),
        ((4, "1gbit", None, "dgx-1v"), "`topology` and `ranks`"),
        ((4, "1", None, None), "'1' has no unit"),
        ((4, "1gbit", "2", None), "'2' has no unit"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: tuple[int | None, str | None, str | None, str | None], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        command.parse_topology(*arguments)


def test_a_lab_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert [reason.split()[0] for reason in support.list_missing()] == ["root", "`ip`", "`tc`"]
    with pytest.raises(InputError, match="root"):
        command.run_command(command.parse_topology(2, "1gbit", None, None), ["true"])


def test_a_lab_needs_a_command() -> None:
    with pytest.raises(InputError, match="--"):
        command.run_command(command.parse_topology(2, "1gbit", None, None), [])


def test_bad_words_are_one_message_and_exit_code_2() -> None:
    arguments = [sys.executable, "-m", "ddpexec", "netlab", "--ranks", "2", "--rate", "7", "--", "true"]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [result.stderr.strip()]
    assert "--rate" in result.stderr


def test_what_a_process_prints_is_read_line_by_line() -> None:
    with subprocess.Popen(["sh", "-c", "echo ready; echo 12.5"], stdout=subprocess.PIPE, text=True) as process:
        assert [probe.read_line(process, "it").strip() for _ in range(2)] == ["ready", "12.5"]


@pytest.mark.parametrize(("script", "code"), [("exit 3", "3"), ("kill -9 $$", "-9")])
def test_a_process_that_dies_is_named_with_its_exit_code(script: str, code: str) -> None:
    with (
        subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as process,
        pytest.raises(InputError, match=rf"^netlab: the forwarder ended with exit code {code}; see what it wrote"),
    ):
        probe.read_line(process, "the forwarder")
