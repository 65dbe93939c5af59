"""The set-up: buckets as PyTorch 1.5 makes them, NCCL 2.4's choice, and that each fixed value is what fixes it says."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.execute import Collectives
from ddpsim.common.units import MIB
from ddpsim.prediction.models import Model
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from studies.paper import setup
from studies.paper.assumptions import ASSUMPTIONS, CENTRAL, Settings, at, ends
from studies.paper.fig2 import SIZES, Total
from studies.paper.figure import Point
from studies.paper.figures import FIGURES
from studies.paper.page import value_of
from studies.paper.step import PARTS, Step, told, with_ends

PAGE = Path(__file__).with_name("paper.md").read_text()


@pytest.mark.parametrize("cap_mb", [0, 5, 25])
def test_buckets_are_those_that_torch_makes_in_registration_order_and_reverses(cap_mb: float) -> None:
    workload = load_workload("resnet50")
    tensors = [torch.empty(parameter.shape) for parameter in workload.parameters]
    asked, _ = _compute_bucket_assignment_by_size(tensors, [MIB, int(cap_mb * MIB)])
    options = Options(caps=BucketCaps(bucket_cap_mb_list=(setup.FIRST_MB, cap_mb)), assignment="unused", backend="nccl")
    plan = options.bucket_plan(workload)
    assert [list(bucket.parameters) for bucket in plan.buckets] == list(reversed(asked))


@pytest.mark.parametrize(("servers", "size", "algorithm"), [(2, 1e9, "tree"), (4, 4e6, "ring"), (4, 3e6, "tree")])
def test_an_allreduce_between_servers_goes_as_nccl_2_4_chooses(servers: int, size: float, algorithm: str) -> None:
    placement = load_topology(setup.EXCLUSIVE).place(servers, 8)
    made = Collectives(None, placement, backend="nccl", calibration=setup.constants("nccl", servers, CENTRAL))
    assert made.choice(int(size)).algorithm == algorithm


def test_resnets_step_is_shared_by_forward_and_backward_as_it_was_measured() -> None:
    estimated = Model.of(setup.RESNET).on(load_topology(setup.EXCLUSIVE), 24)
    shared = setup.workload(setup.RESNET, 24)
    before, after = ([float(each.device_s[0]) for each in (w.forward, w.backward)] for w in (estimated, shared))
    assert sum(after) == pytest.approx(sum(before))
    assert after[1] / after[0] == pytest.approx(46.26 / 19.83)
    assert shared.gradient_ready_s[0].max() == pytest.approx(after[1])


def test_a_group_has_as_many_channels_between_servers_as_its_limit_counts() -> None:
    placement = load_topology(setup.EXCLUSIVE).place(4, 8)
    made = Collectives(None, placement, backend="nccl", calibration=setup.constants("nccl", 4, CENTRAL))
    assert made.choice(25 * MIB).channels == setup.CHANNELS


def test_every_assumption_lies_in_its_range_and_every_setting_is_one() -> None:
    assert [each.field for each in ASSUMPTIONS] == [field.name for field in fields(Settings)]
    for each in ASSUMPTIONS:
        assert each.low * each.scale < getattr(CENTRAL, each.field) < each.high * each.scale
        assert each.fixed_by in ("source", *FIGURES)
        assert at(each, getattr(CENTRAL, each.field) / each.scale) == CENTRAL
        assert f"| {each.what} | {value_of(each)} |" in PAGE, "`make paper` writes the page anew"


def test_what_a_channel_moves_makes_communication_of_resnet_as_long_as_backward() -> None:
    parts = Step(setup.RESNET, "nccl", 32, overlap=False).answer()
    assert parts["backward_compute"] <= parts["exposed_comm"] <= 1.02 * parts["backward_compute"]


@pytest.mark.parametrize(("backend", "faster"), [("nccl", 0.38), ("gloo", 0.57)])
def test_what_the_congested_link_leaves_gives_figure_10(backend: Literal["nccl", "gloo"], faster: float) -> None:
    each, eighth = (
        Step(setup.RESNET, backend, 256, setup.SHARED, sync_every=every).answer()["iteration"] for every in (1, 8)
    )
    assert 1 - eighth / each == pytest.approx(faster, abs=0.002)


def test_one_collective_of_gloo_moves_what_was_published_of_two_servers() -> None:
    placement = load_topology("2xgp100-nvlink").place(1, 2)
    constants = setup.constants("gloo", 1, CENTRAL).with_values({"gloo.staging.efficiency": 1e9}, source="CPU")
    size = 64 * MIB
    rate = size / Collectives(None, placement, backend="gloo", calibration=constants).estimate_s(size)
    assert rate == pytest.approx(1.073e9, rel=0.03)


def test_a_claim_whose_figure_fixed_what_it_would_be_judged_by_is_undecided() -> None:
    assert {each.fixed_by for each in ASSUMPTIONS} == {"source", "fig6", "fig10"}
    for name, expected in (("fig10", {12}), ("fig6", {3})):
        figure = FIGURES[name]
        same = {point: dict.fromkeys(("iteration", "local", "forward", *PARTS), 1.0) for point in figure.points()}
        claims = figure.reproduce(same).claims
        assert {claim.number for claim in claims if claim.verdict == "undecided"} == expected


def test_a_band_holds_its_figure_and_each_end_moves_it_on_its_own() -> None:
    step = Step(setup.RESNET, "nccl", 32)
    answers: dict[Point, Any] = {each: each.answer() for each in with_ends([step])}
    found = told(answers, {"it": step}, lambda of: of["it"]["iteration"])
    alone = [answers[replace(step, settings=end)]["iteration"] for pair in ends(["resnet_batch"]) for end in pair]
    assert found.low <= min(*alone, found.value) < max(*alone, found.value) <= found.high


def test_a_total_is_that_of_all_its_collectives_where_the_host_is_not_the_limit() -> None:
    size = SIZES[-1]
    placement = load_topology("2xgp100-nvlink").place(1, 2)
    made = Collectives(None, placement, backend="nccl", calibration=setup.constants("nccl", 1, CENTRAL))
    assert Total("nccl", size).answer() == pytest.approx(3 * made.estimate_s(4 * size), rel=0.02)
