from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing.order.traces import fit_document, held_back_s, plan_fits
from ddpsim.trace.records import Gradient, Trace
from tests.traces import example_trace

ITERATION = example_trace(world_size=1, iterations=1).iterations[0]


def bucket(index, parameters, ready_s):
    return replace(ITERATION.buckets[0], index=index, parameters=parameters, ready_s=ready_s)


def iteration(index, times, groups, synced=True):
    """An iteration whose gradients come at `times`, by registration index."""
    buckets = [bucket(n, group, max(times[i] for i in group)) for n, group in enumerate(groups)]
    gradients = [Gradient(parameter=i, hook_s=t, ready_s=t) for i, t in enumerate(times)]
    return replace(ITERATION, index=index, synced=synced, buckets=tuple(buckets), gradients=tuple(gradients))


def test_a_plan_that_fits_and_one_that_does_not():
    groups = [(3, 2), (1, 0)]
    orders = [4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 5.0], [1.0, 2.0, 3.0, 5.0]
    records = [iteration(index, times, groups, synced=index < 2) for index, times in enumerate(orders)]
    fits = plan_fits(Trace(1, "gloo", records))
    assert [(fit.tau, fit.held_back_s) for fit in fits] == [(1, 0), (-1, 3.0)]
    document = fit_document(fits)
    assert document["kendall_tau"] == 0
    assert document["held_back_s"] == 1.5
    assert document["held_back_worst"] == {"held_back_s": 3.0, "rank": 0, "iteration": 1}
    assert fit_document([]) is None


@given(st.lists(st.floats(0, 9), min_size=1, max_size=8))
def test_nothing_is_held_back_exactly_where_buckets_become_ready_in_order(times):
    held = held_back_s([bucket(n, (n,), time) for n, time in enumerate(times)])
    pairs = [early - late for n, late in enumerate(times) for early in times[:n]]
    assert held == pytest.approx(max([0.0, *pairs]))
