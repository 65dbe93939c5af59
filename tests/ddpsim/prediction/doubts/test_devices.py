"""Which GPUs of a node a job gets: what those far from the NIC cost, as a machine whose file names them has it."""

from dataclasses import replace

import pytest

from ddpsim import Calibration, Options, load_topology, load_workload
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.nccl.paths_taken import paths_taken
from ddpsim.common.units import GIB, MIB
from ddpsim.prediction.doubts.causes import doubts_of, far_from_nics
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.topology.far_gpus import farthest_from_nics
from ddpsim.topology.graph import Placement

MACHINE = load_topology("2x4a100-1nic")
FAR = replace(MACHINE, visible_devices=(2, 3))
SIZES = [MIB, 25 * MIB, int(GIB)]


def alone_s(placement: Placement, size: int) -> float:
    return make_transport(placement, "nccl", None, CollectiveOptions(isolated=False)).allreduce_s(size)


def test_the_factor_is_that_of_a_file_that_names_the_far_gpus() -> None:
    band = far_from_nics(MACHINE.place(2, 2), None, SIZES)
    assert band is not None
    for size in SIZES:
        assert band.low(size) == 1.0
        assert band.high(size) == pytest.approx(alone_s(FAR.place(2, 2), size) / alone_s(MACHINE.place(2, 2), size))
        assert band.high(size) > 1.5


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus"),
    [("2x4a100-1nic", 1, 2), ("2x4a100-1nic", 2, 4), ("dgx-a100", 2, 2), ("dgx-h100", 4, 1)],
)
def test_one_node_whole_nodes_and_gpus_with_a_nic_each_leave_no_choice(machine: str, nodes: int, gpus: int) -> None:
    assert farthest_from_nics(load_topology(machine).place(nodes, gpus)) is None


def test_who_says_which_gpus_are_visible_has_no_doubt_of_it() -> None:
    assert far_from_nics(FAR.place(2, 1), None, SIZES) is None


def test_it_is_a_doubt_with_one_side_that_predictions_carry() -> None:
    model = load_workload("resnet50@v100-fp32-b32")
    placement = MACHINE.place(2, 2)
    [doubt] = [d for d in doubts_of(model, placement, Options(), None, SIZES) if d.name == "GPUs far from the NIC"]
    assert doubt.low is None
    assert "visible_devices" in doubt.remedy
    assert "GPUs far from the NIC" in {d.name for d in predict(Job(model, MACHINE, gpus_per_node=2)).doubts}
    assert "GPUs far from the NIC" not in {d.name for d in predict(Job(model, FAR, gpus_per_node=2)).doubts}
    covering = replace(Calibration.priors("nccl"), residual_low=-0.1, residual_high=0.1)
    assert "GPUs far from the NIC" not in {d.name for d in doubts_of(model, placement, Options(), covering, SIZES)}
    assert "GPUs far from the NIC" not in {
        d.name for d in doubts_of(model, placement, Options(backend="gloo"), None, SIZES)
    }


def test_the_other_gpus_are_a_choice_that_is_shown() -> None:
    found, far = paths_taken(MACHINE.place(2, 2)), paths_taken(FAR.place(2, 2))
    assert found is not None
    assert found.between_nodes is not None
    assert far is not None
    assert far.between_nodes is not None
    [other] = found.between_nodes.alternatives
    assert (other.setting, other.busbw) == ("visible_devices: [2, 3]", far.between_nodes.busbw)


def test_nccl_takes_rings_for_buckets_and_trees_for_large_messages_only_on_the_far_socket() -> None:
    # Its log on such nodes: two equal channels, trees for 1.3 GiB; steps with buckets of 25 MiB go at the ring's rate.
    far, near = make_transport(FAR.place(2, 2), "nccl"), make_transport(MACHINE.place(2, 2), "nccl")
    assert (far.choice(25 * MIB).algorithm, far.choice(1350 * MIB).algorithm) == ("ring", "tree")
    assert near.choice(1350 * MIB).algorithm == "ring"
    assert far.choice(1350 * MIB).channels == 2
