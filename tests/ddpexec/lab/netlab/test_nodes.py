"""The files of `examples/cluster` for real: nodes are namespaces, each with a torchrun of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpsim.trace.json import read_trace

ROOT = Path(__file__).parents[4]
NODE = "NODES=$WORLD_SIZE NODE=$RANK HEAD=$MASTER_ADDR TRACE={}/node$RANK exec bash examples/cluster/node.sh"
HERE = f"PYTHONPATH={ROOT} PATH={Path(sys.executable).parent}:$PATH"


@pytest.mark.timeout(240)
def test_torchrun_on_two_nodes_traces_a_loop_of_ones_own(ddpexec: Callable[..., Any], tmp_path: Path) -> None:
    lab = ("netlab", "--ranks", "2", "--rate", "1gbit", "--", "bash", "-c")
    process = ddpexec(*lab, f"{HERE} {NODE.format(tmp_path)} examples/cluster/train.py")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    for node in range(2):
        trace = read_trace(tmp_path / f"node{node}")
        assert (trace.ranks, trace.world_size) == ([node], 2)
        assert [it.index for it in trace.iterations] == list(range(3, 40))
        assert {len(it.buckets) for it in trace.iterations} == {4}
        assert (tmp_path / f"node{node}" / f"summary-rank{node}.jsonl").is_file()
    assert read_trace(tmp_path / "node0").provenance["clock_aligned"] is True
