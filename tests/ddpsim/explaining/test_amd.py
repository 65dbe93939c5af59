"""Traces of AMD's GPUs name NCCL, as torch does: their machine is AMD's and its constants RCCL's."""

from __future__ import annotations

import pytest

from ddpsim.collectives.execute import make_transport
from ddpsim.explaining.machine import machine_of
from ddpsim.explaining.predicted import with_costs
from ddpsim.topology.placement import place


@pytest.mark.parametrize(("device", "name"), [("MI300X", "mi300x-8"), ("MI250X", "mi250x-4")])
def test_nccl_of_a_trace_is_rccl_on_amds_machine(device: str, name: str) -> None:
    machine = machine_of(8, device, [], "nccl")
    constants = with_costs(machine.calibration, machine.library("nccl"), {"finish_s": 12e-6})
    placement = place(machine.topology, machine.nodes, machine.gpus_per_node)
    assert (machine.topology.name, machine.library("nccl"), machine.library("gloo")) == (name, "rccl", "gloo")
    assert make_transport(placement, "nccl", constants).calibration["rccl.ddp.finish_s"] == 12e-6


def test_nccl_of_a_trace_is_nccl_elsewhere() -> None:
    assert machine_of(8, "H100", [], "nccl").library("nccl") == "nccl"
