import json

import numpy as np
import pytest
import torch

from ddpexec.__main__ import main
from ddpexec.capturing.capture import Capture, CaptureSettings, capture_model, capture_step
from ddpexec.capturing.devices import Stamp
from ddpexec.capturing.recorder import phase_of
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.common.errors import InputError, UnknownNameError, WorkloadError
from ddpsim.workload.files import load_workload
from ddpsim.workload.kineto.device_use import DeviceUse
from tests import forked
from tests.ddpexec.capturing.own_steps import SLEEP_S

QUICK = CaptureSettings(iterations=3, warm_up=1, threads=1)

STEPS = "tests.ddpexec.capturing.own_steps"


def test_a_users_step_is_taken_apart_where_its_time_goes():
    workload = capture_step(f"{STEPS}:sleeping", QUICK)
    sleep = SLEEP_S
    assert workload.batch_size == 7
    assert workload.device == "cpu"
    assert [p.name for p in workload.parameters] == ["unused", *(f"layers.{i}.weight" for i in range(4))]
    # Each sleep is a lower bound; the computation beside it is microseconds.
    assert (workload.forward.host_s >= 8 * sleep).all()
    assert (workload.backward.host_s >= 4 * sleep).all()
    assert (workload.optimizer.host_s >= sleep).all()
    assert np.isnan(workload.gradient_hook_s[:, 0]).all()
    # Backward sleeps before each layer's gradient: layer 3 after one sleep, layer 0 after four.
    for layer in range(4):
        assert (workload.gradient_hook_s[:, 1 + layer] >= (4 - layer) * sleep).all()
    assert (np.diff(workload.gradient_hook_s[:, :0:-1]) >= sleep).all()
    assert workload.arrival_order() == [4, 3, 2, 1, 0]
    assert np.array_equal(workload.gradient_hook_s, workload.gradient_ready_s, equal_nan=True)


def test_three_lines_around_a_training_loop(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    backward, losses = torch.autograd.backward, []
    with Capture(model, tmp_path / "w.json", name="linear", settings=QUICK) as capture:
        for _ in range(9):
            optimizer.zero_grad()
            with torch.no_grad():
                model(torch.ones(1, 3))
            loss = model(torch.ones(5, 3)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            capture.step()
    workload = load_workload(tmp_path / "w.json")
    assert (workload.name, workload.iterations, workload.estimated) == ("linear@cpu-fp32-b5", 3, False)
    assert len(losses) == 9
    assert losses[-1] < losses[0]
    # Nothing of it stays behind.
    assert torch.autograd.backward is backward
    assert not model._forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", [DistributedDataParallel, torch.nn.parallel.DistributedDataParallel])
def test_a_wrapped_module_is_refused(kind):
    with pytest.raises(InputError, match="Capture: the module is wrapped in DDP; capture the plain module"):
        Capture(kind(torch.nn.Linear(1, 1)), settings=QUICK)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
def test_a_shipped_model_in_each_precision(precision):
    workload = capture_model("mlp", QUICK, batch_size=2, precision=precision, device="cpu")
    assert workload.name == f"mlp@cpu-{precision}-b2"
    assert workload.precision == precision
    assert workload.threads == 1
    assert {p.dtype for p in workload.parameters} == {"bfloat16" if precision == "bf16" else "float32"}
    assert workload.arrival_order()[-1] in (0, 1)
    assert (workload.gradient_hook_s.max(axis=1) <= workload.backward.host_s).all()


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("twice", WorkloadError, "iteration 0: a second forward; give a step with one forward"),
        ("no_backward", WorkloadError, "iteration 0: no backward"),
        ("nothing", InputError, r"step: .*nothing returned NoneType; return \(module, step\)"),
        ("WIDTH", InputError, "is a int; name a function"),
        ("absent", InputError, "cannot be imported: .*absent.*; run from the folder"),
        ("no_backwards", InputError, f"cannot be imported: .*; did you mean {STEPS}:no_backward"),
    ],
)
def test_a_step_that_does_not_fit_is_named(function, error, message):
    with pytest.raises(error, match=message):
        capture_step(f"{STEPS}:{function}", QUICK)
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_other_bad_input():
    with pytest.raises(InputError, match="'train' names no function; write package"):
        capture_step("train", QUICK)
    with pytest.raises(InputError, match="'no_such:train' cannot be imported"):
        capture_step("no_such:train", QUICK)
    with pytest.raises(InputError, match=r"'my/model.py:train' cannot be imported: .*; write my.model:train"):
        capture_step("my/model.py:train", QUICK)
    with pytest.raises(UnknownNameError, match="did you mean mlp"):
        capture_model("mpl", QUICK)
    with pytest.raises(InputError, match="precision: unknown precision 'int8'; use one of fp32"):
        capture_model("mlp", QUICK, precision="int8", device="cpu")
    with pytest.raises(InputError, match="tf32 does not exist on cpu"):
        capture_model("mlp", QUICK, precision="tf32", device="cpu")
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        capture_model("mlp", QUICK, device="gpu")
    with (
        pytest.raises(WorkloadError, match="the loop ended after 0 iterations, 4 are needed"),
        Capture(torch.nn.Linear(1, 1), settings=QUICK),
    ):
        pass


def test_the_command_writes_a_file_and_one_document(tmp_path, capsys):
    arguments = ["capture", "--model", "mlp", "--batch_size", "2", "--threads", "1", "--iterations", "2"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--device", "cpu", "--json", "-o", str(tmp_path / "w.json.gz")])
    captured = capsys.readouterr()
    assert end.value.code == 0
    document = json.loads(captured.out)
    workload = load_workload(tmp_path / "w.json.gz")
    assert document["name"] == workload.name == "mlp@cpu-fp32-b2"
    assert document["iterations"] == workload.iterations == 2
    assert "iteration 5 of 5" in captured.err


def test_ranks_that_torchrun_started_record_at_once_into_one_file(tmp_path):
    arguments = ["capture", "--model", "mlp", "--batch-size", "2", "--threads", "1", "--device", "cpu", "--json"]
    options = [*arguments, "--iterations", "3", "-o", str(tmp_path / "w.json")]
    done = forked.command([*forked.TORCHRUN, "2", "-m", "ddpexec", *options], tmp_path, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    workload = load_workload(tmp_path / "w.json")
    assert json.loads(done.stdout)["ranks"] == workload.ranks == 2
    assert workload.iterations == 2 * 3
    assert done.stderr.count("iteration 6 of 6") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: capture: give one of --model and --step"),
        (["--step", "a:b", "--precision", "fp32"], "error: --precision and --step are both given"),
        (["--model", "mlp", "--iterations", "0"], "Invalid value for '--iterations'"),
    ],
)
def test_the_command_ends_with_2_and_one_message(arguments, message, tmp_path, refusal):
    assert message in refusal("capture", *arguments, "-o", tmp_path / "w.json")
    assert not list(tmp_path.iterdir())


class Event:
    """What a CUDA event tells: milliseconds to another."""

    def __init__(self, at_ms):
        self.at_ms = at_ms

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


@pytest.mark.parametrize(("busy_s", "device_s"), [(0.004, 0.004), (0.2, 0.06), (0.0, 0.06)])
def test_a_phase_on_a_gpu_has_busy_time_and_no_waiting(busy_s, device_s):
    # The host took 10 ms, 3 of them waiting; the device passed from one event to the next in 60 ms.
    stamps = [(Stamp(5.0, Event(100.0)), Stamp(5.010, Event(160.0)))]
    use = DeviceUse({"forward": busy_s}, {"forward": 0.003}, ())
    phase = phase_of(stamps, "forward", use)
    assert phase.host_s == pytest.approx([0.007])
    assert phase.device_s == pytest.approx([device_s])
