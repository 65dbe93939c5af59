"""A rank that fails leaves rank 0 the time to say why, where the launcher ends all ranks with the first that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest

from ddpexec.groups import environment

MESSAGE = "error: --scheme zero3: DeepSpeed's schemes are simulated, and not run"


@pytest.mark.parametrize("rank", ["0", "2"])
def test_the_rank_that_speaks_does_so_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with mock.patch("time.sleep", side_effect=AssertionError("it waits")):
        environment.speak(MESSAGE, int(rank))
        environment.speak(MESSAGE, None)
    assert capsys.readouterr().err == f"{MESSAGE}\n" * 2


@pytest.mark.parametrize("variables", [{}, {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "1"}])
def test_a_rank_that_nobody_else_is_ended_by_does_not_wait(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in {"RANK": "1", **variables}.items():
        monkeypatch.setenv(name, value)
    with mock.patch("time.sleep", side_effect=AssertionError("it waits")):
        environment.speak(MESSAGE)
    assert capsys.readouterr().err == ""


def test_a_rank_that_fails_alone_says_so_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(environment, "LET_SPEAK_S", 0.01)
    environment.speak(MESSAGE)
    assert capsys.readouterr().err == f"{MESSAGE} (rank 1)\n"


def test_a_rank_that_is_ended_while_it_waits_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    environment.speak(MESSAGE)
    assert capsys.readouterr().err == ""


def test_torchrun_lets_a_late_rank_0_speak(tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        "import os, runpy, time\n"
        "from ddpexec.groups import environment\n"
        "environment.LET_SPEAK_S = 100\n"  # on a busy machine the late rank is later still
        "time.sleep(2 if os.environ['RANK'] == '0' else 0)\n"
        "runpy.run_module('ddpexec', run_name='__main__', alter_sys=True)\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(late)]
    job = ["run", "--model", "mlp", "--backend", "gloo", "--scheme", "zero3", "--out", str(tmp_path / "run")]
    ended = subprocess.run([*launcher, *job], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stderr.count(MESSAGE) == 1, ended.stderr
    assert "exitcode: 2) local_rank: 0" in ended.stderr
    assert "exitcode  : -15" not in ended.stderr
