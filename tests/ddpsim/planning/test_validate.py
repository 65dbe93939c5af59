from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ddpsim.common.errors import InputError, TraceError
from ddpsim.planning.validate import TURNS, ComparedRatio, ErrorTerm, Validation, validate
from ddpsim.prediction.document import check_prediction
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import Trace
from tests.traces import example_trace


def prediction_of(trace: Trace, local_s: float = 0.032) -> dict:
    return {**summarise(trace).document(), "local_s": local_s}


def slower(trace: Trace, factor: float) -> Trace:
    """Stretch every measured time by `factor`."""

    def stretched(record: Any) -> Any:
        named = (each.name for each in fields(record) if each.name.endswith("_s"))
        times = {name: value for name in named if isinstance(value := getattr(record, name), float)}
        return replace(record, **{name: time * factor for name, time in times.items()})

    records = [replace(stretched(it), buckets=tuple(map(stretched, it.buckets))) for it in trace.iterations]
    return replace(trace, iterations=records, spans=())


def test_a_perfect_prediction_has_no_error() -> None:
    trace = example_trace(2)
    found = validate(prediction_of(trace), trace)
    assert found.iterations.error == pytest.approx(0)
    assert found.overhead.measured_s == pytest.approx(0.008)
    assert max(found.errors) == pytest.approx(0)
    assert all(term.share_of_step == pytest.approx(0, abs=1e-12) for term in found.terms)


def test_errors_are_signed_and_relative_to_the_measurement() -> None:
    trace = example_trace(2)
    measured = slower(trace, 1.25)
    found = validate(prediction_of(trace), measured)
    assert found.iterations.error == pytest.approx(1 / 1.25 - 1)
    assert found.overhead.error == pytest.approx(0.008 / (0.050 - 0.032) - 1)
    first = found.buckets[0]
    assert first.errors["finished_s"] == pytest.approx((0.029 - 0.029 * 1.25) / 0.050)
    document = found.document()
    assert document["max_error"] == pytest.approx(0.2)
    assert document["largest_term"] == "backward_compute"


def test_one_process_measured_with_the_run_is_preferred() -> None:
    trace = example_trace(2)
    own = replace(trace, provenance={"local_s": 0.030})
    found = validate(prediction_of(trace), own)
    assert (found.local_source, found.overhead.measured_s) == ("run", pytest.approx(0.010))
    assert found.overhead.predicted_s == pytest.approx(0.008)


def test_trivial_predictors_by_hand() -> None:
    trace = example_trace(2)
    baselines = validate(prediction_of(trace), trace).baselines
    # two collectives on the wire for 8 ms each, not overlapping; backward 20 ms; ready at 20 and 30 ms; optimizer 2 ms
    assert baselines["one_process"]["predicted_s"] == pytest.approx(0.032)
    assert baselines["one_process"]["overhead_error"] == pytest.approx(-1)
    assert baselines["one_process_plus_communication"]["predicted_s"] == pytest.approx(0.048)
    assert baselines["max_of_backward_and_communication"]["predicted_s"] == pytest.approx(0.032)
    assert baselines["in_order_pipeline"]["predicted_s"] == pytest.approx(0.030 - 2e-5 + 0.008 + 0.002)


def test_trivial_predictors_communicate_in_synchronised_iterations_alone() -> None:
    trace = example_trace(2, iterations=4)
    records = [
        it if it.index % 2 else replace(it, synced=False, stepped=False, buckets=(), gradients=())
        for it in trace.iterations
    ]
    every_other = replace(trace, iterations=records)
    said = validate(prediction_of(every_other), every_other).baselines
    assert said["one_process"]["predicted_s"] == pytest.approx(0.032)
    assert said["one_process_plus_communication"]["predicted_s"] == pytest.approx(0.032 + 0.016 / 2)
    assert said["in_order_pipeline"]["predicted_s"] == pytest.approx(0.032 + (0.008 - 2e-5) / 2)


def test_latency_and_bandwidth_are_told_apart() -> None:
    trace = example_trace(1)

    def with_wire(latency_s: float, bandwidth: float) -> Trace:
        def bucket(template, index: int, size: int):  # type: ignore[no-untyped-def]
            start = template.started_s
            wire = latency_s + size / bandwidth
            return replace(template, index=index, size_bytes=size, wire_s=start, finished_s=start + wire)

        sizes = (1000, 2000, 8000)
        return replace(
            trace,
            iterations=[
                replace(it, buckets=tuple(bucket(it.buckets[0], n, size) for n, size in enumerate(sizes)))
                for it in trace.iterations
            ],
            spans=(),
        )

    found = validate(prediction_of(with_wire(1e-4, 1e7)), with_wire(3e-4, 2e7))
    terms = {term.name: term for term in found.terms}
    assert terms["latency"].predicted_s == pytest.approx(3 * 1e-4)
    assert terms["latency"].measured_s == pytest.approx(3 * 3e-4)
    assert terms["bandwidth"].predicted_s == pytest.approx(11000 / 1e7)
    assert terms["bandwidth"].measured_s == pytest.approx(11000 / 2e7)
    assert terms["wire"].predicted_s == pytest.approx(3 * 1e-4 + 11000 / 1e7)


def test_messages_of_a_schedule_in_another_order_are_held_against_their_like() -> None:
    trace = example_trace(2)
    planned = replace(trace, provenance={**trace.provenance, "options": {"scheme": "priority"}})
    swapped = [
        replace(it, buckets=tuple(replace(b, index=1 - b.index) for b in reversed(it.buckets)))
        for it in planned.iterations
    ]
    found = validate(prediction_of(trace), replace(planned, iterations=swapped))
    assert [bucket.size_bytes for bucket in found.buckets] == [8192, 4096]
    assert max(found.errors) == pytest.approx(0)


def test_messages_that_cycles_fused_otherwise_are_held_against_nothing() -> None:
    trace = example_trace(2)
    one = replace(trace.iterations[0].buckets[0], size_bytes=4096 + 8192, parameters=(0, 1, 2, 3))
    fewer = replace(trace, iterations=[replace(it, buckets=(one,)) for it in trace.iterations])

    def held(scheme: str) -> Validation:
        return validate(
            prediction_of(trace), replace(fewer, provenance={**trace.provenance, "options": {"scheme": scheme}})
        )

    found = held("horovod:fusion=8MiB")
    assert (found.buckets, found.iterations.error) == ((), pytest.approx(0))
    with pytest.raises(TraceError, match="they differ from bucket 0 on"):
        held("multiworker-mirrored")


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ({"forward": 0.01, "wire": -0.03, "latency": -0.02, "bandwidth": -0.01}, "latency"),
        ({"forward": 0.01, "wire": -0.03, "latency": -0.09, "bandwidth": 0.06}, "wire"),
        ({"forward": 0.05, "wire": -0.03, "latency": -0.09, "bandwidth": 0.06}, "forward"),
        ({"forward": 0.01, "wire": -0.03}, "wire"),
    ],
)
def test_halves_of_the_wire_that_cancel_are_not_named(shares: dict[str, float], named: str) -> None:
    found = validate(prediction_of(example_trace(1)), example_trace(1))
    terms = tuple(ErrorTerm(name, 1.0, 1.0 + share, share) for name, share in shares.items())
    assert replace(found, terms=terms).largest_term.name == named


def test_another_configuration_is_refused() -> None:
    trace = example_trace(2)
    with pytest.raises(TraceError, match=r"2 ranks, the prediction 3.*`nodes`"):
        validate(prediction_of(example_trace(3)), trace)
    one = replace(trace.iterations[0].buckets[0], size_bytes=4096 + 8192, parameters=(0, 1, 2, 3))
    fewer = [replace(it, buckets=(one,)) for it in trace.iterations]
    with pytest.raises(TraceError, match="2 buckets, the prediction 1; they differ from bucket 0 on"):
        validate(prediction_of(replace(trace, iterations=fewer)), trace)


def test_a_bucket_that_one_side_always_left_out_is_held_against_nothing() -> None:
    trace = example_trace(2)
    records = [replace(it, buckets=it.buckets[1:]) for it in trace.iterations]
    second = replace(trace, iterations=records, spans=())
    for predicted, measured in ((trace, second), (second, trace)):
        found = validate(prediction_of(predicted), measured)
        assert [bucket.index for bucket in found.buckets] == [1]
        assert found.buckets[0].size_bytes == 8192
        assert max(found.errors) == pytest.approx(0)
        assert all(term.share_of_step == pytest.approx(0, abs=1e-12) for term in found.terms)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d.pop("iteration_s"), "iteration_s"),
        (lambda d: d.update(local_s="fast"), "local_s"),
        (lambda d: d.update(local_s=math.nan), "local_s: nan"),
        (lambda d: d.update(optimizer_s=math.inf), "optimizer_s: inf"),
        (lambda d: d.update(iteration_s=10**400), "iteration_s"),
        (lambda d: d["buckets"][0].update(ready_s=math.nan), r"buckets\.0\.ready_s"),
        (lambda d: d["buckets"][0].update(wire_s=math.nan), r"buckets\.0\.wire_s: nan"),
        (lambda d: d["buckets"].append(3), r"buckets\.2: 3"),
        (lambda d: d.pop("world_size"), "world_size"),
        (lambda d: d.update(buckets=3), "buckets"),
        (lambda d: d["buckets"][1].pop("finished_s"), r"buckets\.1\.finished_s"),
        (lambda d: d["buckets"][1].pop("index"), r"buckets\.1\.index"),
        (lambda d: d.update(forward_s=-0.001), "forward_s: -0.001"),
        (lambda d: d.update(iteration_s=-1), "iteration_s: -1"),
        (lambda d: d.update(local_s=-1e-3), "local_s: -0.001"),
        (lambda d: d.update(iteration_low_s="x"), "iteration_low_s: 'x'"),
        (lambda d: d["buckets"][0].update(finished_s=-0.5), r"buckets\.0\.finished_s: -0.5"),
        (lambda d: d["buckets"][0].update(finished_s=0.0), r"buckets\.0\.finished_s: .*before it starts"),
    ],
)
def test_documents_that_are_no_predictions(change, place: str) -> None:  # type: ignore[no-untyped-def]
    document = prediction_of(example_trace(2))
    change(document)
    with pytest.raises(InputError, match=place) as caught:
        check_prediction(document, "p.json")
    assert "p.json" in str(caught.value)
    assert "ddpsim predict --json" in str(caught.value)


def test_first_iterations_are_compared_where_both_sides_tell_them() -> None:
    trace = example_trace(2)
    rows = [{"index": index, "iteration_s": 0.04 * factor} for index, factor in enumerate((2, 1.1, 1))]
    predicted = {**prediction_of(trace), "first": {"construction": {"construction_s": 0.3}, "iterations": rows}}
    assert "first" not in validate(predicted, trace).document()
    told = {"construction_s": 0.2, "iterations_s": [0.1, 0.044, 0.04, 0.04, 0.04]}
    measured = replace(trace, provenance={**trace.provenance, "first": told})
    first = validate(predicted, measured).document()["first"]
    assert list(first) == ["construction", "iteration 0", "iteration 1", "iteration 2"]
    errors = [pair["error"] for pair in first.values()]
    assert errors == pytest.approx([0.5, -0.2, 0.0, 0.0])
    others = {**predicted, "first": {"construction": None, "iterations": rows[:1]}}
    assert list(validate(others, measured).first) == ["iteration 0"]


def in_turns(*rounds: tuple[float, float]) -> Trace:
    turns = [{"local_s": local_s, "step_s": step_s} for local_s, step_s in rounds]
    return replace(example_trace(2), provenance={"turns": turns})


def test_a_machine_that_slows_down_between_rounds_changes_no_ratio_to_one_process() -> None:
    steady = validate(prediction_of(example_trace(2)), in_turns((0.032, 0.048), (0.032, 0.048)))
    drifting = validate(prediction_of(example_trace(2)), in_turns((0.032, 0.048), (0.064, 0.096)))
    assert steady.ratio is not None
    assert drifting.ratio is not None
    assert replace(drifting.ratio, drift=0.0) == replace(steady.ratio, drift=0.0)
    assert (steady.ratio.drift, drifting.ratio.drift) == pytest.approx((0.0, 0.032 / 0.048 - 1))
    assert drifting.ratio.measured == pytest.approx(1.5)
    assert drifting.ratio.error == pytest.approx(0.040 / 0.032 / 1.5 - 1)
    assert drifting.document()["ratio"]["rounds"] == 2
    assert TURNS in drifting.tables()
    assert validate(prediction_of(example_trace(2)), example_trace(2)).ratio is None


def test_the_interval_of_a_ratio_holds_the_true_median_in_four_of_five() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(1000):
        found = ComparedRatio.of(list(rng.normal(1.4, 0.1, 15)), 1.4)
        held += found.low <= 1.4 <= found.high
    assert 0.7 < held / 1000 < 0.85


def test_rounds_that_differ_by_as_much_as_communication_costs_tell_nothing() -> None:
    assert ComparedRatio.of([1.4, 1.5, 1.45], 1.4).is_clear
    assert not ComparedRatio.of([0.9, 1.5, 1.2, 1.1, 1.0], 1.4).is_clear
    assert not ComparedRatio.of([0.95, 0.96, 0.95], 1.4).is_clear  # faster than one process: noise, or a mistake
