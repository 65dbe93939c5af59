"""Standard error says whose pace a prediction keeps, where the machine has other devices or other ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = ("--topology", "loopback", "--gpus-per-node", "2", "--backend", "gloo")
MIXED = """
name: mixed
nodes: {first: 1, second: 1}
templates: {first: dgx-1v, second: SECOND}
fabric: {kind: flat}
"""


def test_layers_that_sleep_keep_their_own_pace(ddpsim: Callable, tiny: Path) -> None:
    tiny.write_text(tiny.read_text().replace('"V100"', '"timed V100"'))
    for topology in ("loopback", "dgx-1v"):
        err = ddpsim("predict", "--workload", tiny, "--topology", topology, "--gpus-per-node", "2").err
        assert "take a workload of that device" not in err
        assert "has the compute times of V100, by layers that sleep" in err


@pytest.mark.parametrize(("second", "told"), [("dgx-a100", 1), ("{machine: dgx-a100, workload: FILE}", 0)])
def test_another_device_is_told_of_once_wherever_it_stands(
    ddpsim: Callable, tiny: Path, tmp_path: Path, second: str, told: int
) -> None:
    cluster = tmp_path / "mixed.yaml"
    cluster.write_text(MIXED.replace("SECOND", second.replace("FILE", str(tiny))))
    here = ("--workload", tiny, "--topology", cluster)
    for command in (("predict",), ("sweep", "--nodes", "1,2"), ("plan", "--nodes", "2,1", "--bucket-cap-mb", "1")):
        assert ddpsim(*command, *here).err.count("tiny has the compute times of V100, mixed has A100;") == told
    assert ddpsim("predict", *here, "--nodes", "1").err == ""


def test_what_several_ranks_recorded_at_once_is_of_as_many_on_a_machine(ddpsim: Callable, tiny: Path) -> None:
    tiny.write_text(tiny.read_text().replace('"threads"', '"ranks": 4, "threads"'))
    here = ("predict", "--workload", tiny, "--topology", "dgx-1v", "--gpus-per-node")
    assert "tiny was recorded by 4 ranks at once on a machine, dgx-1v has 2 on a node" in ddpsim(*here, "2").err
    assert ddpsim(*here, "4").err == ""
    assert "recorded by" not in ddpsim("predict", "--workload", tiny, *HERE).err  # sleeping layers share nothing
