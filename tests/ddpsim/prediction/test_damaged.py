"""Figures and paces in a workload that cannot be read are errors, and nothing is taken in their place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import load_topology, load_workload
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.workload import Workload
from ddpsim.workload.anchors import RooflineFactors


def with_provenance(**changed: object) -> Workload:
    source = load_workload("resnet50")
    return replace(source, provenance={**source.provenance, **changed})


@pytest.mark.parametrize(
    "figures", [{"name": "V100"}, {"name": "V100", "memory_bandwidth": "900", "peaks": {}}, "V100"]
)
def test_figures_of_a_gpu_that_are_none_are_named(figures: object) -> None:
    with pytest.raises(InputError, match="gpu_figures"):
        predict(Job(with_provenance(gpu_figures=figures), load_topology("dgx-1v")), band=False)


@pytest.mark.parametrize(
    "damage",
    [
        {"pace": {"phases": [1.0, "x"], "host": 1.0, "scale": 1.0}},
        {"pace": None, "scale": "1.02"},
        {"pace": {"phases": [2.0, 2.0, 1.0], "host": 1.0, "scale": 2.0}, "row_scale": "half"},
    ],
)
def test_a_pace_that_cannot_be_read_is_no_roofline_s(damage: dict[str, object]) -> None:
    source = with_provenance(**damage)
    with pytest.raises(WorkloadError, match=r"provenance\.pace.*cannot be read"):
        RooflineFactors.if_scaled(source.provenance, source.name)


def test_an_estimate_without_a_measured_time_has_no_pace_of_its_own() -> None:
    source = load_workload("bert-base@h100-amp-b32")
    assert RooflineFactors.if_scaled(source.provenance, source.name) is None
    assert RooflineFactors.if_scaled(load_workload("resnet50").provenance, "resnet50") is not None
