from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import BucketCaps, LaunchQueue, Parameter, rebuilt_plan
from ddpsim.bucketing.drop import (
    DroppableLayer,
    DropPlan,
    aligned_plan,
    expected_bytes,
    layers_named,
    remap_gradients,
    skipped_buckets,
)
from ddpsim.common.errors import PlanError

PARAMETERS = [
    Parameter(f"{name}.{part}", (size,))
    for name in ("stem", "block.0", "block.1", "block.2", "block.3", "head")
    for part, size in (("weight", 1000), ("bias", 10))
]
BLOCKS = {f"block.{i}": 0.25 for i in range(4)}
LAYERS = layers_named(PARAMETERS, BLOCKS)
ARRIVAL = range(len(PARAMETERS) - 1, -1, -1)
CAPS = BucketCaps(bucket_cap_mb=5000 / (1 << 20))


def test_layers_are_found_by_name():
    assert [layer.parameters for layer in LAYERS] == [(2, 3), (4, 5), (6, 7), (8, 9)]
    with pytest.raises(PlanError, match=r"no parameter is below 'block\.9'"):
        layers_named(PARAMETERS, {"block.9": 0.5})
    with pytest.raises(PlanError, match=r"^drop: no parameter is below 'bloc'"):
        layers_named(PARAMETERS, {"bloc": 0.5})


def test_every_rank_draws_the_same_layers():
    """Ranks are processes of their own, with hash seeds of their own."""
    code = (
        "from ddpsim.bucketing.drop import *\n"
        "plan = DropPlan(tuple(DroppableLayer(str(i), (i,), 0.5) for i in range(20)), seed=3)\n"
        "print([plan.layers_dropped(i) for i in range(10)])"
    )
    ranks = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)]
    assert ranks[0] == ranks[1]
    assert len(set(ranks[0].split(b"], ["))) > 5


def test_layers_are_left_out_as_often_as_asked():
    layers = (DroppableLayer("never", (0,), 0), DroppableLayer("seldom", (1,), 0.2), DroppableLayer("always", (2,), 1))
    counts = [0, 0, 0]
    for iteration in range(2000):
        for number in DropPlan(layers).layers_dropped(iteration):
            counts[number] += 1
    assert counts[0] == 0
    assert 330 < counts[1] < 470  # 400 +- 4 standard deviations
    assert counts[2] == 2000


def test_a_rank_may_decide_for_all():
    plan = DropPlan(LAYERS, given={7: [2, 0]})
    assert plan.layers_dropped(7) == [0, 2]
    assert plan.parameters_dropped(7) == {2, 3, 6, 7}
    assert plan.layers_dropped(8) == DropPlan(LAYERS).layers_dropped(8)


def test_layers_inside_each_other_and_wrong_probabilities_are_refused():
    with pytest.raises(PlanError, match=r"parameter 2 is in the layers 'block' and 'block\.0'"):
        DropPlan(layers_named(PARAMETERS, {"block": 0.5, "block.0": 0.5}))
    with pytest.raises(PlanError, match=r"probability 1\.5 of 'head' is out of range"):
        DropPlan(layers_named(PARAMETERS, {"head": 1.5}))


@given(st.sets(st.integers(0, 3)), st.randoms(use_true_random=False), st.sampled_from(["rebuilt", "aligned"]))
def test_what_is_left_launches_every_other_bucket_in_order(numbers, rng, kind):
    plan = rebuilt_plan(PARAMETERS, CAPS) if kind == "rebuilt" else aligned_plan(PARAMETERS, LAYERS, [5000], ARRIVAL)
    dropped = DropPlan(LAYERS, given={0: numbers}).parameters_dropped(0)
    skipped = skipped_buckets(plan.groups(), dropped)
    queue = LaunchQueue(plan.groups(), skipped)
    launched = queue.start(sorted(dropped))
    for index in rng.sample(range(len(PARAMETERS)), len(PARAMETERS)):
        launched += [] if index in dropped else queue.mark_ready(index)
    assert launched == [n for n in range(len(plan.buckets)) if n not in skipped]
    if kind == "aligned":
        left = sum(plan.buckets[n].size_bytes for n in launched)
        assert left == sum(p.size_bytes for i, p in enumerate(PARAMETERS) if i not in dropped)


def test_aligned_buckets_save_what_mixed_ones_cannot():
    """Expected bytes against the mean over many drawn iterations, and against what the layers' bytes alone say."""
    mixed, aligned = rebuilt_plan(PARAMETERS, CAPS), aligned_plan(PARAMETERS, LAYERS, [5000], ARRIVAL)
    drops = DropPlan(LAYERS, seed=1)
    for plan in (mixed, aligned):
        reduced = 0
        for iteration in range(4000):
            skipped = skipped_buckets(plan.groups(), drops.parameters_dropped(iteration))
            reduced += plan.size_bytes - sum(plan.buckets[n].size_bytes for n in skipped)
        assert expected_bytes(plan, LAYERS) == pytest.approx(reduced / 4000, rel=0.02)
    assert expected_bytes(aligned, LAYERS) == pytest.approx(4 * 1010 * (2 + 4 * 0.75))
    assert expected_bytes(mixed, LAYERS) > expected_bytes(aligned, LAYERS)
    assert not any({0, 1, 10, 11} & set(b) and set(b) - {0, 1, 10, 11} for b in aligned.groups())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.data())
def test_what_is_left_moves_up_into_the_memory_of_buckets_and_never_behind_its_own(sizes, data):
    parameters = [
        Parameter(f"p{i}", (size,), data.draw(st.sampled_from(["float32", "float16"]))) for i, size in enumerate(sizes)
    ]
    groups = rebuilt_plan(parameters, BucketCaps(bucket_cap_mb=100 / (1 << 20))).groups()
    dropped = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    found = remap_gradients(parameters, groups, dropped)
    assert len(found) == len(groups)
    own = {index: number for number, group in enumerate(groups) for index in group}
    for number, group in enumerate(found):
        assert sum(parameters[i].size_bytes for i in group) <= sum(parameters[i].size_bytes for i in groups[number])
        assert len({parameters[i].dtype for i in group} | {parameters[i].dtype for i in groups[number]}) == 1
        assert all(own[index] >= number for index in group)
    left = [index for group in groups for index in group if index not in dropped]
    assert sorted(index for group in found for index in group) == sorted(left)
    for kind in ("float32", "float16"):
        in_turn = [index for group in found for index in group if parameters[index].dtype == kind]
        assert in_turn == [index for index in left if parameters[index].dtype == kind]


def test_nothing_moves_where_nothing_is_dropped():
    groups = rebuilt_plan(PARAMETERS, CAPS).groups()
    assert remap_gradients(PARAMETERS, groups, ()) == groups
    assert remap_gradients(PARAMETERS, groups, range(len(PARAMETERS))) == [()] * len(groups)
