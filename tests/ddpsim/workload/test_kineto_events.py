import pytest

from ddpsim.common.errors import TraceError
from ddpsim.workload.kineto.device_use import device_use
from ddpsim.workload.kineto.events import busy_s, dtype_named, parse_events


def event(category, name, start, duration, **args):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": 1, "args": args}


def test_device_use_by_the_phase_that_launched():
    events = [
        event("user_annotation", "x:forward", 1000, 100),
        event("user_annotation", "x:backward", 1100, 200),
        event("user_annotation", "x:optimizer", 1300, 100),
        event("cuda_runtime", "cudaLaunchKernel", 1010, 5, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 1090, 5, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 1110, 5, correlation=3),
        event("cuda_runtime", "cudaStreamSynchronize", 1320, 60, correlation=4),
        # The device is late: the second kernel runs while the host is in backward, in part beside the first.
        event("kernel", "a", 1020, 100, stream=7, correlation=1),
        event("kernel", "b", 1080, 100, stream=8, correlation=2),
        event("kernel", "c", 1200, 150, stream=7, correlation=3),
    ]
    use = device_use(events, "x:")
    assert use.busy_s == pytest.approx({"forward": 160e-6, "backward": 150e-6, "optimizer": 0})
    assert use.waited_s == pytest.approx({"forward": 0, "backward": 0, "optimizer": 60e-6})
    assert use.synchronises == ("after_optimizer",)


def test_busy_time_counts_overlap_once():
    works = parse_events([event("kernel", "k", t, d, stream=s) for t, d, s in ((0, 4, 1), (2, 1, 2), (6, 2, 1))], "t")
    assert busy_s(works.works) == pytest.approx(6e-6)


def test_parts_of_operators_are_left_out_but_for_those_that_somebody_reads():
    whole = [
        event("cpu_op", "aten::linear", 0, 100),
        event("cpu_op", "aten::addmm", 10, 50, **{"Sequence number": 7}),
        event("cpu_op", "aten::expand", 20, 5),
        event("cpu_op", "mine", 90, 5),
        event("cpu_op", "aten::cat", 200, 50),
        event("cpu_op", "aten::narrow", 210, 5),
        {**event("cpu_op", "aten::mul", 30, 5), "tid": 2},
    ]
    kept = [operator.name for operator in parse_events(whole, "t").operators]
    assert kept == ["aten::linear", "aten::addmm", "aten::mul", "mine", "aten::cat", "aten::narrow"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "t: traceEvents: dict is not a list of events"),
        ([3], "t: traceEvents.0: 3 is not an event"),
        (
            [event("kernel", "k", 0, 1), event("kernel", "k", "now", 1)],
            "t: traceEvents.1: ts 'now', dur 1 are not times",
        ),
        ([event("kernel", "k", 0, -1)], "t: traceEvents.0: ts 0, dur -1"),
        ([event("kernel", "k", 0, 10**400)], "t: traceEvents.0: ts 0, dur 1000"),
    ],
)
def test_bad_events_are_placed(raw, message):
    with pytest.raises(TraceError, match=message):
        parse_events(raw, "t")


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("Float", "float32"),
        ("c10::BFloat16", "bfloat16"),
        ("long int", "int64"),
        ("", None),
        ("QInt8", None),
        (3, None),
    ],
)
def test_types_have_torchs_names(spelt, name):
    assert dtype_named(spelt) == name
