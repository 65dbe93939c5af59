"""The late rank is named by what it takes before collectives, with phase and cause; a healthy run names none."""

import re
from dataclasses import replace

import pytest

from ddpsim.explaining.late import SHARE, excess_s, explain_uncertain_excess, late_rank
from tests.ddpsim.explaining.seen_ranks import STEP_S, ranks


def test_nobody_is_late_in_a_healthy_run():
    assert late_rank(ranks()) is None


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_rank_that_takes_longer_is_named_with_its_phase(phase, count):
    found = late_rank(ranks(count, late={1: {phase: 0.004}}))
    assert (found.rank, found.phase, found.cause) == (1, phase, phase)
    assert found.seconds == pytest.approx(0.004, abs=3e-4)


def test_what_costs_less_than_the_threshold_is_not_named():
    assert late_rank(ranks(late={1: {"forward": 0.8 * SHARE * STEP_S}})) is None
    assert late_rank(ranks(late={1: {"forward": 1.3 * SHARE * STEP_S}})) is not None


def test_hooks_that_take_longer_are_the_hosts():
    found = late_rank(ranks(late={2: {"hooks": 0.005}}))
    assert (found.rank, found.phase, found.cause) == (2, "hooks", "host")


def test_on_a_device_the_host_is_the_cause_where_the_device_is_not():
    by_host = late_rank(ranks(late={3: {"backward": 0.006}}, device={}))
    assert (by_host.rank, by_host.phase, by_host.cause) == (3, "backward", "host")
    by_device = late_rank(ranks(device={3: {"backward": 0.040}}))
    assert (by_device.rank, by_device.phase, by_device.cause) == (3, "backward", "backward")
    assert by_device.seconds == pytest.approx(0.025 + 0.040 - 0.050, abs=1e-9)


def test_one_rank_alone_and_two_steps_tell_nothing():
    assert late_rank(ranks(1)) is None
    assert late_rank(ranks(steps=2, late={1: {"forward": 0.010}})) is None


def test_the_worst_of_two_is_named_and_both_are_in_the_table():
    found = ranks(late={1: {"forward": 0.005}, 2: {"input": 0.009}})
    assert late_rank(found).rank == 2
    excess = excess_s(found)
    assert excess[1]["forward"] == pytest.approx(0.005, abs=3e-4)
    assert excess[2]["input"] == pytest.approx(0.009)


def late_in(seconds):
    """Return ranks of which the second takes so much longer in forward, step by step."""
    healthy = ranks(2, steps=len(seconds))
    steps = tuple(
        replace(step, host_s={**step.host_s, "forward": step.host_s["forward"] + more})
        for step, more in zip(healthy[1].iterations, seconds, strict=True)
    )
    return [healthy[0], replace(healthy[1], iterations=steps)]


def test_an_excess_of_the_table_that_names_nobody_is_told_with_the_condition_that_it_misses():
    unsteady = late_in([0.010, 0.010, 0.010, 0.010, -0.010, -0.010])
    assert re.fullmatch(
        r"rank 1 takes \S+ ms more in forward \(median of 6 steps\), but in 4 of 6 only",
        explain_uncertain_excess(unsteady),
    )
    differing = late_in([0.002, 0.004, 0.006, 0.020, 0.040, 0.060])
    assert ", but steps differ too much to be sure: four standard errors are " in explain_uncertain_excess(differing)
    made_up = ranks(2, late={1: {"forward": 0.010, "backward": -0.010}})
    assert explain_uncertain_excess(made_up).endswith(" in all phases together")
    assert ", but less than " in explain_uncertain_excess(made_up)
    assert [late_rank(each) for each in (unsteady, differing, made_up)] == [None] * 3


def test_nothing_is_unsure_where_a_rank_is_late_or_all_take_the_same():
    late = ranks(late={1: {"forward": 0.010}})
    assert late_rank(late) is not None
    assert [explain_uncertain_excess(late), explain_uncertain_excess(ranks()), explain_uncertain_excess(ranks(1))] == [
        None
    ] * 3
