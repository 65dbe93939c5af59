"""Generated traces have the statistics they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ddpsim.common.errors import InputError
from ddpsim.workload.order_trace import OrderTrace, order_trace_document
from studies.orders.generated import PER_BLOCK, Statistics, generate_trace, statistics_of


def left_out(trace: OrderTrace) -> NDArray[np.bool_]:
    """Return by rank, step and block whether the block went unused."""
    return np.array([np.isnan(each.gradient_hook_s[:, ::PER_BLOCK]) for each in trace.workloads])


def test_the_same_statistics_give_the_same_trace_and_another_seed_another() -> None:
    one, same, other = (generate_trace(Statistics(ranks=2, steps=5, seed=seed)) for seed in (1, 1, 2))
    assert order_trace_document(one) == order_trace_document(same) != order_trace_document(other)
    drawn: Any = one.provenance["generated"]
    assert drawn["unused"] == 0.3


def test_blocks_go_unused_as_often_as_stated_and_stay_so_as_long() -> None:
    statistics = Statistics(ranks=32, steps=100, unused=0.25, persistence=0.6, swapped=0, spread=0)
    found = left_out(generate_trace(statistics))
    assert not found[:, :, 0].any()
    assert found[:, :, 1:].mean() == pytest.approx(0.25, abs=0.01)
    same = (found[:, 1:] == found[:, :-1]).all(axis=2).mean()
    assert same == pytest.approx(0.6, abs=0.02)


def test_ranks_share_a_draw_as_often_as_stated() -> None:
    found = left_out(generate_trace(Statistics(ranks=4, steps=400, shared=0.3, persistence=0)))
    alike = (found == found[:1]).all(axis=(0, 2)).mean()
    assert alike == pytest.approx(0.3, abs=0.07)


def test_neighbours_are_turned_round_as_often_as_stated_and_nothing_else_is() -> None:
    still = generate_trace(Statistics(ranks=1, steps=50, swapped=0, unused=0)).workloads[0]
    assert len(set(still.used_orders())) == 1
    turned = generate_trace(Statistics(ranks=1, steps=200, swapped=0.5, unused=0, blocks=2)).workloads[0].used_orders()
    assert set(turned) == {(3, 2, 1, 0), (1, 0, 3, 2)}
    assert turned.count((1, 0, 3, 2)) / 200 == pytest.approx(0.5, abs=0.1)


def test_steps_spread_as_stated() -> None:
    ends = generate_trace(Statistics(ranks=1, steps=1000, spread=0.1, unused=0)).workloads[0].backward.host_s
    assert np.std(np.log(ends)) == pytest.approx(0.1, rel=0.1)


def test_a_context_says_what_is_left_out() -> None:
    trace = generate_trace(Statistics(ranks=3, steps=60, contexts=3, persistence=0))
    found, contexts = left_out(trace), np.array(trace.contexts)
    for context in range(3):
        assert len({row.tobytes() for row in found[contexts == context]}) == 1


@pytest.mark.parametrize("values", [{"ranks": 0}, {"unused": 1.5}, {"spread": -1}, {"backward_s": 0}])
def test_values_out_of_range(values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Statistics(**values)


def test_statistics_as_text() -> None:
    assert statistics_of("ranks=8,unused=0.5") == Statistics(ranks=8, unused=0.5)
    assert statistics_of("") == Statistics()
    for text, said in (("ranks=many", "'many' is no int"), ("rank=3", "'rank=3'"), ("ranks=2,ranks=3", "twice")):
        with pytest.raises(InputError, match=said):
            statistics_of(text)
