"""A hundred random cases of the laws, of a fresh seed, and how a case is judged."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random

import pytest

from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from studies.fresh import seed
from studies.laws.forced import CHOICES, chosen_as_for
from studies.laws.jobs import Job, alike, more_bandwidth, slow_first_node, slow_other_node
from studies.laws.laws import LAWS, ROUNDING, judged

SEED = seed()
CASES, PARTS = 100, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_no_law_is_broken(part: int) -> None:
    found = [judged(SEED, number) for number in range(part, CASES, PARTS)]
    assert [each for each in found if each.what == "broken"] == [], f"seed {SEED}"


def test_a_step_that_goes_the_other_way_breaks_its_law() -> None:
    for law in LAWS:
        below, above = law.within
        assert law.holds(1.0, 1.0)
        assert not law.holds(1.0, 1.0 + 1.01 * above)
        assert law.holds(1.0, 1.0 - 1.01 * below) != law.equal


def test_a_number_that_another_command_tells_otherwise_breaks_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
    same = next(law for law in LAWS if law.name == "same number")
    found = replace(job(), options=Options())
    assert same.holds(*same.compared_s(found, found))
    told = SimulatedRun.plan_and_period
    monkeypatch.setattr(SimulatedRun, "plan_and_period", lambda run: (None, told(run)[1] * 1.0001))
    assert not same.holds(*same.compared_s(found, found))


def test_what_no_choice_explains_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count(1)
    monkeypatch.setattr(Job, "step_s", lambda job: float(next(steps)))
    monkeypatch.setattr("studies.laws.laws._forced", lambda law, *found: iter([("nothing", (1.0, 2.0))]))
    assert judged(1, 0).what == "broken"
    monkeypatch.setattr("studies.laws.laws._forced", lambda law, *found: iter([("rings", (2.0, 1.0))]))
    assert (judged(1, 0).what, judged(1, 0).cause) == ("choice", "rings")


def job(scheme: str = "ddp", machine: str = "dgx-1v") -> Job:
    topology = load_topology(machine)
    return Job(load_workload("mlp"), topology, 2, topology.place(1).gpus_per_node, Options(scheme=scheme, iterations=3))


@pytest.mark.parametrize("scheme", ["ddp", "zero2", "hsdp:2"])
def test_forcing_what_is_chosen_anyway_changes_nothing(scheme: str) -> None:
    with chosen_as_for(job(scheme).placement(), CHOICES):
        forced_s = job(scheme).step_s()
    assert forced_s == job(scheme).step_s()


def test_another_machines_choices_are_forced_within_the_block_only() -> None:
    here, there = job(machine="p3dn.24xlarge"), more_bandwidth(job(machine="p3dn.24xlarge"), Random(1))
    alone_s = here.step_s()
    with chosen_as_for(there.placement(), CHOICES):
        assert here.step_s() != alone_s
    assert here.step_s() == alone_s


def test_the_same_seed_and_number_make_the_same_case() -> None:
    assert judged(1, 3) == judged(1, 3)


@pytest.mark.parametrize("number", range(2))
def test_the_node_of_a_parameter_server_changes_places_with_none(number: int) -> None:
    before = replace(job("parameter-server"), nodes=4)
    assert alike(before) == 3
    slow = slow_first_node(before, Random(number))
    others = [slow_other_node(slow, Random(seed)) for seed in range(4)]
    assert [other.step_s() for other in others] == pytest.approx([slow.step_s()] * 4, rel=ROUNDING)
    ranks = {rank // before.gpus for other in others for rank in other.options.stragglers}
    assert ranks | {each.node for other in others for each in other.topology.degraded} == {1, 2}
