"""Which 16-bit type autocast casts to is recorded, and bfloat16 is not priced where a GPU's matrix units lack it."""

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddpexec.capturing.autocast import watch_dtypes
from ddpexec.capturing.capture import CaptureSettings, capture_model
from ddpexec.capturing.estimate import carry_model, estimate_model, estimate_module, estimate_step
from ddpexec.capturing.phases import autocast_dtype_of
from ddpexec.capturing.shapes import REAL, step_shape
from ddpsim import load_topology
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.common.files import json_text
from ddpsim.prediction.carry import carry_workload
from ddpsim.prediction.models import Model
from ddpsim.workload.anchors import RooflineFactors, parse_anchor
from ddpsim.workload.estimate import EstimateOptions
from ddpsim.workload.files import load_workload, save_workload, workload_document, workload_from
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.on_gpu import estimate_on_gpu
from tests.ddpexec.capturing import own_steps

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
REFUSED = (
    "{gpu} has no figures for precision 'bf16', to which the step's autocast casts; "
    "use torch.autocast(dtype=torch.float16) with a GradScaler there, or another GPU"
)
FITTED = {name: gpu_named(name).with_fitted() for name in ("V100", "T4", "A100")}
QUICK = CaptureSettings(iterations=1, warm_up=1, threads=1)


def refused(gpu):
    return pytest.raises(WorkloadError, match=re.escape(REFUSED.format(gpu=gpu)))


def make(context, forward=lambda net, x: net(x)):
    """Return a builder of a step under `context`, which is made in each step of the device's kind."""

    def build():
        net, given = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(4, 8)

        def step():
            with context(given.device.type):
                loss = forward(net, given).sum()
            loss.backward()

        return net, step

    return build


def dtype_of(build):
    found = step_shape(build)
    return found.precision, found.shape.autocast_dtype


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (lambda _: torch.autocast("cuda", dtype=BFLOAT16), "bfloat16"),
        (lambda _: torch.autocast("cuda", BFLOAT16), "bfloat16"),
        (lambda where: torch.autocast(device_type=where, dtype=BFLOAT16), "bfloat16"),
        (lambda _: torch.amp.autocast("cuda", dtype=BFLOAT16), "bfloat16"),
        (lambda _: torch.autocast("cuda"), None),
        (lambda _: torch.autocast("cuda", dtype=FLOAT16), None),
        (torch.autocast, None),  # the processor's default is bfloat16, CUDA's is float16
        (lambda where: torch.autocast(where, dtype=FLOAT16), None),
    ],
)
def test_the_type_is_what_the_step_names_or_what_cuda_takes(context, expected):
    assert dtype_of(make(context)) == ("amp", expected)


def test_an_autocast_that_is_off_or_no_part_of_a_step_says_nothing():
    assert dtype_of(make(lambda _: torch.autocast("cuda", dtype=BFLOAT16, enabled=False))) == ("fp32", None)
    unused = torch.autocast("cpu", dtype=BFLOAT16)

    def forward(net, x):
        with torch.autocast("cpu", dtype=BFLOAT16, enabled=False):
            scaled = x * x.sum()
        return net(scaled) + unused.fast_dtype.itemsize

    assert dtype_of(make(torch.autocast, forward)) == ("amp", None)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_sets_again_in_backward_is_not_the_users(reentrant):
    def forward(net, x):
        return net(checkpoint(lambda y: y.sin(), x.requires_grad_(), use_reentrant=reentrant))

    assert dtype_of(make(torch.autocast, forward)) == ("amp", None)
    named = make(lambda where: torch.autocast(where, dtype=BFLOAT16), forward=forward)
    assert dtype_of(named) == ("amp", "bfloat16")


def test_an_autocast_made_where_the_users_module_is_imported_counts(tmp_path, monkeypatch):
    for name, dtype in (("stated_bf16", "dtype=torch.bfloat16"), ("stated_none", "")):
        lines = (
            f"import torch\ncontext = torch.autocast('cpu', {dtype})\n",
            "def train():\n    net, given = torch.nn.Linear(4, 4), torch.ones(2, 4)\n",
            "    def step():\n        with context:\n            loss = net(given).sum()\n        loss.backward()\n",
            "    return net, step\n",
        )
        (tmp_path / f"{name}.py").write_text("".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert dtype_of("stated_bf16:train") == ("amp", "bfloat16")
        assert dtype_of("stated_none:train") == ("amp", None)
    finally:
        for name in ("stated_bf16", "stated_none"):
            sys.modules.pop(name, None)


def test_a_step_that_needs_values_and_a_module_say_it_too():
    def depends(net, x):
        found = net(x)
        return found if found.sum().item() > -1e9 else -found

    found = step_shape(make(lambda where: torch.autocast(where, dtype=BFLOAT16), forward=depends))
    assert found.shape.counted.startswith(REAL)
    assert (found.precision, found.shape.autocast_dtype) == ("amp", "bfloat16")

    class Casting(nn.Linear):
        def __call__(self, x):
            with torch.autocast("cuda", dtype=BFLOAT16):
                return super().__call__(x)

    assert estimate_module(Casting(4, 4), torch.ones(2, 4), "A100").autocast_dtype == "bfloat16"
    with refused("V100"):
        estimate_module(Casting(4, 4), torch.ones(2, 4), "V100")


def test_torch_is_left_as_it_was():
    before = torch.autocast.__init__, torch.autocast.__enter__
    step_shape(own_steps.autocast)
    assert (torch.autocast.__init__, torch.autocast.__enter__) == before


@pytest.mark.parametrize("precision", [None, "amp"])
@pytest.mark.parametrize("gpu", ["V100", "T4", "A100"])
def test_own_steps_under_autocast(gpu, precision):
    narrow, half = own_steps.autocast, own_steps.autocast_on_gpus
    assert estimate_step(half, gpu, precision).autocast_dtype is None
    if gpu != "A100":
        with refused(gpu):
            estimate_step(narrow, gpu, precision)
        return
    made = estimate_step(narrow, gpu, precision)
    assert (made.precision, made.autocast_dtype) == ("amp", "bfloat16")


@pytest.mark.parametrize("gpu", ["V100", "T4"])
def test_precisions_by_name_stay_as_they_were(gpu):
    # `amp` of a step that asks for no autocast is float16, as the default of CUDA's autocast.
    assert estimate_step(own_steps.tied, gpu, "amp").autocast_dtype is None
    assert estimate_model("mlp", gpu, "amp", 1).precision == "amp"
    with pytest.raises(WorkloadError, match=f"{gpu} has no figures for precision 'bf16'; use one of fp32, amp"):
        estimate_model("mlp", gpu, "bf16", 1)


def test_a_type_changes_no_time_where_the_gpu_has_both():
    def times(dtype):
        found = workload_document(estimate_step(make(lambda _: torch.autocast("cuda", dtype=dtype)), "A100"))
        return found.pop("autocast_dtype", None), found

    (narrow, first), (half, second) = times(BFLOAT16), times(FLOAT16)
    assert (narrow, half) == ("bfloat16", None)
    assert {**first, "operators": None} == {**second, "operators": None}


def test_a_peak_of_bf16_that_the_user_gives_is_enough():
    spec = replace(FITTED["V100"].spec, peaks={**FITTED["V100"].spec.peaks, "bf16": 15.7e12})
    assert estimate_step(own_steps.autocast, replace(FITTED["V100"], spec=spec)).autocast_dtype == "bfloat16"


def test_a_file_keeps_it_and_one_without_it_is_read_as_before(tmp_path):
    made = estimate_step(own_steps.autocast, "A100")
    save_workload(made, tmp_path / "w.json")
    read = load_workload(tmp_path / "w.json")
    assert read.autocast_dtype == "bfloat16"
    for again in (read, estimate_on_gpu(read, FITTED["A100"], batch_size=2)):
        for gpu in ("V100", "T4"):
            with refused(gpu):
                estimate_on_gpu(again, FITTED[gpu])
    assert estimate_on_gpu(read, FITTED["V100"], precision="fp32").autocast_dtype is None
    with refused("V100"):
        load_workload(f"{tmp_path / 'w.json'}@V100")
    document = json.loads((tmp_path / "w.json").read_text())
    del document["autocast_dtype"]
    old = workload_from(document, "w.json")
    assert (old.autocast_dtype, json.loads(json_text(workload_document(old)))) == (None, document)
    assert estimate_on_gpu(old, FITTED["V100"]).precision == "amp"
    with pytest.raises(WorkloadError, match="autocast_dtype"):
        workload_from({**document, "autocast_dtype": "int8"}, "w.json")


def test_a_machine_that_lacks_bf16_is_treated_as_for_a_step_in_bf16():
    machine = load_topology("dgx-1v")
    for step in (own_steps.autocast, own_steps.narrow):
        source = estimate_step(step, "A100")
        assert Model.of(source).on(machine) == replace(source, operators=None)  # it keeps its pace
        with pytest.raises(InputError, match="V100 has no figures for precision 'bf16'"):
            Model.of(source).on(machine, 2)
    half = estimate_step(own_steps.autocast_on_gpus, "A100")
    assert Model.of(half).on(machine).device == "V100"


def test_the_pace_of_another_estimate_does_not_hide_it():
    anchored = EstimateOptions(anchors=(parse_anchor("50ms", "--one-gpu-step"),))
    paced = estimate_step(own_steps.autocast_on_gpus, "V100", options=anchored)
    options = EstimateOptions(pace=RooflineFactors.of(paced.provenance, "w.json"))
    with refused("V100"):
        estimate_step(own_steps.autocast, "V100", options=options)


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16])
def test_a_step_recorded_on_a_gpu_says_what_was_cast_to(dtype: torch.dtype) -> None:
    parameters = [torch.nn.Parameter(torch.empty(2, device="meta"))]
    casting, to = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        assert autocast_dtype_of(parameters) == ("bfloat16" if dtype is BFLOAT16 else None)
        with watch_dtypes() as around:
            pass
        assert around == {dtype}, "entered before a step is counted"
    finally:
        torch.set_autocast_enabled("cuda", casting)
        torch.set_autocast_dtype("cuda", to)
    assert autocast_dtype_of(parameters) is None


def test_a_recorded_step_says_it_and_is_not_carried_where_it_cannot_be_priced():
    of_cpu = capture_model("mlp", QUICK, batch_size=1, precision="amp", device="cpu")
    assert of_cpu.autocast_dtype is None, "a processor's default says nothing of a GPU's"
    assert carry_model(of_cpu, FITTED["V100"]).workload.precision == "amp"
    model = replace(of_cpu, autocast_dtype="bfloat16")
    with refused("V100"):
        carry_model(model, FITTED["V100"])
    assert carry_model(model, FITTED["A100"]).workload.autocast_dtype == "bfloat16"
    recorded = replace(estimate_step(own_steps.autocast, "A100"), operators=None, estimated=False)
    with refused("V100"):
        carry_workload(recorded, FITTED["V100"])
    on_a100 = replace(recorded, autocast_dtype=None)
    assert carry_workload(on_a100, FITTED["V100"]).workload.device == "V100"
