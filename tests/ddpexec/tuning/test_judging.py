"""What is judged without torch: spans that share a network, the line through them, blocks of steps, the step clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddpexec.tuning.observation import Observed, ObservedJob, RankSteps, Sent
from ddpexec.tuning.racing import BLOCK, PRESENT, Race, student
from ddpexec.tuning.ranking import rank_caps
from ddpexec.tuning.tuner import WINDOW, StepClock, probes
from ddpexec.tuning.wires import measure_shared, wire_of
from ddpsim.bucketing import Parameter
from tests.profile import examples

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
    assert measure_shared([(0.0, 4.0), (2.0, 6.0)]) == [(2.0, 1.0), (2.0, 1.0)]
    assert measure_shared([(0.0, 1.0), (2.0, 3.0)]) == [(1.0, 0.0), (1.0, 0.0)]


def beside(together: float, rate: float = 1e8, latency_s: float = 2e-3) -> RankSteps:
    """Return a rank of whose three messages the second and third are under way at once, and carry more together."""
    sizes = [8 << 20, 4 << 20, 4 << 20]
    first_s = latency_s + sizes[0] / rate
    both_s = latency_s + (sizes[1] + sizes[2]) / (rate * together)
    spans = [(1.0, 1.0 + first_s), (2.0, 2.0 + both_s), (2.0, 2.0 + both_s)]
    rank = rank_of(sizes)
    return replace(rank, sent=[[Sent(size, *span) for size, span in zip(sizes, spans, strict=True)]] * 4)


@pytest.mark.parametrize("together", [1.0, 1.25])
def test_what_two_carry_at_once_is_told_from_what_one_carries(together: float) -> None:
    found = wire_of([[beside(together)] * 2], small=(64, 2e-3))
    assert found is not None
    assert found.latency_s == 2e-3
    assert 1 / found.per_byte_s == pytest.approx(1e8, rel=1e-6)
    assert found.together == pytest.approx(together, rel=1e-6)


def test_two_that_carry_less_than_one_are_noise() -> None:
    found = wire_of([[beside(0.9)] * 2], small=(64, 2e-3))
    assert found is not None
    assert found.together == 1.0


def test_a_latency_takes_no_link_from_a_message_under_way_beside_it() -> None:
    count, size = 24, 1 << 20
    job = ObservedJob(tuple(Parameter(f"p{number}", (size // 4,)) for number in range(count)), "cpu", "gloo", 4)
    seen = [rank_of([size] * count)] * 4

    def step_s(latency_s: float) -> dict[int, float]:
        found = rank_caps(Observed(job, 0.5, [seen], (64, latency_s)))
        return {len(each.groups): each.step_s for each in found.candidates}

    slow, fast = step_s(LATENCY_S), step_s(LATENCY_S / 10)
    # One bucket waits for one latency; of 24 all but a few pass beside another's bytes.
    assert slow[1] - fast[1] < 2 * LATENCY_S
    assert slow[24] - fast[24] < 4 * LATENCY_S


def test_sizes_all_alike_ask_for_probes_and_different_ones_for_none() -> None:
    job = ObservedJob(tuple(Parameter(f"p{number}", (1 << 18,)) for number in range(4)), "cpu", "gloo", 2)
    alike = [rank_of([1 << 20] * 4)] * 2
    first, *_ = probes(job, alike)
    assert first.groups != tuple((number,) for number in range(4))
    assert first.caps.bucket_cap_mb is not None
    assert probes(job, [rank_of([1 << 20, 4 << 20, 1 << 20, 1 << 20])] * 2) == []


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_ranking_finds_that_one_bucket_for_each_of_many_small_gradients_costs_latency(backend: Any) -> None:
    count, size = 40, 1 << 12
    job = ObservedJob(tuple(Parameter(f"p{number}", (size // 4,)) for number in range(count)), "cpu", backend, 2)
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


def raced(steps: Callable[[int, int], float], plans: int, left: int = 80) -> tuple[int, Race, list[int]]:
    """Run a race whose plans take `steps` by plan and step; return what stays, the race, and the plan of each block."""
    race, ran, now = Race(plans), list[int](), 0
    while left > BLOCK and (turn := race.turn()) is not None:
        plan, block = turn
        race.take(plan, [steps(plan, now + number) for number in range(block)])
        ran.append(plan)
        now, left = now + block, left - block
    return race.choose_plan(), race, ran


def noisy(means: Sequence[float], seed: int, spread: float = 0.01) -> Callable[[int, int], float]:
    rng = np.random.default_rng(seed)
    return lambda plan, _: float(rng.normal(means[plan], spread))


def test_a_plan_stays_only_where_it_is_surely_faster() -> None:
    assert raced(noisy([1.0, 1.0, 0.95], 1), 3)[0] == 2
    assert raced(noisy([1.0, 1.0], 1), 2)[0] == PRESENT
    paused = noisy([1.0, 0.95], 1)
    assert raced(lambda plan, now: paused(plan, now) + 9.0 * (now == 6), 2)[0] == 1  # a step waits for a checkpoint


def test_a_slow_plan_runs_one_block_and_the_race_ends_where_none_is_left() -> None:
    stays, race, ran = raced(noisy([1.0, 1.05, 1.04], 2), 3)
    assert (stays, ran, race.running) == (PRESENT, [0, 1, 2], [])


def test_a_clear_gain_ends_the_race_early() -> None:
    stays, _, ran = raced(noisy([1.0, 0.9], 3), 2)
    assert stays == 1
    assert len(ran) <= 8


def test_a_machine_that_slows_down_meets_all_plans_alike() -> None:
    flat = noisy([1.0, 1.0, 1.0], 4, 0.005)
    stays, race, _ = raced(lambda plan, now: flat(plan, now) * (1.0 + 0.3 * (now > 36)), 3)
    assert stays == PRESENT
    race.add()
    (first, _), plans = race.turn() or (None, 0), len(race.measure())
    assert first == PRESENT or first == plans - 1  # one that joins late is held against steps of its own rounds


def test_plans_that_are_alike_are_seldom_taken_for_faster() -> None:
    tried = examples(300)
    wrong = sum(raced(noisy([1.0] * 4, seed, 0.02), 4)[0] != PRESENT for seed in range(tried))
    assert wrong < 0.1 * tried  # a twentieth is expected


def test_a_shift_of_six_per_cent_is_noticed_in_its_window_and_noise_of_three_is_not() -> None:
    clock = StepClock(1.0)
    assert [clock.take(1.03) for _ in range(WINDOW)][-1] is False
    assert [clock.take(1.03 * 1.04) for _ in range(WINDOW)][-1] is False
    assert [clock.take(1.03 * 1.06) for _ in range(WINDOW)][-1] is True
    assert clock.take(1.0) is None
