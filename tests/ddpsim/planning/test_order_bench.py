"""The bench against closed cases: a trace that never changes, one that alternates, and what conferring costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ddpsim import Calibration, load_topology
from ddpsim.bucketing import Parameter
from ddpsim.bucketing.order.predictors import MeanReady
from ddpsim.common import shipped
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.planning.order_bench import Bench, BenchMachine, bench, relative_difference, replayed
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload.order_trace import OrderTrace, load_order_trace, order_trace_document, save_order_trace
from ddpsim.workload.profile import Phase, Workload

COUNT, STEPS = 12, 12
BACKWARDS, FORWARDS = tuple(range(COUNT))[::-1], tuple(range(COUNT))
LAB = load_topology("lab-flat")


def workload(orders):
    """Return iterations that bring a gradient every 2 ms, of 64 KiB each, in these orders."""
    hooks = np.full((len(orders), COUNT), math.nan)
    for iteration, order in enumerate(orders):
        hooks[iteration, list(order)] = 2e-3 * np.arange(1, len(order) + 1)
    phase = Phase(np.full(len(orders), 5e-3), np.full(len(orders), 5e-3))
    ends = np.nanmax(hooks, axis=1)
    return Workload(
        name="made", device="cpu", precision="fp32", batch_size=1, threads=1, estimated=False,
        parameters=tuple(Parameter(f"p{i}", (1 << 14,)) for i in range(COUNT)), buffers=(),
        forward=phase, backward=Phase(ends, ends), optimizer=phase,
        gradient_hook_s=hooks, gradient_ready_s=hooks.copy(),
    )  # fmt: skip


def trace(*by_rank, contexts=None):
    contexts = contexts or [[None] * len(orders) for orders in by_rank]
    return OrderTrace(tuple(map(workload, by_rank)), tuple(map(tuple, contexts)))


def rows(made, predictors=("last",), policies=("once",), calibration=None, **more):
    asked = Bench(
        traces=[made], machines=[BenchMachine(LAB, None, calibration)], predictors=predictors, policies=policies, **more
    )
    return list(bench(asked))


@pytest.mark.parametrize("ratio", [0, -1, math.inf, math.nan])
def test_a_ratio_that_no_machine_has_is_refused(ratio):
    with pytest.raises(InputError, match="wire_over_backward"):
        BenchMachine(LAB, ratio)


def test_where_nothing_changes_torchs_one_rebuild_is_the_oracle():
    [row] = rows(trace(*[[BACKWARDS] * STEPS] * 4))
    assert row.step_s == row.oracle_s == row.torch_s == row.rebuilt_once_s
    assert (row.regret, row.regret_low, row.regret_high, row.tau, row.held_back_s) == (0, 0, 0, 1, 0)


def test_an_order_that_alternates_with_its_context_is_learnt_by_context_and_by_branch_only_where_sets_differ():
    """The order turns round with each step; a context says so, the set of used parameters does not."""
    orders = [FORWARDS if k % 2 else BACKWARDS for k in range(24)]
    contexts = [[k % 2 for k in range(24)]] * 4
    made = trace(*[orders] * 4, contexts=contexts)
    found = {row.predictor: row for row in rows(made, ("last", "mean", "context"), ("drift:1:1",))}
    # A parameter in the middle is ready at the same place in both orders, all others are swapped.
    assert found["context"].tau > 0.9 > found["mean"].tau > found["last"].tau
    assert found["context"].held_back_s < found["last"].held_back_s
    assert found["context"].step_s < found["last"].step_s


def test_branches_that_take_turns_are_learnt_from_what_was_used():
    """Even steps use the upper half, odd ones the lower: what follows is known once it has been seen."""
    orders = [BACKWARDS[:6] if k % 2 else BACKWARDS[6:] for k in range(24)]
    found = {row.predictor: row for row in rows(trace(*[orders] * 4), ("mean", "branch"), ("drift:1:1",))}
    assert found["branch"].tau > 0.9 > found["mean"].tau


def test_steps_are_net_of_what_conferring_and_rebuilding_cost():
    """With its host time free a policy that confers before every step is faster, and by no more than was charged."""
    orders = [FORWARDS if k % 2 else BACKWARDS for k in range(STEPS)]
    made = trace(*[orders] * 4)
    names = ("gloo.ddp.expect_s", "gloo.ddp.agree_s", "gloo.ddp.rebuild_s")
    costs = dict.fromkeys(names, 50e-6)
    free = Calibration.priors("gloo").with_values(dict.fromkeys(names, 1e-15), source="test")
    dear = Calibration.priors("gloo").with_values(costs, source="test")
    [cheap], [paid] = (rows(made, ("last",), ("drift:1:1",), each) for each in (free, dear))
    assert paid.rebuilds == cheap.rebuilds == paid.conferences == STEPS - 1
    charged = COUNT * (costs[names[0]] + 4 * costs[names[1]] + costs[names[2]])
    assert paid.step_s - cheap.step_s == pytest.approx(charged, rel=1e-6)
    assert paid.oracle_s == pytest.approx(cheap.oracle_s)


def test_the_consensus_costs_a_message():
    """A policy that confers and never rebuilds differs from one that never confers by host time and a message."""
    made = trace(*[[BACKWARDS] * STEPS] * 4)
    often, seldom = rows(made, ("last",), ("drift:-1:1", "once"))
    assert often.rebuilds == seldom.rebuilds == 1
    assert often.step_s - seldom.step_s > 2 * 0.2e-3  # two hops of the lab's 0.2 ms at least


def test_a_predictor_of_ones_own_runs_as_an_object_a_class_and_by_its_path():
    made = trace(*[[BACKWARDS, FORWARDS] * (STEPS // 2)] * 4)
    found = rows(made, ("mean", MeanReady, MeanReady(), "ddpsim.bucketing.order.predictors:MeanReady"), ("drift:1:3",))
    assert len({row.step_s for row in found}) == 1
    assert [row.predictor for row in found] == [
        "mean",
        "MeanReady",
        "MeanReady",
        "ddpsim.bucketing.order.predictors:MeanReady",
    ]


def test_missing_gradients_are_found_by_torchs_search_which_never_rebuilds():
    made = trace(*[[BACKWARDS[:6]] * STEPS] * 4)
    [row] = rows(made)
    assert made.misses_gradients
    assert row.torch_s != row.rebuilt_once_s


def test_where_unused_parameters_are_looked_for_torch_never_rebuilds():
    made = trace(*[[FORWARDS] * STEPS] * 4)
    [plain], [searched] = (
        rows(made, ("last",), ("once",)),
        rows(made, ("last",), ("once",), find_unused_parameters=True),
    )
    assert plain.gain == 0
    assert searched.gain > 0.1  # gradients come in registration order, torch's first buckets are its reverse


def test_an_interval_holds_the_mean_and_is_nothing_where_pairs_agree():
    rng = np.random.default_rng(1)
    base = 1 + 0.1 * rng.random(200)
    middle, low, high = relative_difference(base * (1 + 0.05 * rng.random(200)), base)
    assert low < middle < high
    assert (low, high) == pytest.approx((0.025, 0.025), abs=0.01)
    assert relative_difference(1.5 * base, base) == pytest.approx((0.5, 0.5, 0.5))


def test_a_trace_is_kept_to_the_microsecond(tmp_path):
    made = trace([BACKWARDS, FORWARDS[:5]], [FORWARDS, BACKWARDS], contexts=[["a", None], [1, 2]])
    save_order_trace(made, tmp_path / "made.json.gz")
    kept = load_order_trace(tmp_path / "made.json.gz")
    assert order_trace_document(kept) == order_trace_document(made)
    assert kept.contexts == made.contexts
    for one, other in zip(kept.workloads, made.workloads, strict=True):
        assert np.allclose(one.gradient_hook_s, other.gradient_hook_s, atol=1e-6, equal_nan=True)
        assert one.used_orders() == other.used_orders()


def test_a_trace_of_another_world_or_model_is_refused():
    with pytest.raises(WorkloadError, match="made has 2 ranks, the machine 3; place it on 2 ranks"):
        replayed(trace([BACKWARDS], [BACKWARDS]), 3, Options())
    other = workload([BACKWARDS] * 5)
    ours = replace(other, parameters=(*other.parameters[:-1], Parameter("q", (1,))))
    with pytest.raises(WorkloadError, match=r"ranks\.1: is of another model than rank 0"):
        OrderTrace((other, ours), ((None,) * 5,) * 2)


@pytest.mark.parametrize("name", shipped.names("order trace"))
def test_kept_traces_have_several_hundred_steps_of_several_ranks(name):
    kept = load_order_trace(shipped.path("order trace", name))
    assert (kept.name, kept.ranks, kept.iterations) == (name, 4, 300)
