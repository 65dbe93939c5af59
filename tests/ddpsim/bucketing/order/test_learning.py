"""Predictors that learn, against what they are to have learnt; and predictors by name, path and entry point."""

from __future__ import annotations

import importlib.metadata
import math
import pickle

import pytest

from ddpsim.bucketing.order.arrivals import Arrivals
from ddpsim.bucketing.order.policy import OrderPolicy
from ddpsim.bucketing.order.predictors import GROUP, PREDICTORS, ByBranch, ByContext, MeanReady, predictor
from ddpsim.bucketing.order.rebuild import OnDrift
from ddpsim.bucketing.order.replay import replay
from ddpsim.common.errors import InputError, UnknownNameError

NAN = math.nan


def same(found, expected):
    return found == pytest.approx(expected, nan_ok=True)


def test_a_branch_is_expected_where_it_has_followed():
    learner = ByBranch()
    upper, lower, both = [1.0, 2.0, NAN], [NAN, 5.0, 4.0], [7.0, 8.0, 9.0]
    for ready in (upper, lower, upper, lower, upper):
        learner.observe(ready)
    assert same(learner.predict(), lower)
    learner.observe(both)
    assert same(learner.predict(), [4.0, 5.0, 6.5])  # nothing has followed it yet: each branch as much as another
    learner.observe(lower)
    assert same(learner.predict(), upper)


def test_branches_that_follow_are_weighted_by_how_often_they_have():
    learner = ByBranch()
    first, often, seldom = [0.0, NAN, NAN], [NAN, 3.0, 1.0], [NAN, 9.0, NAN]
    for ready in (first, often, first, often, first, seldom, first):
        learner.observe(ready)
    assert same(learner.predict(), [NAN, (2 * 3 + 9) / 3, 1.0])


def test_no_more_branches_are_kept_than_may_be():
    learner = ByBranch()
    branches = [[float(number) if number >> bit & 1 else NAN for bit in range(9)] for number in range(1, 512)]
    assert len(branches) > 3 * ByBranch.MOST
    sizes = []
    for branch in branches:
        learner.observe(branch)
        sizes.append(len(pickle.dumps(learner)))
    # As large as so many branches make it: with more of them it would go on growing.
    assert sizes[-1] < 1.5 * sizes[ByBranch.MOST]
    assert len(learner.predict()) == 9


def test_a_context_has_means_of_its_own_and_an_unknown_one_those_of_all():
    learner = ByContext()
    for context, ready in (("a", [1.0, NAN]), ("b", [3.0, 2.0]), ("a", [3.0, NAN])):
        learner.context(context)
        learner.observe(ready)
    for context, expected in (("a", [2.0, NAN]), ("b", [3.0, 2.0]), ("c", [7 / 3, 2.0])):
        learner.context(context)
        assert same(learner.predict(), expected)


def test_replay_tells_the_context_of_the_batch_to_come():
    orders = [(0, 1, 2, 3), (3, 2, 1, 0)] * 3
    arrivals = [Arrivals(0, k, order, context=k % 2) for k, order in enumerate(orders)]

    def assign(order):
        return [order[:2], order[2:]]

    policy = OrderPolicy(4, OnDrift(tau=1.0, every=1), ByContext())
    found = {r.iteration: r.order for r in replay(arrivals, [policy], assign(orders[0]), assign)}
    assert found[3] == orders[3]
    assert found[4] == orders[4]


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_built_in_one_keeps_an_order_that_never_changes(name):
    found = predictor(name)
    for _ in range(3):
        found.observe([2.0, NAN, 1.0])
    assert same(found.predict(), [2.0, NAN, 1.0])


def test_an_installed_package_offers_one_by_an_entry_point(monkeypatch):
    offered = importlib.metadata.EntryPoint("average", "ddpsim.bucketing.order.predictors:MeanReady", GROUP)
    monkeypatch.setattr(
        "ddpsim.bucketing.order.predictors.entry_points", lambda group: [offered] if group == GROUP else []
    )
    assert isinstance(predictor("average"), MeanReady)
    with pytest.raises(UnknownNameError, match="did you mean average"):
        predictor("averag")


def test_an_object_is_copied_so_that_ranks_learn_apart():
    given = MeanReady()
    one, other = predictor(given), predictor(given)
    one.observe([1.0])
    assert (one.predict(), other.predict(), given.predict()) == ([1.0], [], [])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("nearest", "unknown predictor 'nearest'"),
        ("nowhere:Nearest", "predictor 'nowhere:Nearest': cannot be imported: ModuleNotFoundError"),
        ("ddpsim.bucketing.order.predictors:Nearest", "cannot be imported: AttributeError"),
        ("ddpsim.bucketing.order.predictors:GROUP", "is neither a class nor a function"),
        ("ddpsim.bucketing.order.arrivals:Arrivals", "cannot be made: TypeError"),
        ("ddpsim.bucketing.order.rebuild:Once", r"Once has no method observe\(\)"),
        (3, r"int has no method observe\(\)"),
    ],
)
def test_what_is_no_predictor_is_refused(asked, said):
    with pytest.raises(InputError, match=said):
        predictor(asked)


class Bad(MeanReady):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def predict(self):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([1.0, 2.0], "gave 2 times for 3 parameters"),
        ([NAN] * 3, "gave NaN for all 3 parameters after 1 backwards"),
        ([1.0, None, 2.0], "gave None for parameter 1"),
        ([1.0, 2.0, math.inf], "gave inf for parameter 2"),
        (None, r"predict\(\) raised TypeError"),
    ],
)
def test_what_a_predictor_may_not_return(answer, said):
    policy = OrderPolicy(3, predictor=Bad(answer))
    policy.observe(Arrivals(0, 0, (2, 1, 0)))
    with pytest.raises(InputError, match=f"predictor: Bad.*{said}"):
        policy.confer([(0, 1, 2)], lambda mine: [mine])
