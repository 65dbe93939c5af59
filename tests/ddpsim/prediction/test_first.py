"""The first iterations: torch's first buckets, the rebuild, and from when on steps are as predicted."""

from __future__ import annotations

import pytest

from ddpsim import InputError, Options, load_topology
from ddpsim.bucketing import BucketCaps, initial_plan, rebuilt_plan
from ddpsim.prediction.first import check_first, predict_first_iterations
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from tests.ddpsim.simulation.builders import workload

CAPS = BucketCaps(bucket_cap_mb=1.0)


def first(count=5, source=None, **given):
    options = Options(**{"backend": "gloo", "caps": CAPS, **given})
    source = workload(buffers=2) if source is None else source
    found = predict(Job(source, load_topology("loopback"), gpus_per_node=2, options=options), band=False)
    return found, predict_first_iterations(found, count)


def test_torch_begins_with_one_bucket_and_rebuilds_before_the_second_forward():
    found, begun = first()
    source = found.workload
    assert len(initial_plan(source.parameters, CAPS).buckets) == 1
    assert [each.buckets for each in begun.iterations] == [1, 4, 4, 4, 4]
    assert len(rebuilt_plan(source.parameters, CAPS, source.arrival_order()).buckets) == 4
    assert [each.rebuilt for each in begun.iterations] == [False, True, False, False, False]
    whole, rebuilt, *others = begun.iterations
    # One bucket hides nothing.
    assert whole.simulated.exposed_comm_s > 2 * others[-1].simulated.exposed_comm_s
    assert whole.simulated.iteration_s > others[-1].simulated.iteration_s
    assert rebuilt.simulated.iteration_s > rebuilt.steady_s
    assert begun.steady_from in (1, 2)
    for each in others:
        assert each.simulated.iteration_s == pytest.approx(found.iteration_s, rel=1e-6)
        assert each.steady_s == pytest.approx(found.iteration_s, rel=1e-6)


def test_the_extra_time_is_that_of_the_iterations_that_are_not_steady():
    _, begun = first()
    late = [each.simulated.iteration_s - each.steady_s for each in begun.iterations]
    assert begun.longer_s == pytest.approx(sum(late))
    assert begun.longer_s > 0


def test_accumulated_gradients_are_first_reduced_by_the_second_micro_batch():
    _, begun = first(accumulate=2)
    assert [each.buckets for each in begun.iterations] == [0, 1, 0, 4, 0]
    assert [each.rebuilt for each in begun.iterations] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("given", "buckets"),
    [({"find_unused_parameters": True}, 4), ({"assignment": "initial"}, 1), ({"order": "never"}, 1)],
)
def test_what_torch_never_rebuilds_stays(given, buckets):
    _, begun = first(**given)
    assert {each.buckets for each in begun.iterations} == {buckets}
    assert not any(each.rebuilt for each in begun.iterations)


def test_recorded_iterations_that_differ_are_compared_each_with_itself():
    _, begun = first(8, workload(iterations=6, jitter=0.3))
    periods = [each.simulated.iteration_s for each in begun.iterations[2:]]
    assert max(periods) > 1.05 * min(periods)
    assert all(each.steady for each in begun.iterations[3:])


@pytest.mark.parametrize(("scheme", "ours"), [("naive", True), ("priority", True), ("fsdp2", False)])
def test_of_a_scheme_messages_are_counted_and_another_librarys_construction_is_not_told(scheme, ours):
    _, begun = first(scheme=scheme)
    assert begun.iterations[0].buckets > 0
    assert (begun.construction is not None) is ours
    assert (begun.document()["construction"] is not None) is ours


def test_a_gpu_has_nothing_to_hide_behind_in_its_first_iteration():
    source = workload(device="V100", size=2_000_000)
    found, begun = first(6, source, backend=None)
    assert begun.iterations[0].simulated.iteration_s > begun.iterations[0].steady_s
    assert begun.iterations[-1].simulated.iteration_s == pytest.approx(found.iteration_s, rel=1e-3)
    assert begun.document()["steady_from"] == begun.steady_from


@pytest.mark.parametrize(
    ("count", "given", "says"),
    [
        (0, {}, "first: 0 is not a count"),
        (1001, {}, "first: 1001 are too many"),
        (3, {"drop": {"layer": 0.5}}, "first: `first` and `drop` are both given"),
    ],
)
def test_what_cannot_be_compared_is_refused(count, given, says):
    with pytest.raises(InputError, match=says):
        check_first(count, Options(**given))
