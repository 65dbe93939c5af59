from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives.calibration import Curve, CurvePoint
from ddpsim.collectives.curve import CurveTransport, monotone
from ddpsim.collectives.gloo import GlooTransport
from ddpsim.collectives.transport import alone_s
from ddpsim.topology.spec import load_topology

LOOPBACK = load_topology("loopback").place(1, 2)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_monotone_times_never_fall_and_keep_their_mean_logarithm(times: list[float]) -> None:
    points = tuple(CurvePoint(2**k, time_s) for k, time_s in enumerate(times))
    fixed = [point.time_s for point in monotone(points)]
    assert all(later >= before * (1 - 1e-12) for before, later in pairwise(fixed))
    assert sum(map(math.log, fixed)) == pytest.approx(sum(map(math.log, times)))
    if times == sorted(times):
        assert fixed == pytest.approx(times)


@given(st.lists(st.floats(0.3, 3.0), min_size=2, max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_demand_of_a_corrected_transport_takes_the_corrected_time(factors: list[float]) -> None:
    inner = GlooTransport(LOOPBACK)
    points = tuple(CurvePoint(4096 * 4**k, f * inner.allreduce_s(4096 * 4**k)) for k, f in enumerate(factors))
    corrected = CurveTransport.over(inner, Curve("x", 1, 2, points), start_s=1e-6)
    for size in (1024, 4096, 10_000, 262_144, 50_000_000):
        assert alone_s(corrected.allreduce(size), corrected.capacities) == pytest.approx(corrected.allreduce_s(size))
    for point in monotone(points):
        assert corrected.allreduce_s(point.size_bytes) == pytest.approx(point.time_s + 1e-6)
