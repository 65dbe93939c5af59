from __future__ import annotations

import subprocess

import pytest

from ddpexec.netlab import probe
from ddpsim.errors import InputError


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
