"""Gradients that a traced step adds up over several micro-batches: one of these is the workload, as a law."""

from statistics import median

import pytest

from ddpsim.explaining.explain import explain
from ddpsim.workload.kineto.workload import import_trace, open_trace
from tests.ddpsim.workload.kineto_traces import Job, written

KERNELS = [80.0, 60.0, 40.0, 20.0]
PHASES = ("forward", "backward", "optimizer")


def trace(folder, *, steps=5, change=lambda document: None, **options):
    document = Job(KERNELS, ddp=options.pop("ddp", True), recorded=True, **options).document(steps)
    change(document)
    return written(folder, document)


def times_of(workload):
    return [median(getattr(getattr(workload, phase), clock)) for phase in PHASES for clock in ("host_s", "device_s")]


def marks(document):
    return [event for event in document["traceEvents"] if "ProfilerStep#" in event["name"]]


def step_after_each_round(rounds):
    """Return a change that calls the profiler's step() after each micro-batch."""

    def change(document):
        events = document["traceEvents"]
        forwards = sorted(e["ts"] for e in events if e["name"] == "aten::flatten_dense_tensors")
        number = 0
        for mark in marks(document):
            begin, end = mark["ts"], mark["ts"] + mark["dur"]
            inside = [at - 11 for at in forwards if begin < at < end][1:]
            assert len(inside) == rounds - 1
            events.remove(mark)
            for start, stop in zip([begin, *inside], [*inside, end], strict=True):
                events.append({**mark, "name": f"ProfilerStep#{number}", "ts": start, "dur": stop - start})
                number += 1

    return change


@pytest.mark.parametrize("ddp", [True, False])
@pytest.mark.parametrize("no_sync", [True, False])
@pytest.mark.parametrize("rounds", [2, 3, 64])
def test_a_micro_batch_of_many_is_the_only_one_of_a_step(tmp_path, rounds, no_sync, ddp):
    # Kernels so short that no device is behind its host: else a micro-batch would wait for the one before.
    alone = import_trace(trace(tmp_path, ddp=ddp, wire=5.0)).workload
    many = import_trace(trace(tmp_path, steps=3, ddp=ddp, wire=5.0, rounds=rounds, no_sync=no_sync))
    assert many.workload.parameters == alone.parameters
    assert many.workload.iterations == 3 * rounds
    assert times_of(many.workload) == pytest.approx(times_of(alone), abs=2e-9)
    assert many.workload.gradient_hook_s[0] == pytest.approx(alone.gradient_hook_s[0], abs=2e-9)
    every = " --sync every" if ddp and not no_sync else ""
    assert f"`--accumulate {rounds}{every}` makes a step" in " ".join(many.notes)


def test_rounds_that_the_profiler_counts_as_steps_are_those_of_one_step(tmp_path):
    whole, apart = (
        open_trace(trace(tmp_path, steps=4, rounds=3, no_sync=True, change=change))
        for change in (lambda document: None, step_after_each_round(3))
    )
    assert [(s.number, s.count, len(s.collectives)) for s in apart.steps] == [
        (s.number, s.count, len(s.collectives)) for s in whole.steps
    ]
    assert [s.backward_s for s in apart.steps] == [s.backward_s for s in whole.steps]


def test_uneven_rounds_are_rounds_too(tmp_path):
    def change(document):
        # The second micro-batch of each step leaves out the last gradient.
        nodes = [e for e in document["traceEvents"] if e["name"] == "torch::autograd::AccumulateGrad"]
        for event in nodes[9::10]:
            document["traceEvents"].remove(event)

    document = Job([20.0] * 5, recorded=True, rounds=2).document(4)
    change(document)
    imported = import_trace(written(tmp_path, document))
    assert len(imported.workload.parameters) == 5
    assert "over 2 micro-batches" in " ".join(imported.notes)
    assert sum("4 gradients instead of 5" in note for note in imported.notes) == 4


def test_passes_of_several_optimizers_are_no_rounds(tmp_path):
    def change(document):
        # Each step updates after its first pass too, as a generator and its critic do.
        events = document["traceEvents"]
        for mark in marks(document):
            inside = [e for e in events if mark["ts"] < e["ts"] < mark["ts"] + mark["dur"]]
            second = sorted(e["ts"] for e in inside if e["name"] == "aten::conv2d")[1]
            update = {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "tid": 1}
            events.append({**update, "ts": second - 2, "dur": 1})

    found = open_trace(trace(tmp_path, ddp=False, rounds=2, change=change))
    assert {(step.count, len(step.accumulations)) for step in found.steps} == {(1, 2 * len(KERNELS))}


@pytest.mark.parametrize("no_sync", [True, False])
def test_explain_names_rounds_and_advises_no_sync_where_each_reduces(tmp_path, no_sync):
    found = explain(trace(tmp_path, rounds=4, no_sync=no_sync, wire=300.0))
    added = found.document()["accumulation"]
    assert (added["micro_batches"], added["reducing"]) == (4, 1 if no_sync else 4)
    assert any("no_sync()" in line for line in found.advice) != no_sync
    assert sum(found.traced.parts.values()) == pytest.approx(found.traced.iteration_s)
    assert [len(split.parameters) for split in found.splits] == [2, 2] * (1 if no_sync else 4)
    assert [split.index for split in found.splits] == list(range(len(found.splits)))
    assert found.predicted is not None
    assert found.predicted.prediction.options.accumulate == 4
    assert found.predicted.step_s == pytest.approx(found.traced.iteration_s, rel=0.25)
    # What reducing before the last micro-batch costs is what no_sync() saves.
    if not no_sync:
        synced = explain(trace(tmp_path, rounds=4, no_sync=True, wire=300.0), predict=False)
        saved_s = found.traced.iteration_s - synced.traced.iteration_s
        assert added["waits_s"] == pytest.approx(saved_s, rel=0.35)


def test_a_step_of_one_micro_batch_has_no_word_of_rounds(tmp_path):
    found = explain(trace(tmp_path), predict=False)
    assert found.document()["accumulation"] is None
    assert not any("micro-batch" in note for note in import_trace(trace(tmp_path)).notes)
