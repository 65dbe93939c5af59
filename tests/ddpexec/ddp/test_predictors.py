"""Predictors of one's own in the executor: by path, by context; one that fails stops every rank with one message."""

from __future__ import annotations

import math
import re

import pytest
import torch

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.bucketing.order.predictors import LastArrival
from ddpsim.bucketing.order.rebuild import OnDrift
from ddpsim.common.errors import InputError
from tests.ddpexec.ddp.test_order import BACKWARDS, CAP, FORWARDS, Branches, list_parameters
from tests.ddpexec.groups import ranks


class Failing(LastArrival):
    """Fails on one rank, which its thread's process group tells."""

    RANK = 1

    def predict(self):
        return self.failed() if torch.distributed.get_rank() == self.RANK else super().predict()

    def failed(self):
        raise KeyError("no such branch")


class Short(Failing):
    def failed(self):
        return [1.0]


class Nothing(Failing):
    def failed(self):
        return [math.nan] * 8


class ObservesNot(LastArrival):
    def observe(self, ready):
        if torch.distributed.get_rank() == 1:
            raise ZeroDivisionError("nothing to divide by")
        super().observe(ready)


class OtherWay(LastArrival):
    """Expects on each rank another order than on the others."""

    def predict(self):
        times = super().predict()
        turn = torch.distributed.get_rank()
        return times[turn:] + times[:turn]


def train(rank, predictor, orders, consensus="mean", contexts=None):
    """Train; return the groups of every iteration, or what was raised, and before which iteration."""
    ddp = DistributedDataParallel(
        Branches(), bucket_cap_mb=CAP, rebuild=OnDrift(1.0, 1), predictor=predictor, consensus=consensus
    )
    groups = []
    for iteration, order in enumerate(orders):
        try:
            if contexts is not None:
                ddp.batch_context(contexts[iteration])
            ddp(torch.ones(3, 6), order).sum().backward()
        except InputError as error:
            return iteration, str(error)
        groups.append(ddp.reducer.plan.groups())
    return groups


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Failing, r"Failing.predict\(\) raised KeyError: 'no such branch'"),
        (Short, r"Short.predict\(\) gave 1 times for 8 parameters"),
        (Nothing, r"Nothing.predict\(\) gave NaN for all 8 parameters after 1 backwards"),
        (ObservesNot, r"ObservesNot.observe\(\) raised ZeroDivisionError: nothing to divide by"),
    ],
)
def test_a_predictor_that_fails_on_one_rank_stops_all_with_the_same_message(kind, said):
    answers = ranks.run(3, train, kind, [BACKWARDS] * 3)
    assert answers == [answers[0]] * 3
    iteration, message = answers[0]
    assert iteration == 1
    assert re.match(f"predictor: on rank 1, {said}", message)


def test_where_rank_0s_word_is_law_another_ranks_predictor_is_not_heard():
    for kind in (Failing, ObservesNot):
        answers = ranks.run(2, train, kind, [BACKWARDS] * 3, "rank0")
        assert answers[0] == answers[1]
        assert len(answers[0]) == 3


def test_ranks_that_expect_other_orders_build_the_same_buckets():
    for how in ("rank0", "mean", "slowest"):
        answers = ranks.run(3, train, OtherWay, [BACKWARDS, FORWARDS, BACKWARDS], how)
        assert answers == [answers[0]] * 3
        assert len(answers[0]) == 3


def test_a_predictor_by_its_path_is_the_built_in_one():
    orders = [BACKWARDS, FORWARDS, FORWARDS, BACKWARDS]
    named, own = (ranks.run(2, train, name, orders) for name in ("mean", "ddpsim.bucketing.order.predictors:MeanReady"))
    assert named == own


def test_a_batchs_context_tells_the_order_before_it_comes():
    """Orders take turns with the context, each seen once before: from the third iteration on buckets fit at once."""
    orders = [BACKWARDS, FORWARDS] * 3
    answers = ranks.run(2, train, "context", orders, "mean", [str(k % 2) for k in range(6)])
    assert answers[0] == answers[1]
    caps = BucketCaps(bucket_cap_mb=CAP)
    expected = [rebuilt_plan(list_parameters(), caps, order[::-1]).groups() for order in orders]
    assert answers[0][2:] == expected[2:]
