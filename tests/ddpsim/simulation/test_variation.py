"""Jitter and straggler distributions, against what the slowest of many ranks is expected to take."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist, fmean

import numpy as np
import pytest

from ddpsim.common.errors import InputError
from ddpsim.simulation.engine import simulate, simulate_local
from ddpsim.simulation.jobs.representatives import RankKind, draw_latest, factors_of
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.straggling import StragglerDistribution
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from ddpsim.workload.iteration_profile import paces
from ddpsim.workload.replayed import add_jitter, jitter_of
from tests.ddpsim.simulation.builders import ALIKE, workload

MACHINE = load_topology("dgx-1v")


def step_s(options, nodes=1, calibration=ALIKE):
    """Return the mean step where the only thing that ranks wait for is each other, at one small bucket."""
    source = workload(device="V100", size=10)
    records = simulate(source, MACHINE.place(nodes), options, calibration).of_rank(0)
    return fmean(record.iteration_s for record in records)


def test_without_either_nothing_changes():
    assert step_s(Options(iterations=4)) == step_s(Options(iterations=4, jitter=0.0))
    assert all((each == 1).all() for each in factors_of(Options(), range(8), 8, 3))


def test_a_step_at_a_thousand_ranks_takes_what_the_slowest_of_them_does():
    """Computing takes 0.12 s; the largest of 1,024 normal variables is 3.2 standard deviations out (Blom, 1958)."""
    spread, quiet = 0.03, step_s(Options(iterations=40), 128)
    slowest = np.exp(spread * NormalDist().inv_cdf((1024 - 0.375) / (1024 + 0.25)))
    jittered = step_s(Options(iterations=40, jitter=spread), 128)
    assert jittered == pytest.approx(quiet * slowest, rel=0.01)
    # One draw of ranks that keep their factors, instead of forty.
    spread_out = [step_s(Options(iterations=4, straggling=f"lognormal:{spread}", seed=s), 128) for s in range(8)]
    assert fmean(spread_out) == pytest.approx(quiet * slowest, rel=0.015)


def test_an_estimates_jitter_reaches_as_far_as_a_drawn_one():
    """Sixty-four iterations hold 2.4 deviations; a thousand ranks are expected 3.2 out, eight within."""
    source = load_workload("resnet50@v100-fp32-b32")
    uneven = add_jitter(source, 0.05)
    for nodes in (1, 128):
        placed = MACHINE.place(nodes)
        own = tuple(paces(uneven))
        kind = RankKind(range(placed.world_size), uneven, own, jitter=jitter_of(uneven))
        latest = draw_latest(kind, 0, 100)
        assert latest is not None
        draws, _ = factors_of(Options(jitter=0.05), kind.ranks[1:], placed.world_size, 100)
        factors = [latest(iteration).forward_work / source.forward.device_s[0] for iteration in range(100)]
        assert fmean(factors) == pytest.approx(draws.max(axis=0).mean(), rel=0.01)


def test_more_ranks_wait_longer_and_one_process_waits_for_nobody():
    steps = [step_s(Options(iterations=20, jitter=0.05), nodes) for nodes in (1, 8, 64)]
    assert steps == sorted(steps)
    source = workload(device="V100")
    alone = [it.iteration_s for it in simulate_local(source, Options(iterations=5, jitter=0.1, straggling="pareto:3"))]
    assert alone == [it.iteration_s for it in simulate_local(source, Options(iterations=5))]


def test_jitter_varies_a_step_that_the_host_binds_as_much_as_one_of_the_device():
    """A device of no work waits for launches: the host's clock alone makes the step, and its jitter the waiting."""
    spread, bound = 0.05, Options(iterations=20, scale_compute=1e-6)
    device, host = (
        step_s(replace(each, jitter=spread), 8) / step_s(each, 8) for each in (Options(iterations=20), bound)
    )
    assert host == pytest.approx(device, rel=0.01)
    assert host > 1 + 2 * spread


def test_a_straggler_is_a_slow_device_not_a_slow_host():
    bound = Options(iterations=4, scale_compute=1e-6)
    assert step_s(replace(bound, straggling="some:1:1.5")) == pytest.approx(step_s(bound), rel=1e-3)


def test_some_ranks_so_much_slower():
    slower = step_s(Options(iterations=4, straggling="some:1:1.5"))
    assert slower == pytest.approx(1.5 * step_s(Options(iterations=4)), rel=0.01)


def test_a_ranks_draw_is_its_own_whoever_it_is_simulated_with():
    options = Options(jitter=0.1, straggling="exponential:0.2", seed=3)
    everybody, some, others = (
        np.stack(factors_of(each, ranks, 8, 5))
        for each, ranks in ((options, range(8)), (options, [2, 5]), (replace(options, seed=4), range(8)))
    )
    assert np.array_equal(some, everybody[:, [2, 5]])
    assert not np.array_equal(others, everybody)


@pytest.mark.parametrize(
    ("text", "mean", "median"),
    [
        ("lognormal:0.2", np.exp(0.02), 1.0),
        ("exponential:0.3", 1.3, 1 + 0.3 * np.log(2)),
        ("pareto:3", 1.5, 2 ** (1 / 3)),
        ("some:0.25:2", 1.25, 1.0),
    ],
)
def test_distributions_have_their_mean_and_median(text, mean, median):
    drawn = StragglerDistribution.of(text).factors(np.random.default_rng(0), 200_000)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert np.median(drawn) == pytest.approx(median, rel=0.01)


@pytest.mark.parametrize(
    "text", ["normal:1", "lognormal", "lognormal:x", "lognormal:-1", "some:0.1", "some:2:2", "pareto:1"]
)
def test_what_is_no_distribution_is_refused(text):
    with pytest.raises(InputError, match="straggling"):
        Options(straggling=text)


def test_jitter_out_of_range():
    for jitter in (-0.1, 1.5):
        with pytest.raises(InputError, match=r"jitter: .* is out of range"):
            Options(jitter=jitter)
