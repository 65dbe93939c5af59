from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing.launch import LaunchQueue, MarkedTwiceError
from tests import strategies


def rule(buckets, skipped, unused, arrivals):
    """The rule itself, worked out from scratch after each event: the launches each event brings."""
    ready, launched, log = set(unused), 0, []
    for event in [None, *arrivals]:
        ready |= {event} - {None}
        now = []
        while launched < len(buckets) and (launched in skipped or ready.issuperset(buckets[launched])):
            now += [launched] if launched not in skipped else []
            launched += 1
        log.append(now)
    return log


@given(strategies.groups(), st.data())
def test_any_interleaving_launches_each_bucket_once_in_order(groups, data):
    parameters = [index for group in groups for index in group]
    skipped = data.draw(st.sets(st.integers(0, len(groups) - 1)))
    unused = data.draw(st.sets(st.sampled_from(parameters)))
    arrivals = data.draw(st.permutations([i for i in parameters if i not in unused]))
    queue = LaunchQueue(groups, skipped)
    log = [queue.start(sorted(unused)), *(queue.mark_ready(index) for index in arrivals)]
    assert log == rule(groups, skipped, unused, arrivals)
    assert [b for now in log for b in now] == [b for b in range(len(groups)) if b not in skipped]
    assert queue.launched_all
    assert queue.find_missing() == []


@given(strategies.groups(), st.data())
def test_nothing_passes_a_bucket_that_waits(groups, data):
    """Hold one gradient back: no bucket from its own on is launched, and `find_missing` names it."""
    parameters = [index for group in groups for index in group]
    held = data.draw(st.sampled_from(parameters))
    queue = LaunchQueue(groups)
    launched = [b for index in data.draw(st.permutations(parameters)) if index != held for b in queue.mark_ready(index)]
    assert launched == list(range(queue.bucket_of(held)))
    assert queue.find_missing() == [held]
    assert not queue.launched_all
    assert queue.mark_ready(held) == list(range(queue.bucket_of(held), len(groups)))


@given(strategies.groups(), st.data())
def test_reset_starts_anew(groups, data):
    queue = LaunchQueue(groups, skipped=[0])
    for index in data.draw(st.sets(st.sampled_from([i for g in groups for i in g]))):
        queue.mark_ready(index)
    queue.reset()
    assert [b for g in groups for i in g for b in queue.mark_ready(i)] == list(range(len(groups)))


def test_missing_leaves_out_skipped_buckets():
    assert LaunchQueue([(3, 1), (0,), (2,)], skipped=[1]).find_missing() == [1, 2, 3]


def test_ready_twice_is_an_error_also_for_an_unused_gradient():
    queue = LaunchQueue([(0, 1)])
    queue.start([1])
    with pytest.raises(MarkedTwiceError, match="gradient 1 was marked ready twice"):
        queue.mark_ready(1)


def test_a_message_that_comes_after_nothing_goes_at_the_start_of_each_iteration():
    queue = LaunchQueue([(), (0,), ()])
    for _ in range(2):
        assert queue.begin() == [0]
        assert queue.mark_ready(0) == [1, 2]
