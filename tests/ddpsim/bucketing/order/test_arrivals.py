from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing.order.arrivals import Arrivals, arrivals_of, from_times
from ddpsim.trace.records import Gradient, Trace
from tests.traces import example_trace


@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), min_size=1))
def test_times_to_arrivals_and_back(times):
    arrivals = from_times(times)
    back = arrivals.list_ready(len(times))
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(times, back, strict=True))
    assert list(arrivals.ready_s) == sorted(arrivals.ready_s)


def test_without_times_places_stand_for_them():
    assert Arrivals(0, 0, (2, 0)).list_ready(3)[::2] == [1, 0]
    assert math.isnan(Arrivals(0, 0, (2, 0)).list_ready(3)[1])


def test_arrivals_of_a_trace_are_those_of_synced_iterations():
    def iteration(rank, index, synced):
        hooks = [(1, 5.0), (0, 5.5), (2, 5.25)]
        gradients = tuple(Gradient(parameter=i, hook_s=t, ready_s=t + 1) for i, t in hooks)
        record = example_trace(world_size=1, iterations=1).iterations[0]
        return replace(record, rank=rank, index=index, start_s=4.0, end_s=7.0, synced=synced, gradients=gradients)

    trace = Trace(2, "gloo", [iteration(0, 0, True), iteration(1, 0, True), iteration(0, 1, False)])
    assert arrivals_of(trace) == [Arrivals(rank, 0, (1, 2, 0), (0.0, 0.25, 0.5)) for rank in (0, 1)]
