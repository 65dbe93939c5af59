"""Racks and AMD's machines that cannot be: each command answers with one message, or within its bound."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpsim.common.shipped import find

PREDICT = ("predict", "--workload", "resnet50", "--topology")


def shipped(name: str) -> str:
    return find("topology", name).read_text(encoding="utf-8")


def without_nics() -> str:
    kept = [line for line in shipped("gb200-nvl72").splitlines() if not line.strip().startswith(("nics:", "- {count"))]
    lines = [line.split(", nics:")[0] + "}" if ", nics:" in line else line for line in kept]
    return "\n".join(line for line in lines if not line.startswith("fabric"))


def with_a_hole() -> str:
    pairs = [[a, b, 1] for a in range(8) for b in range(a + 1, 8) if (a, b) != (2, 5)]
    return shipped("mi300x-8").replace("xgmi: {mesh: 1}", f"xgmi: {{pairs: {pairs}}}")


BAD = {
    "a domain larger than the cluster": (
        lambda: shipped("gb200-nvl72").replace("nodes: 18\n", "nodes: 4\n", 1),
        (),
        "a domain of 18 nodes is larger than the cluster, which has 4; write `nodes: 18` or a smaller domain",
    ),
    "part of a tray": (
        lambda: shipped("gb200-nvl72"),
        ("--nodes", "18", "--gpus-per-node", "3"),
        "3 of a tray's 4 GPUs asked for; a job on several nodes of an NVLink domain has whole trays",
    ),
    "part of a tray in the file": (
        lambda: shipped("gb200-nvl72") + "gpus_per_node: 2\n",
        (),
        "2 ranks a node are part of a tray, which has 4 GPUs; leave it out",
    ),
    "a rack without NICs, two racks": (
        without_nics,
        ("--nodes", "36"),
        "has no network; give its node `nics` and the file a `fabric`, or use at most 18 nodes",
    ),
    "a mesh with a missing link": (
        with_a_hole,
        (),
        "no link joins gpu2 and gpu5: eight MI300X are a mesh of 28 links; write `mesh: 1`",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_is_one_message(ddpsim, tmp_path: Path, what: str) -> None:
    written, options, said = BAD[what]
    machine = tmp_path / "machine.yaml"
    machine.write_text(written(), encoding="utf-8")
    ddpsim(*PREDICT, machine, *options).refused(said)


@pytest.mark.parametrize(
    "command",
    [
        (*PREDICT, "gb200-nvl72", "--nodes", "36"),
        (*PREDICT, "gb200-nvl72", "--nodes", "252", "--algorithm", "ring"),
        (*PREDICT, "gb200-nvl72", "--nodes", "252", "--backend", "gloo"),
        (*PREDICT, "dgx-1v", "--scheme", "priority:256KiB"),
        ("allreduce", "--topology", "gb200-nvl72", "--nodes", "252"),
        ("plan", "--workload", "resnet50", "--topology", "gb200-nvl72", "--nodes", "36"),
    ],
    ids=lambda command: " ".join(command[:1] + command[4:]),
)
def test_more_transfers_than_ten_seconds_hold_are_refused_at_once(ddpsim, command: tuple[str, ...]) -> None:
    begin = time.process_time()
    ddpsim(*command, "--fidelity", "steps").refused("single transfers, at most 60,000 are carried out in 10 s; use")
    assert time.process_time() - begin < 10
