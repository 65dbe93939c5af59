from __future__ import annotations

import math
import random
import statistics

import pytest

from ddpsim.bucketing import BucketCaps, Parameter, rebuilt_plan, unused_plan
from ddpsim.bucketing.order.agreement import plan_tau
from ddpsim.bucketing.order.arrivals import Arrivals, from_times
from ddpsim.bucketing.order.policy import OrderPolicy
from ddpsim.bucketing.order.predictors import LastArrival, MeanReady
from ddpsim.bucketing.order.rebuild import Never, Once, OnDrift, rebuild
from ddpsim.bucketing.order.replay import Rebuilt, replay
from ddpsim.common.errors import InputError, UnknownNameError

PARAMETERS = [Parameter(f"p{i}", (256,)) for i in range(8)]
CAPS = BucketCaps(bucket_cap_mb=2 / 1024)  # two parameters a bucket
FORWARDS = tuple(range(8))
BACKWARDS = FORWARDS[::-1]


def groups(order):
    return rebuilt_plan(PARAMETERS, CAPS, order).groups()


def run(orders, policies, first=BACKWARDS):
    """Replay `orders[rank][iteration]`."""
    arrivals = [Arrivals(r, i, order) for r, by_rank in enumerate(orders) for i, order in enumerate(by_rank)]
    return list(replay(arrivals, policies, groups(first), groups))


def test_never_and_once():
    assert run([[FORWARDS] * 5], [OrderPolicy(8, Never())]) == []
    assert run([[FORWARDS, BACKWARDS, FORWARDS]], [OrderPolicy(8)]) == [Rebuilt(1, FORWARDS)]
    assert run([[FORWARDS, BACKWARDS, FORWARDS]], [OrderPolicy(8, Once(after=2))]) == [Rebuilt(2, BACKWARDS)]


def test_on_drift_rebuilds_first_then_when_the_order_has_drifted():
    orders = [BACKWARDS] * 6 + [FORWARDS] * 6
    assert run([orders], [OrderPolicy(8, OnDrift(every=2))]) == [Rebuilt(1, BACKWARDS), Rebuilt(8, FORWARDS)]
    assert run([orders], [OrderPolicy(8, OnDrift(every=2, at_most=1))]) == [Rebuilt(1, BACKWARDS)]
    assert run([orders], [OrderPolicy(8, OnDrift(tau=-1, every=2))]) == [Rebuilt(1, BACKWARDS)]


def test_a_swap_inside_a_bucket_is_no_drift():
    swapped = (6, 7, 5, 4, 2, 3, 1, 0)
    policy = OrderPolicy(8, OnDrift(tau=1.0, every=1))
    assert [r.iteration for r in run([[BACKWARDS, swapped, swapped, (5, 7, 6, 4, 3, 2, 1, 0)]], [policy])] == [1, 4]


def test_rank_0_or_the_mean_decides_where_ranks_disagree():
    """Two of three ranks see the reverse of what rank 0 sees."""
    orders = [[FORWARDS], [BACKWARDS], [BACKWARDS]]
    for how, expected in (("rank0", FORWARDS), ("mean", BACKWARDS)):
        assert run(orders, [OrderPolicy(8, consensus=how) for _ in range(3)]) == [Rebuilt(1, expected)]


def test_all_ranks_come_to_the_same_answer():
    rng = random.Random(7)
    seen = [from_times([rng.random() if rng.random() < 0.8 else math.nan for _ in range(8)], rank) for rank in range(5)]
    for how in ("rank0", "mean", "slowest"):
        policies = [OrderPolicy(8, consensus=how, unused="first") for _ in seen]
        for policy, arrivals in zip(policies, seen, strict=True):
            policy.observe(arrivals)
        everybody = [policy.expected() for policy in policies]
        answers = [policy.confer(groups(BACKWARDS), lambda _, known=everybody: known) for policy in policies]
        assert answers == [answers[0]] * 5
        assert sorted(answers[0]) == list(range(8))


def test_a_mean_outvotes_a_single_odd_backward():
    orders = [BACKWARDS, BACKWARDS, BACKWARDS, FORWARDS]
    assert run([orders], [OrderPolicy(8, Once(4), LastArrival())]) == [Rebuilt(4, FORWARDS)]
    assert run([orders], [OrderPolicy(8, Once(4), MeanReady())]) == [Rebuilt(4, BACKWARDS)]


def test_unused_parameters_do_not_hold_back_the_buckets_of_used_ones():
    """Half the parameters never arrive; registration order mixes them in, the rebuild sets them apart."""
    used = (7, 1, 5, 3)
    plan = unused_plan(PARAMETERS, CAPS)
    arrivals = [Arrivals(0, i, used) for i in range(3)]
    rebuilds = list(replay(arrivals, [OrderPolicy(8, Once(), unused="first")], plan.groups(), groups))
    assert rebuilds == [Rebuilt(1, (0, 2, 4, 6, *used))]
    assert groups(rebuilds[0].order) == [(0, 2), (4, 6), (7, 1), (5, 3)]
    assert plan_tau(plan.groups(), used) < plan_tau(groups(rebuilds[0].order), used) == 1


def test_sometimes_unused_parameters_keep_the_place_they_have_when_used():
    often, seldom = (3, 2, 1, 0), (3, 1, 0)
    policy = OrderPolicy(4, Once(3), MeanReady())
    for iteration, order in enumerate((seldom, often, seldom)):
        policy.observe(Arrivals(0, iteration, order))
    assert policy.confer([(0, 1, 2, 3)], lambda expected: [expected]) == [3, 2, 1, 0]


def test_a_predictor_of_ten_lines_will_do():
    class MedianReady:
        def __init__(self):
            self.seen = []

        def observe(self, ready):
            self.seen.append(list(ready))

        def predict(self):
            return [statistics.median(times) for times in zip(*self.seen, strict=True)]

    orders = [BACKWARDS, FORWARDS, BACKWARDS]
    assert run([orders], [OrderPolicy(8, Once(3), MedianReady())]) == [Rebuilt(3, BACKWARDS)]


def test_ranks_confer_once_after_a_backward_though_asked_before_each_forward():
    policy = OrderPolicy(8, OnDrift(every=1))
    assert not policy.due()
    policy.observe(Arrivals(0, 0, FORWARDS))
    assert policy.due()
    policy.confer(groups(BACKWARDS), lambda expected: [expected])
    assert not policy.due()
    policy.observe(Arrivals(0, 1, FORWARDS))
    assert policy.due()


def test_many_backwards_are_digested_and_a_finished_policy_stops_watching():
    class Counting(MeanReady):
        calls = 0

        def observe(self, ready):
            self.calls += 1
            super().observe(ready)

    predictor = Counting()
    policy = OrderPolicy(8, Once(200), predictor)
    for iteration in range(200):
        policy.observe(Arrivals(0, iteration, BACKWARDS))
    policy.confer(groups(FORWARDS), lambda expected: [expected])
    assert predictor.calls == 200
    assert policy.finished
    for iteration in range(200):
        policy.observe(Arrivals(0, iteration, BACKWARDS))
    assert policy.expected() is not None
    assert predictor.calls == 200


def test_iterations_that_a_rank_lacks_are_passed_over():
    arrivals = [Arrivals(0, 0, FORWARDS), Arrivals(0, 1, BACKWARDS), Arrivals(1, 1, BACKWARDS)]
    policies = [OrderPolicy(8), OrderPolicy(8)]
    assert list(replay(arrivals, policies, groups(FORWARDS), groups)) == [Rebuilt(2, BACKWARDS)]


def test_policies_by_name():
    assert rebuild("never") == Never()
    assert rebuild("once") == Once()
    assert rebuild("drift") == OnDrift()
    assert rebuild("drift:0.5") == OnDrift(0.5)
    assert rebuild("drift:0.5:7") == OnDrift(0.5, 7)
    with pytest.raises(UnknownNameError, match="unknown rebuild policy 'twice'"):
        rebuild("twice")
    with pytest.raises(InputError, match=r"'once' takes no parameter, got 'once:0\.5'; write once"):
        rebuild("once:0.5")
    for text in ("drift:x", "drift:0.5:x", "drift:0.5:7:9"):
        with pytest.raises(InputError, match=r"write e\.g\. drift:0\.95:50"):
            rebuild(text)


@pytest.mark.parametrize("make", [lambda: OnDrift(tau=1.5), lambda: OnDrift(every=0), lambda: Once(after=0)])
def test_values_out_of_range(make):
    with pytest.raises(InputError, match="out of range"):
        make()
