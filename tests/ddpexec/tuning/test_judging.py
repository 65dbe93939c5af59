"""What is judged without torch: spans that share a network, the line through them, blocks of steps, the step clock."""

from __future__ import annotations

import numpy as np
import pytest

from ddpexec.tuning.blocks import compare, kept, student, turns
from ddpexec.tuning.observed import Observed, ObservedJob, RankSteps, Sent
from ddpexec.tuning.probing import probes
from ddpexec.tuning.ranking import rank_caps
from ddpexec.tuning.step_clock import WINDOW, StepClock
from ddpexec.tuning.wires import shared, wire_of
from ddpsim.bucketing import Parameter

LATENCY_S, PER_BYTE_S = 1e-3, 8e-9


def rank_of(sizes: list[int], shift_s: float = 0.0, late_s: float = 0.0, steps: int = 4) -> RankSteps:
    """Return a rank that sends so many bytes one after the other, on a clock that is off, coming late."""
    sent, begin = [], 1.0 + shift_s
    for size in sizes:
        end = begin + LATENCY_S + PER_BYTE_S * size
        sent.append(Sent(size, begin + late_s, end))
        begin = end
    ready = np.tile(np.linspace(0.09, 0.1, len(sizes)), (steps, 1))
    phase = np.full(steps, 0.1)
    groups = [(number,) for number in range(len(sizes))]
    return RankSteps(phase, phase, phase, phase, phase, phase, ready, ready, 1e-5, 1e-4, [sent] * steps, groups)


def test_a_wire_is_told_from_ranks_whose_clocks_are_off_and_one_of_which_comes_late() -> None:
    sizes = [1 << 20, 4 << 20, 16 << 20]
    early, late = rank_of(sizes), rank_of(sizes, shift_s=7.0)
    found = wire_of([[early, late]])
    assert found is not None
    assert found.apart
    assert found.latency_s == pytest.approx(LATENCY_S, rel=1e-3)
    assert found.per_byte_s == pytest.approx(PER_BYTE_S, rel=1e-3)
    behind = wire_of([[early, rank_of(sizes, late_s=1e-3)]])
    assert behind is not None
    assert behind.latency_s == pytest.approx(0.0, abs=2e-5)  # it begins with the last


def test_messages_that_share_the_network_count_half() -> None:
    assert shared([(0.0, 4.0), (2.0, 6.0)]) == [3.0, 3.0]
    assert shared([(0.0, 1.0), (2.0, 3.0)]) == [1.0, 1.0]


def test_sizes_all_alike_ask_for_probes_and_different_ones_for_none() -> None:
    job = ObservedJob(tuple(Parameter(f"p{number}", (1 << 18,)) for number in range(4)), "cpu", "gloo", 2)
    alike = [rank_of([1 << 20] * 4)] * 2
    (caps, groups), *_ = probes(job, alike)
    assert groups != tuple((number,) for number in range(4))
    assert caps.bucket_cap_mb is not None
    assert probes(job, [rank_of([1 << 20, 4 << 20, 1 << 20, 1 << 20])] * 2) == []


def test_ranking_finds_that_one_bucket_for_each_of_many_small_gradients_costs_latency() -> None:
    count, size = 40, 1 << 12
    job = ObservedJob(tuple(Parameter(f"p{number}", (size // 4,)) for number in range(count)), "cpu", "gloo", 2)
    ranks = [rank_of([size] * (count - 1) + [4 * size])] * 2
    step_s = 0.3 + count * LATENCY_S
    found = rank_caps(Observed(job, step_s, [ranks]))
    best = found.candidates[0]
    assert len(best.groups) < count / 2
    assert best.gain > 0.01
    assert best.gain_high is not None
    assert best.gain_high >= best.gain


@pytest.mark.parametrize(("freedom", "quantile"), [(3, 2.353), (5, 2.015), (10, 1.812), (30, 1.697)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(0.95, freedom) == pytest.approx(quantile, rel=0.012)


def test_a_plan_stays_only_where_it_is_surely_faster() -> None:
    rng = np.random.default_rng(1)
    base, noise = rng.normal(1.0, 0.02, 24), rng.normal(1.0, 0.02, 24)
    faster = rng.normal(0.95, 0.02, 24)
    assert kept(compare([list(base), list(noise), list(faster)])) == 2
    assert kept(compare([list(base), list(base)])) == 0
    paused = [*faster[:-1], 9.0]  # one step waited for a checkpoint
    assert kept(compare([list(base), paused])) == 1
    assert turns(2) == [0, 1, 1, 0]


def test_plans_that_are_alike_are_seldom_taken_for_faster() -> None:
    rng = np.random.default_rng(2)
    wrong = sum(kept(compare([list(rng.normal(1, 0.02, 20)), list(rng.normal(1, 0.02, 20))])) for _ in range(400))
    assert wrong < 40  # 20 expected at 95 %, 4.4 the standard deviation


def test_a_shift_of_six_per_cent_is_noticed_in_its_window_and_noise_of_three_is_not() -> None:
    clock = StepClock(1.0)
    assert [clock.take(1.03) for _ in range(WINDOW)][-1] is False
    assert [clock.take(1.03 * 1.04) for _ in range(WINDOW)][-1] is False
    assert [clock.take(1.03 * 1.06) for _ in range(WINDOW)][-1] is True
    assert clock.take(1.0) is None
