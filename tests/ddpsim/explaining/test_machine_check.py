"""A machine on which the traced run cannot have been is refused, and what is guessed of one is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.cli.app import run
from ddpsim.common.errors import TopologyError
from ddpsim.explaining.files import rank_from_trace
from ddpsim.explaining.machine import TracedMachine, count_node_gpus, machine_of
from ddpsim.explaining.run_facts import RunFacts
from tests.ddpsim.explaining.seen_ranks import ranks
from tests.ddpsim.workload.kineto_traces import Job, written
from tests.traces import example_trace


def on(topology: str, world_size: int, device: str = "GPU", node_gpus: int = 0) -> TracedMachine:
    backend = "gloo" if device == "cpu" else "nccl"
    return machine_of(world_size, device, [], backend, RunFacts(topology=topology), node_gpus)


@pytest.mark.parametrize(
    ("topology", "world_size", "device", "node_gpus", "said"),
    [
        ("dgx-1v", 8, "H100", 0, "the traced ranks are on H100, dgx-1v has V100"),
        ("lab-flat", 4, "A100-80GB", 0, "the traced ranks are on A100-80GB, lab-flat has no GPUs"),
        ("hgx-a100-4", 8, "A100", 8, "a traced node has 8 GPUs or more, one of hgx-a100-4 has 4"),
        ("2xgp100-nvlink", 4, "GPU", 0, "4 ranks were traced, 2xgp100-nvlink has room for 2 on 1 node"),
        ("lab-flat", 8, "cpu", 0, "8 ranks were traced, lab-flat has room for 4 on 4 nodes"),
    ],
)
def test_a_machine_that_the_run_cannot_have_been_on_is_refused(topology, world_size, device, node_gpus, said):
    with pytest.raises(TopologyError, match=f"^topology: {said}; give the machine that was traced"):
        on(topology, world_size, device, node_gpus)


@pytest.mark.parametrize(
    ("topology", "world_size", "device", "placed"),
    [
        ("dgx-a100", 16, "A100-80GB", (2, 8)),
        ("gb200-nvl72", 144, "GB200", (36, 4)),
        ("loopback", 4, "cpu", (1, 4)),
        ("dgx-1v", 2, "cpu", (1, 2)),
        ("dgx-1v", 8, "NVIDIA-of-nobody", (1, 8)),
    ],
)
def test_a_machine_that_it_can_have_been_on_is_taken(topology, world_size, device, placed):
    machine = on(topology, world_size, device)
    assert (machine.nodes, machine.gpus_per_node, machine.notes) == (*placed, ())


@pytest.mark.parametrize(("device", "name"), [("T4", "g4dn.metal"), ("A10G", "g5.48xlarge"), ("L4", "g6.48xlarge")])
def test_a_run_on_a_cloud_gpu_has_a_machine_that_is_assumed_where_none_is_given(device, name):
    machine = machine_of(8, device, [], "nccl")
    assert (machine.topology.name, machine.nodes, machine.gpus_per_node) == (name, 1, 8)
    assert [gpu.model for gpu in machine.topology.groups[0].template.gpus] == [device] * 8
    assert machine.assumed == f"no machine is given: {name} is assumed"


def test_ranks_that_do_not_fill_nodes_are_placed_and_said_to_be():
    assert on("dgx-1v", 12).notes == ("12 ranks do not fill nodes of 8 of dgx-1v: 2 nodes of 6 ranks each are taken",)


def test_gpus_of_a_node_are_those_seen_or_the_ranks_of_a_host():
    traced = [replace(rank, device="A100", clock="host", gpus=2) for rank in ranks(3)]
    assert count_node_gpus(traced) == 3
    assert count_node_gpus(traced[:1]) == 2
    assert count_node_gpus([replace(rank, device="cpu") for rank in traced]) == 0


def test_a_recorded_run_says_its_device_and_the_ranks_of_its_node():
    provenance = {"compute_device": "V100", "local_world_size": 4}
    rank = rank_from_trace(replace(example_trace(world_size=8), provenance=provenance), 0, "rank0.json")
    assert (rank.device, rank.gpus) == ("V100", 4)


def test_the_command_names_the_option(tmp_path, capsys):
    path = written(tmp_path, Job([100.0] * 4, ddp=True, recorded=True, wire=60.0).document(steps=5))
    assert run(["explain", str(path), "--topology", "dgx-1v"]) == 2
    assert "error: --topology: the traced ranks are on A100, dgx-1v has V100; give" in capsys.readouterr().err
