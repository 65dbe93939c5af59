"""A slow link is told by its table, and by the ranks that leave collectives after the others."""

from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.explaining.links import FACTOR, find_slow_link
from ddpsim.explaining.machine import TracedMachine
from ddpsim.topology.placement import place
from ddpsim.topology.spec import load_topology
from tests.ddpsim.explaining.seen_ranks import STEP_S, ranks

SIZE = 4 << 20
LAB = load_topology("lab-flat")
MACHINE = TracedMachine(LAB, 4, 1, None)
EXPECTED_S = make_transport(place(LAB, 4, 1), "gloo").time_s(Operation.ALLREDUCE, SIZE)
MARK = {1: 0.3 * EXPECTED_S, 2: 0.2 * EXPECTED_S}


def _link(factor, machine=MACHINE, lags=None, agreed=True):
    made = ranks(wire_s=factor * EXPECTED_S, size_bytes=SIZE, lags=lags)
    return find_slow_link(made, machine, "gloo", STEP_S, agreed=agreed)


def test_a_wire_as_fast_as_its_table_is_no_slow_link():
    assert _link(1.0) is None
    assert _link(FACTOR - 0.15, lags=MARK) is None


def test_a_slower_wire_with_its_mark_is_a_slow_link_between_two_ranks():
    link = _link(2.0, lags=MARK)
    assert 1.9 < link.factor < 2.3
    assert link.ranks == (1, 2)


def test_without_its_mark_load_is_as_good_a_reason():
    assert _link(2.0) is None


def test_where_clocks_do_not_tell_the_table_does_alone():
    link = _link(2.0, agreed=False)
    assert link.ranks == ()
    assert link.factor > 1.9


def test_the_mark_tells_without_a_table():
    assert _link(1.0, machine=None, lags=MARK).ranks == (1, 2)
    assert _link(1.0, machine=None) is None
    assert _link(1.0, machine=None, lags=MARK, agreed=False) is None


def test_nccl_leaves_no_mark_and_is_told_by_its_table_alone():
    made = ranks(wire_s=0.05, size_bytes=SIZE)
    machine = TracedMachine(load_topology("dgx-1v"), 1, 4, None)
    assert find_slow_link(made, machine, "nccl", STEP_S, agreed=True).ranks == ()
