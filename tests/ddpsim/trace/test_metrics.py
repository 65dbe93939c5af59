from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.common.errors import TraceError
from ddpsim.trace.cycles import cycles, sync_length
from ddpsim.trace.metrics import PARTS, intersection, length, quantile, summarise, union
from ddpsim.trace.records import Trace
from tests.traces import example_trace, random_traces

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def test_example_by_hand() -> None:
    summary = summarise(example_trace(2, skew_s=0.001))
    assert summary.iteration_s == pytest.approx(0.040)
    assert summary.exposed_comm_s == pytest.approx(0.008)
    assert summary.ddp_overhead_s == pytest.approx(0, abs=1e-12)
    # rank 0 communicates 20..29 ms (1 ms of it waiting) and 30..38 ms, and computes until 30 ms
    assert summary.overlap_ratio == pytest.approx(9 / 17)
    first, second = summary.buckets
    assert (first.started_s, first.wire_s, first.finished_s) == pytest.approx((0.020, 0.021, 0.029))
    assert first.skew_s == pytest.approx(0.001)
    assert second.skew_s == pytest.approx(0, abs=1e-12)
    assert (second.index, second.size_bytes, second.parameters) == (1, 8192, (0, 1))


def test_skew_is_found_from_the_ranks_where_no_wire_time_was_stamped() -> None:
    trace = example_trace(3, skew_s=0.0005)
    blind = [replace(it, buckets=tuple(replace(b, wire_s=None) for b in it.buckets)) for it in trace.iterations]
    assert summarise(replace(trace, iterations=blind)).buckets == summarise(trace).buckets
    one_rank = [it for it in blind if it.rank == 0]
    assert [b.skew_s for b in summarise(replace(trace, iterations=one_rank)).buckets] == [None, None]


@given(random_traces())
def test_parts_sum_to_the_period(trace: Trace) -> None:
    summary = summarise(trace)
    total = sum(getattr(summary, part) for part in PARTS)
    scale = sum(abs(getattr(summary, part)) for part in PARTS)
    assert total == pytest.approx(summary.iteration_s, abs=1e-12 * scale + 1e-12)


def test_period_is_the_slowest_ranks_median() -> None:
    trace = example_trace(2, iterations=3)
    slow = [replace(it, end_s=it.end_s + (0.002 if it.rank == 1 else 0)) for it in trace.iterations]
    outlier = [replace(it, end_s=it.end_s + (1 if it.index == 2 else 0)) for it in slow]
    summary = summarise(replace(trace, iterations=outlier))
    assert summary.iteration_s == pytest.approx(0.042)
    assert summary.iteration_low_s <= summary.iteration_s <= summary.iteration_high_s


def test_a_period_of_accumulated_gradients_is_the_mean_of_a_cycle() -> None:
    trace = example_trace(1, iterations=7)
    local = [
        replace(it, end_s=it.start_s + (0.040 if last else 0.030), synced=last, stepped=last)
        for it in trace.iterations
        for last in [it.index % 3 == 2]
    ]
    assert summarise(replace(trace, iterations=local)).iteration_s == pytest.approx(0.1 / 3)
    assert [[it.index for it in cycle] for cycle in cycles(local)] == [[0, 1, 2], [3, 4, 5]]
    everywhere = [replace(it, synced=True) for it in local]
    assert cycles(everywhere) == [everywhere[:3], everywhere[3:6]]
    assert sync_length(replace(trace, iterations=local)) == 3
    assert sync_length(replace(trace, iterations=everywhere)) == 1
    never = [replace(it, synced=False, stepped=False) for it in local]
    assert [len(cycle) for cycle in cycles(never)] == [1] * 7


def test_buckets_of_the_last_assignment_count() -> None:
    trace = example_trace(1, iterations=3)
    rebuilt = [replace(it, buckets=it.buckets[:1]) if it.index == 0 else it for it in trace.iterations]
    assert len(summarise(replace(trace, iterations=rebuilt)).buckets) == 2


def test_overlap_without_spans_comes_from_the_iterations() -> None:
    trace = example_trace(2)
    bare = summarise(replace(trace, spans=()))
    assert bare.overlap_ratio == pytest.approx(9 / 17)
    assert summarise(example_trace(1)).overlap_ratio is None


def test_a_trace_without_iterations_is_refused() -> None:
    with pytest.raises(TraceError, match="no iteration"):
        summarise(Trace(2, "gloo", []))


@given(intervals, intervals)
def test_interval_arithmetic_against_sets_of_unit_cells(one: list, other: list) -> None:
    cells = [{c for start, end in group for c in range(start, end)} for group in (one, other)]
    unions = [union(group) for group in (one, other)]
    assert [length(u) for u in unions] == [len(c) for c in cells]
    assert intersection(*unions) == len(cells[0] & cells[1])


def test_quantiles_interpolate() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0], 0.9) == 1.0
