"""A second band, with its condition, where nobody knows whether cards without NVLink reach each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import Calibration, Options, load_topology, load_workload
from ddpsim.prediction.conditional_step import predict_other_reach, predict_slow_host
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.topology.declared import NodeGroup
from ddpsim.topology.graph import Topology

MODEL = load_workload("resnet50@v100-fp32-b32")
PAIRS = load_topology("4xv100-pcie")


def stated(reach: str) -> Topology:
    """The machine, its file saying how far peer-to-peer reaches."""
    groups = tuple(NodeGroup(replace(g.template, peer_to_peer=reach), g.count) for g in PAIRS.groups)
    return replace(PAIRS, groups=groups)


def test_it_is_the_prediction_of_a_machine_whose_file_says_so() -> None:
    found = predict_other_reach(predict(Job(MODEL, PAIRS)))
    assert found is not None
    assert (found.condition, found.setting) == ("if peer-to-peer does not work", "NCCL_P2P_DISABLE=1")
    assert found.step_s == pytest.approx(predict(Job(MODEL, stated("LOC"))).step_s)
    assert found.document()["step_s"] == found.step_s[0] > predict(Job(MODEL, PAIRS), band=False).iteration_s


@pytest.mark.parametrize(
    ("machine", "gpus", "options"),
    [
        (load_topology("dgx-1v"), 8, Options()),
        (load_topology("8xrtx4090"), 8, Options()),
        (stated("LOC"), 4, Options()),
        (PAIRS, 1, Options()),
        (PAIRS, 4, Options(comm="noop")),
        (PAIRS, 4, Options(backend="gloo")),
    ],
    ids=["nvlink", "driver", "file", "one rank", "no communication", "gloo"],
)
def test_what_is_known_or_plays_no_part_has_none(machine: Topology, gpus: int, options: Options) -> None:
    assert predict_other_reach(predict(Job(MODEL, machine, gpus_per_node=gpus, options=options), band=False)) is None


def test_a_calibration_knows_the_machine() -> None:
    covering = replace(Calibration.priors("nccl"), residual_low=-0.1, residual_high=0.1)
    assert predict_other_reach(predict(Job(MODEL, PAIRS, calibration=covering), band=False)) is None


def test_host_memory_may_be_far_slower_than_the_band_says() -> None:
    machine = load_topology("8xrtx4090")
    found = predict(Job(MODEL, machine, options=Options(keep_pace=True)))
    slow = predict_slow_host(found)
    assert slow is not None
    assert slow.condition == "if allreduces take 4 to 7 times as long, as measured in containers at one site"
    step_s, low_s, high_s = slow.step_s
    assert found.step_s[0] < low_s < step_s < high_s
    assert predict_slow_host(predict(Job(MODEL, machine, gpus_per_node=1), band=False)) is None
    assert predict_slow_host(predict(Job(MODEL, load_topology("dgx-1v")), band=False)) is None
    covering = replace(Calibration.priors("nccl"), residual_low=-0.1, residual_high=0.1)
    assert predict_slow_host(predict(Job(MODEL, machine, calibration=covering), band=False)) is None
