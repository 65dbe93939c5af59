"""A campaign on a real lab that a terminal's Ctrl-C, or a job manager, stops with its whole process group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpexec.netlab import names

pytestmark = pytest.mark.usefixtures("lab_machine")

ROOT = Path(__file__).parents[2]
FILE = """
name: short
iterations: 2
microbench: {minbytes: 64K, maxbytes: 1M, stepfactor: 16}
networks:
  pair: {ranks: 2, rate: 1gbit}
runs:
  - {network: pair, workload: mlp, wire_over_backward: 5}
"""


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def labs() -> set[str]:
    return {name for name in names.namespaces() if name.startswith(names.PREFIX)}


def start(folder: Path) -> subprocess.Popen[str]:
    (folder / "c.yaml").write_text(FILE)
    command = [sys.executable, "-m", "ddpexec", "campaign", str(folder / "c.yaml"), "--out", str(folder / "out")]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_campaign_stopped_with_its_group_leaves_nothing_and_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    before = labs()
    campaign = start(tmp_path)
    own: list[str] = []
    for _ in range(6000):
        own = [n for c in children(campaign.pid) for n in names.namespaces() if n.startswith(f"{names.PREFIX}-{c}-")]
        inside = [subprocess.run(["ip", "netns", "pids", name], capture_output=True).stdout.split() for name in own]
        if sum(map(len, inside)) == 2:
            break
        time.sleep(0.01)
    assert own, "no lab within a minute"
    os.killpg(campaign.pid, number)
    _, said = campaign.communicate(timeout=30)
    assert campaign.returncode == 128 + number
    assert "Traceback" not in said
    assert said.splitlines()[-1] == (
        f"campaign: stopped by {number.name} with 0 of 1 configurations done; the same command goes on from there"
    )
    assert labs() <= before
    assert not list((tmp_path / "out").rglob("result.json"))
    if number == signal.SIGINT:
        again = start(tmp_path)
        _, said = again.communicate(timeout=90)
        assert again.returncode == 0, said
        assert len(list((tmp_path / "out").rglob("result.json"))) == 1
