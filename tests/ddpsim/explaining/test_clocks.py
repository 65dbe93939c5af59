"""Clocks of nodes are aligned by the ends of collectives; traces of different runs are refused."""

from dataclasses import replace

import pytest

from ddpsim.common.errors import TraceError
from ddpsim.explaining.clocks import align_ranks
from ddpsim.explaining.splits import splits_of
from tests.ddpsim.explaining.seen_ranks import WIRE_S, ranks


def test_offsets_are_found_and_waits_do_not_depend_on_them():
    clocks = {1: 3.7, 2: -120.5, 3: 0.02}
    late = {2: {"forward": 0.006}}
    apart, alignment = align_ranks(ranks(late=late, clocks=clocks))
    for rank, offset in clocks.items():
        assert alignment.offsets_s[rank] == pytest.approx(-offset)
    assert alignment.residual_s == pytest.approx(0.0, abs=1e-9)
    (split,) = splits_of(apart)
    assert split.last_rank == 2
    assert split.on_wire_s == pytest.approx(WIRE_S)
    assert split.waits_s == pytest.approx({0: 0.006, 1: 0.006, 2: 0.0, 3: 0.006})
    assert split.wait_s == pytest.approx(0.0045)


def test_clocks_that_agree_are_left_as_they_are():
    _, alignment = align_ranks(ranks(clock="node1"))
    assert alignment.agreed
    assert alignment.collectives == 8


def test_the_residual_says_how_far_apart_ends_are_still():
    _, alignment = align_ranks(ranks(lags={3: 0.002}, clock="node1"))
    assert alignment.residual_s == pytest.approx(0.002)


def test_traces_of_different_runs_are_refused():
    one, other = ranks(2), ranks(2, size_bytes=4096)
    with pytest.raises(TraceError, match=r"rank1\.json: collective 0 of step 0 is of 4,096 B.*different runs"):
        align_ranks([one[0], other[1]])
    elsewhen = ranks(2, clock="node1", clocks={1: 5.0})
    with pytest.raises(TraceError, match=r"5 s from those of rank0\.json on the clock of node1"):
        align_ranks(elsewhen)
    later = replace(one[1], iterations=tuple(replace(it, index=it.index + 50) for it in one[1].iterations))
    with pytest.raises(TraceError, match="no step in common"):
        align_ranks([one[0], later])
    uneven = replace(one[1], iterations=tuple(it.shift(0.06 * (it.index % 2)) for it in one[1].iterations))
    with pytest.raises(TraceError, match="of another run, or other steps"):
        align_ranks([one[0], uneven])
