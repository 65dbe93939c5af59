"""The late rank is named by what it takes before collectives, with phase and cause; a healthy run names none."""

import pytest

from ddpsim.explaining.late import SHARE, excess_s, late_rank
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
