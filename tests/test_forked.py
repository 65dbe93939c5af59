"""A forked command leaves what the same words leave in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("cap", "code"), [("5", 0), ("-1", 2)])
def test_a_forked_command_prints_and_exits_as_an_interpreter_does(tmp_path: Path, cap: str, code: int) -> None:
    words = ["buckets", "--workload", "resnet50", "--bucket-cap-mb", cap]
    variables = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "ddpsim", *words]
    typed = subprocess.run(
        command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    found = forked.command(["ddpsim", *words], tmp_path, variables)
    assert (found.returncode, found.stdout, found.stderr) == (typed.returncode, typed.stdout, typed.stderr)
    assert found.returncode == code


def test_a_forked_program_is_interrupted_as_an_interpreter_is(tmp_path: Path) -> None:
    program = "import os, signal, sys; print(sys.argv); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGINT)"
    found = forked.command(["python", "-c", program, "a"], tmp_path, {})
    assert found.stdout == "['-c', 'a']\n"
    assert "KeyboardInterrupt" in found.stderr


def test_what_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'python train\.py' cannot be forked"):
        forked.command(["python", "train.py"], tmp_path, {})
