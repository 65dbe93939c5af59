import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim import load_topology, load_workload
from ddpsim.prediction.predict import local_period_s
from ddpsim.simulation.engine import simulate, simulate_local
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Phase
from ddpsim.workload.iteration_profile import merge_latest, paces
from tests.ddpsim.simulation.builders import workload


def replay(pace):
    """Completion times by the recurrence that `pace` promises."""
    hooks, ready, last = np.cumsum(pace.host), [], 0.0
    for hook, work, lag in zip(hooks, pace.work, pace.lag, strict=True):
        last = max(last + work, hook + lag)
        ready.append(last)
    return hooks, np.array(ready)


def test_a_busy_device_replays_its_record():
    source = workload(device="V100", iterations=3, jitter=0.2)
    for iteration, pace in enumerate(paces(source)):
        hooks, ready = replay(pace)
        assert hooks == pytest.approx(source.gradient_hook_s[iteration][list(pace.order)])
        assert ready == pytest.approx(source.gradient_ready_s[iteration][list(pace.order)])
        assert pace.idle_s == 0


@given(st.floats(0.05, 0.9), st.lists(st.floats(0.001, 0.01), min_size=2, max_size=12))
def test_a_host_bound_device_replays_its_record_and_halving_its_work_changes_little(busy_share, lags):
    source = workload(device="A100", gradients=len(lags), host_share=1.0)
    ready = source.gradient_hook_s + np.array(lags)[::-1]
    busy = Phase(source.backward.host_s, source.backward.device_s * busy_share)
    source = dataclasses.replace(source, gradient_ready_s=np.sort(ready)[:, ::-1], backward=busy)
    _, replayed = replay(paces(source)[0])
    recorded = source.gradient_ready_s[0][::-1]
    assert replayed == pytest.approx(recorded)
    _, halved = replay(paces(source, scale_compute=0.5)[0])
    assert np.all(halved <= replayed + 1e-12)
    assert halved[-1] >= source.gradient_hook_s.max()


@pytest.mark.parametrize("device", ["cpu", "V100"])
@pytest.mark.parametrize(("phase", "part_s"), [("forward", 0.03), ("backward", 0.08), ("optimizer", 0.01)])
def test_one_phase_is_scaled_alone_on_the_clock_that_computes(device, phase, part_s):
    source = workload(device=device)
    plain, scaled = (local_period_s(source, Options(scale=each)) for each in ({}, {phase: 1.5}))
    assert scaled - plain == pytest.approx(0.5 * part_s, rel=1e-6)
    both = local_period_s(source, Options(scale={phase: 1.5}, scale_compute=2.0))
    assert both == pytest.approx(2 * scaled, rel=1e-6)
    [pace] = paces(source, phases={phase: 1.5})
    [host] = paces(source)
    if device == "V100":
        assert pace.host_s == host.host_s, "the host of a GPU keeps its time"


def test_a_gradient_behind_others_in_the_queue_is_the_devices_work_and_no_lag():
    # The host is slow at first; from the second gradient on it is ahead, and the device is busy to the end.
    source = workload(device="A100", gradients=4, backward=0.08)
    hooks, ready = np.array([[0.022, 0.021, 0.020, 0.010]]), np.array([[0.080, 0.060, 0.040, 0.012]])
    backward = Phase(np.array([0.022]), np.array([0.062]))
    source = dataclasses.replace(source, gradient_hook_s=hooks, gradient_ready_s=ready, backward=backward)
    [pace] = paces(source)
    assert replay(pace)[1] == pytest.approx(ready[0, ::-1])
    assert pace.work.sum() == pytest.approx(0.062)
    assert pace.lag == pytest.approx([0.002, 0.020, 0.0, 0.0])
    [twice_as_fast] = paces(source, scale_compute=0.5)
    assert replay(twice_as_fast)[1][-1] == pytest.approx(0.060)


@given(st.floats(0.05, 0.9), st.lists(st.floats(0, 0.05), min_size=2, max_size=12), st.floats(0.1, 1))
def test_a_device_that_idles_replays_its_record(busy_share, lags, host_share):
    source = workload(device="A100", gradients=len(lags), host_share=host_share)
    ready = np.maximum.accumulate(source.gradient_hook_s[0, ::-1] + np.array(lags))[None, ::-1]
    busy = Phase(source.backward.host_s, ready[:, 0] * busy_share)
    [pace] = paces(dataclasses.replace(source, gradient_ready_s=ready, backward=busy))
    assert replay(pace)[1] == pytest.approx(ready[0, ::-1])
    assert np.all(pace.work <= np.diff(ready[0, ::-1], prepend=0.0) + 1e-12)


def test_parameters_without_a_gradient_are_not_replayed():
    source = workload(gradients=4)
    hooks = source.gradient_hook_s.copy()
    hooks[0, 2] = np.nan
    pace = paces(dataclasses.replace(source, gradient_hook_s=hooks, gradient_ready_s=hooks))[0]
    assert pace.order == (3, 1, 0)


@given(st.integers(0, 2**16), st.integers(2, 6))
def test_the_latest_of_several_is_late_at_every_gradient(seed, ranks):
    drawn = paces(workload(iterations=ranks, jitter=0.5, seed=seed))
    optimizer = [0.01 * rank for rank in range(ranks)]
    last = merge_latest(drawn, optimizer)
    before = max(optimizer)
    for own, pace in zip(optimizer, drawn, strict=True):
        theirs = own + pace.forward_host + np.cumsum(pace.host)
        ours = before + last.forward_host + np.cumsum(last.host)
        assert np.all(ours >= theirs - 1e-12)
    whole = max(o + p.forward_host + p.host.sum() for o, p in zip(optimizer, drawn, strict=True))
    assert before + last.forward_host + last.host.sum() == pytest.approx(whole)


@given(st.integers(0, 2**16), st.integers(2, 6), st.sampled_from(["cpu", "V100"]))
def test_the_latest_of_several_ends_a_local_step_when_the_last_does(seed, ranks, device):
    drawn = [dataclasses.replace(p, tail_host=0.001 * i, tail_work=0.002 * i) for i, p in
             enumerate(paces(workload(device=device, iterations=ranks, jitter=0.5, seed=seed)))]  # fmt: skip
    since = [0.01 * (ranks - rank) for rank in range(ranks)]
    last = merge_latest(drawn, since, local=True)
    assert max(since) + last.host_s == pytest.approx(max(s + p.host_s for s, p in zip(since, drawn, strict=True)))
    assert max(since) + last.work_s == pytest.approx(max(s + p.work_s for s, p in zip(since, drawn, strict=True)))


@pytest.mark.parametrize("name", ["resnet50@h100-amp-b32", "gpt2-small@a100-amp-b8", "mlp", "resnet50"])
@pytest.mark.parametrize("scale", [{}, {"scale_compute": 0.2}, {"scale_compute": 3.0}, {"scale": {"backward": 0.3}}])
def test_a_device_that_waits_for_its_host_waits_without_ddp_too(name, scale):
    source = load_workload(name)
    alone = simulate_local(source, Options(**scale))[-1]
    assert alone.ddp_overhead_s == pytest.approx(0, abs=1e-9 + 1e-3 * alone.iteration_s)


@pytest.mark.parametrize("name", ["resnet50@h100-amp-b32", "bert-base@h100-amp-b32"])
def test_what_ddp_costs_a_step_that_its_host_bounds_does_not_grow_with_the_device(name):
    def overhead_s(factor):
        trace = simulate(load_workload(name), load_topology("dgx-h100").place(1, 1), Options(scale_compute=factor))
        return summarise(trace).ddp_overhead_s

    assert overhead_s(0.2) == pytest.approx(overhead_s(0.8), rel=0.01)
