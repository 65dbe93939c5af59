import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import UnknownNameError, WorkloadError
from ddpsim.workload import Buffer, Phase, Workload
from ddpsim.workload.files import load_workload, save_workload, workload_document, workload_from
from ddpsim.workload.operators import Activations, Operator, StepOperators
from ddpsim.workload.profile import ForwardUse
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import workload as build
from tests.strategies import json_values

times = st.floats(0, 1e3, allow_subnormal=False)


amounts = st.floats(0, 1e15, allow_subnormal=False)


@st.composite
def operators(draw, parameters):
    """Operators of a step with so many parameters; every other one completes a gradient."""
    kinds = st.sampled_from(["conv", "grouped_conv", "gemm", "memory"])

    def phase(count, gradients):
        return tuple(
            Operator(
                draw(kinds),
                draw(amounts),
                traffic,
                fixed_bytes=traffic / 2,
                fp32=draw(st.booleans()),
                gradients=gradients(number),
            )
            for number in range(count)
            for traffic in [draw(amounts)]
        )

    numbers = st.none() | st.integers(0, 1)
    return StepOperators(
        draw(st.integers(1, 512)),
        "a sample",
        phase(2, lambda number: ()),
        phase(parameters, lambda number: (number,) if number % 2 else ()),
        draw(st.none() | st.tuples(*[numbers] * parameters)),
        draw(st.none() | st.builds(Activations, *[st.integers(0, 1 << 40)] * 5)),
        draw(st.none() | st.just(("float32",) * parameters)),
        draw(st.sampled_from([(), ("after_backward",)])),
        draw(st.none() | st.just("in one real step")),
    )


@st.composite
def workloads(draw):
    iterations, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def phase():
        return Phase(*(np.array(draw(st.lists(times, min_size=iterations, max_size=iterations))) for _ in range(2)))

    def grid():
        row = st.lists(times, min_size=count, max_size=count)
        return np.array(draw(st.lists(row, min_size=iterations, max_size=iterations)))

    hook, ready, unused = grid(), grid(), draw(st.integers(1, count))
    hook[:, unused:], ready[:, unused:] = np.nan, np.nan
    return Workload(
        name=draw(st.text(min_size=1)),
        device="V100",
        precision="fp32",
        batch_size=draw(st.integers(1, 512)),
        threads=draw(st.none() | st.integers(1, 64)),
        estimated=draw(st.booleans()),
        parameters=tuple(Parameter(f"p{i}", (i, 3), sparse=i == 2) for i in range(count)),
        buffers=(Buffer("b", (), "int64"),),
        forward=phase(),
        backward=phase(),
        optimizer=phase(),
        gradient_hook_s=hook,
        gradient_ready_s=ready,
        synchronises=("after_optimizer",),
        provenance={"command": "x"},
        timed=draw(st.booleans()),
        forward_use_s=draw(st.none() | st.just(ForwardUse(hook[0], ready[0]))),
        activations_bytes=draw(st.none() | st.integers(0, 1 << 40)),
        optimizer_kind=draw(st.none() | st.just("adamw-fused+clip")),
        autocast_dtype=draw(st.none() | st.just("bfloat16")),
        operators=draw(st.none() | operators(count)),
    )


@given(workloads())
def test_a_document_holds_everything(workload):
    document = workload_document(workload)
    again = workload_from(json.loads(json.dumps(document)), "w.json")
    assert workload_document(again) == document
    assert again.parameters == workload.parameters
    assert again.buffers == workload.buffers
    assert np.array_equal(again.gradient_hook_s, workload.gradient_hook_s, equal_nan=True)
    assert np.array_equal(again.backward.device_s, workload.backward.device_s)
    assert (again.device, again.timed) == (workload.device, workload.timed)


def test_a_file_marks_timed_layers_before_the_device_whose_pace_they_keep():
    for device in ("cpu", "V100"):
        document = workload_document(single_clock(build(device=device)))
        assert document["device"] == f"timed {device}"
        again = workload_from(document, "w.json")
        assert (again.device, again.timed, again.on_cpu, again.gpu) == (device, True, False, None)


@pytest.fixture
def document():
    one = {"host_s": [0.1], "device_s": [0.2]}
    return {
        "schema": "ddpsim.workload/1", "name": "w", "device": "cpu", "precision": "fp32", "batch_size": 2, "threads": 1,
        "estimated": False,
        "parameters": [{"name": "a", "shape": [2, 3], "dtype": "float32", "device": "cpu", "sparse": False}],
        "buffers": [], "forward": one, "backward": one, "optimizer": one, "gradient_hook_s": [[0.05]],
        "gradient_ready_s": [[0.05]], "synchronises": [], "provenance": {},
    }  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_files_are_the_same_bytes_each_time(document, tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        save_workload(workload_from(document, "w"), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert load_workload(paths[0]).parameters == (Parameter("a", (2, 3)),)
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in paths]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "ddpsim.plan/1"}, "w.json: not a workload file: its schema is 'ddpsim.plan/1'; expected"),
        ({"name": ""}, "w.json: name: '' is not a text"),
        ({"batch_size": 0}, "w.json: batch_size: 0 is not a number above 0; make the file again"),
        ({"batch_size": True}, "w.json: batch_size: True is not"),
        ({"threads": 1.5}, "w.json: threads: 1.5 is not"),
        ({"estimated": "no"}, "w.json: estimated: 'no' is not true or false"),
        (
            {"parameters": [{"name": "a"}]},
            r"w.json: \n  parameters.0.shape: the key is missing\n  parameters.0.dtype: the key",
        ),
        ({"parameters": ["a"]}, "w.json: parameters.0: 'a' is not an object with keys"),
        (
            {"parameters": [{"name": "a", "shape": [-1], "dtype": "float32", "device": "cpu"}]},
            "w.json: parameters.0.shape.0: -1 is not a number from 0 on",
        ),
        (
            {"parameters": [{"name": "a", "shape": [1], "dtype": "fp32", "device": "cpu"}]},
            "w.json: parameters.0.dtype: 'fp32' is not one of float64, float32",
        ),
        (
            {"parameters": [{"name": "a", "shape": [1], "dtype": "float32", "device": "cpu"}] * 2},
            "w.json: parameters.1: parameters 0 and 1 are both named 'a'; give each parameter a name of its own",
        ),
        ({"forward": [1]}, r"w.json: forward: \[1\] is not an object"),
        ({"forward": {"host_s": [1.0], "device_s": 1.0}}, "w.json: forward.device_s: 1.0 is not a list of seconds"),
        ({"forward": {"host_s": ["1"], "device_s": [1]}}, "w.json: forward.host_s.0: '1' is not a number of seconds"),
        ({"forward": {"host_s": [-1], "device_s": [1]}}, "w.json: forward.host_s.0: -1.0 is not a time"),
        ({"forward": {"host_s": [None], "device_s": [1]}}, "w.json: forward.host_s.0: nan is not a time"),
        ({"forward": {"host_s": [1e300], "device_s": [1]}}, r"w.json: forward.host_s.0: 1e\+300 is not a time"),
        ({"backward": {"host_s": [1, 2], "device_s": [1]}}, "w.json: backward.host_s: 2 iterations, forward has 1"),
        ({"gradient_hook_s": [[0.1], [0.1, 0.2]]}, "w.json: gradient_hook_s.1: 2 times, the first iteration has 1"),
        ({"gradient_hook_s": [[0.1, 0.2]]}, r"w.json: gradient_hook_s: shape \(1, 2\), expected"),
        ({"gradient_hook_s": [[None]]}, "w.json: gradient_ready_s.0.0: a gradient has one of its two times only"),
        (
            {"gradient_hook_s": [[None]], "gradient_ready_s": [[None]]},
            "w.json: gradient_hook_s.0: an iteration without any gradient; record",
        ),
        ({"gradient_ready_s": [0.1]}, "w.json: gradient_ready_s: .* is not a list of lists"),
        ({"synchronises": ["now"]}, "w.json: synchronises: unknown synchronisation point 'now'"),
        ({"synchronises": "after_forward"}, "w.json: synchronises: 'after_forward' is not a list"),
        ({"provenance": 3}, "w.json: provenance: 3 is not an object"),
        ({"arithmetic_share": "all"}, "w.json: arithmetic_share: 'all' is not a number"),
        ({"forward_use_s": {"host": [0.1]}}, "w.json: forward_use_s.device: the key is missing"),
        ({"forward_use_s": {"host": [0, 1], "device": [0]}}, "w.json: forward_use_s.host: 2 times for 1 parameters"),
        ({"forward_use_s": {"host": [-1], "device": [0]}}, "w.json: forward_use_s.host.0: -1.0 is not a time"),
        ({"gradient_ready_s": [[1.7e308]]}, r"w.json: gradient_ready_s.0.0: 1.7e\+308 is not a time"),
        ({"forward_use_s": {"host": [0], "device": [None]}}, "forward_use_s.device.0: a parameter has one of its two"),
        ({"activations_bytes": -1}, "w.json: activations_bytes: -1 is not a number from 0 on"),
        ({"optimizer_kind": 3}, "w.json: optimizer_kind: 3 is not a text"),
        ({"arithmetic_share": 1.5}, "w.json: arithmetic_share: 1.5 is not a share; give a number from 0 to 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(document, change, message):
    with pytest.raises(WorkloadError, match=message):
        workload_from({**document, **change}, "w.json")


@pytest.mark.parametrize(
    "field",
    ["name", "device", "parameters", "buffers", "forward", "gradient_hook_s", "provenance", "threads", "estimated"],
)
def test_a_missing_field_is_named(document, field):
    del document[field]
    with pytest.raises(WorkloadError, match=f"w.json: {field}: the key is missing; make the file again"):
        workload_from(document, "w.json")


def test_a_file_without_an_arithmetic_share_spreads_all_its_computing(document):
    assert workload_from({**document, "arithmetic_share": 0.25}, "w.json").arithmetic_share == 0.25
    document.pop("arithmetic_share", None)
    assert workload_from(document, "w.json").arithmetic_share == 1.0


@pytest.mark.parametrize("name", ["resnet50@v100-amp-b32", "resnet50@A100-amp-b32", "resnet51@a100-amp-b32"])
def test_a_shipped_name_that_is_nearly_right_is_told_whole(name):
    with pytest.raises(UnknownNameError, match=r"unknown workload .*did you mean .*resnet50@a100-amp-b32"):
        load_workload(name)


@given(workloads(), st.data())
def test_a_malformed_document_is_read_or_refused_in_one_message(workload, data):
    document = json.loads(json.dumps(workload_document(workload)))
    target = document
    while True:
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        if not isinstance(target[key], dict | list) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    target[key] = data.draw(json_values)
    with contextlib.suppress(WorkloadError):
        workload_from(document, "w.json")


def test_a_program_given_as_a_workload_is_told_how_to_estimate_it(tmp_path):
    (tmp_path / "mine.py").write_text("def train(): ...\n")
    with pytest.raises(WorkloadError, match=r"mine.py: is a program, not a workload; .* --step mine:FUNCTION"):
        load_workload(tmp_path / "mine.py")
