"""A campaign on a real lab that a terminal's Ctrl-C, or a job manager, stops with its whole process group."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpexec.lab.netlab import lab
from tests.ddpexec.lab.netlab.processes import children, running_in, until

pytestmark = pytest.mark.usefixtures("lab_machine")

FILE = """
name: short
iterations: 2
microbench: {minbytes: 64K, maxbytes: 64K, stepfactor: 16, load_seconds: 0.2}
networks:
  pair: {ranks: 2, rate: 1gbit}
runs:
  - {network: pair, workload: mlp, wire_over_backward: 5}
"""


def labs() -> set[str]:
    return {name for name in lab.namespaces() if name.startswith(lab.PREFIX)}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_campaign_stopped_with_its_group_leaves_nothing_and_goes_on(
    number: signal.Signals, tmp_path: Path, ddpexec: Callable[..., subprocess.Popen[str]]
) -> None:
    (tmp_path / "c.yaml").write_text(FILE)
    command = ("campaign", tmp_path / "c.yaml", "--out", tmp_path / "out")
    before = labs()
    campaign = ddpexec(*command)

    def both_ranks_run() -> bool:
        return any(running_in(child) == 2 for child in children(campaign.pid))

    until(both_ranks_run, 60, "a lab with both ranks")
    os.killpg(campaign.pid, number)
    _, said = campaign.communicate(timeout=40)
    assert campaign.returncode == 128 + number
    assert "Traceback" not in said
    assert said.splitlines()[-1] == (
        f"campaign: stopped by {number.name} with 0 of 1 configurations done; the same command goes on from there"
    )
    assert labs() <= before
    assert not list((tmp_path / "out").rglob("result.json"))
    if number == signal.SIGINT:
        again = ddpexec(*command)
        _, said = again.communicate(timeout=110)
        assert again.returncode == 0, said
        assert len(list((tmp_path / "out").rglob("result.json"))) == 1
