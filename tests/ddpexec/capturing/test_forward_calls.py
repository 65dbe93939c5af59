"""When forward first needs each parameter, as `capture` sees it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddpexec.capturing.capture import Capture, CaptureSettings
from ddpexec.capturing.models import build
from ddpexec.capturing.recorder import CALL_ITERATIONS, Recorder
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from tests.ddpexec.ddp.pretended_gpu import CUDA, MS, Gpu, busy

SETTINGS = CaptureSettings(iterations=3, warm_up=1)


class Slow(nn.Module):
    """A layer that takes its time before it is there for the next."""

    def __init__(self, inner: nn.Module, seconds: float) -> None:
        super().__init__()
        self.inner, self.seconds = inner, seconds

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        time.sleep(self.seconds)
        return y


class Net(nn.Module):
    """Its output is tied to the embedding, one layer is used by its parent, one is checkpointed, two are left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 9, bias=False)
        self.blocks = nn.Sequential(*(Slow(nn.Linear(4, 4), 3 * MS) for _ in range(3)))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.embedding = nn.Embedding(9, 4)
        self.embedding.weight = self.head.weight
        self.never, self.unread = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.own, self.alone = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def forward(self, tokens: Tensor) -> Tensor:
        time.sleep(2 * MS)
        x = self.embedding(tokens)
        time.sleep(1 * MS)
        x = checkpoint(self.blocks, x, use_reentrant=False) * self.own
        self.unread(x)
        return self.head(self.attention(x, x, x)[0])


def captured(module: nn.Module, call: Callable[..., Tensor], *inputs: Tensor, settings: Any = SETTINGS) -> Workload:
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    with Capture(module, settings=settings) as capture:
        while not capture.done:
            with torch.no_grad():
                call(*inputs)
            call(*inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            capture.step()
    assert capture.workload is not None
    return capture.workload


@pytest.mark.usefixtures("host_time")
def test_each_parameter_is_needed_when_the_module_that_owns_it_is_first_called() -> None:
    net, tokens = Net(), torch.randint(9, (2, 5))
    workload = captured(net, net, tokens)
    names = [parameter.name for parameter in workload.parameters]
    assert workload.forward_use_s is not None
    assert workload.forward_use_s.host_s.tolist() == pytest.approx(workload.forward_use_s.device_s, nan_ok=True)
    use = dict(zip(names, workload.forward_use_s.host_s.tolist(), strict=True))
    slept = {
        "own": 0, "head.weight": 2, "blocks.0.inner.weight": 3, "blocks.0.inner.bias": 3, "blocks.1.inner.weight": 6,
        "blocks.2.inner.bias": 9, "unread.weight": 12, "attention.in_proj_weight": 12, "attention.out_proj.bias": 12,
    }  # fmt: skip
    assert {name: use[name] for name in slept} == pytest.approx({name: ms * MS for name, ms in slept.items()}, abs=1e-4)
    assert [name for name in names if np.isnan(use[name])] == ["alone", "never.weight", "never.bias"]
    told = "; 2 of 16 parameters are of modules that are not called themselves: the call of the next one around them"
    assert told in str(workload.provenance["forward_use"])


def test_hooks_of_others_see_the_same_moments() -> None:
    model = build("mlp", "cpu")
    batch = model.make_batch(16, "cpu")
    seen: dict[nn.Module, list[float]] = defaultdict(list)
    owners = [module for module in model.module.modules() if list(module.parameters(recurse=False))]
    for module in (model.module, *owners):
        module.register_forward_pre_hook(lambda each, _: seen[each].append(time.perf_counter()))
    workload = captured(
        model.module, model.module, *batch.inputs, settings=CaptureSettings(iterations=5, warm_up=1, threads=1)
    )
    # Every other forward is without gradients; the first of the others is the warm-up.
    moments = {module: np.array(times[1::2][1:]) for module, times in seen.items()}
    since = [np.median(moments[module] - moments[model.module]) for module in owners for _ in module.parameters()]
    assert workload.forward_use_s is not None
    found = workload.forward_use_s.host_s
    # Between two hooks of one module are the other's look at the clock, and the machine's pauses at worst: none is
    # as long as the layer before.
    steps = np.diff(np.unique(since))
    assert np.abs(found - since).max() < steps.min() / 2
    assert np.all(np.diff(found) >= 0)


def test_nothing_stays_behind_and_the_file_holds_it(tmp_path: Any) -> None:
    net, tokens = Net(), torch.randint(9, (2, 5))
    with Capture(net, tmp_path / "w.json", settings=SETTINGS) as capture:
        while not capture.done:
            net(tokens).sum().backward()
            capture.step()
    assert capture.workload is not None
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert load_workload(tmp_path / "w.json").forward_use_s == capture.workload.forward_use_s


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_part_is_needed_when_it_is_called_and_keeps_its_one_graph() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net = nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(4, 4))
    run = torch.compile(inner, backend="eager", fullgraph=True)

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net[2](run(self.net[0](x)))

    module = Partly()
    workload = captured(module, module, torch.ones(3, 4))
    assert workload.forward_use_s is not None
    host_s = workload.forward_use_s.host_s
    assert host_s[:2].max() > 0
    assert host_s[2:6].tolist() == [0.0] * 4, "what is around them is the module itself"
    assert host_s[6] > host_s[0]
    assert "; 4 of 8 parameters" in str(workload.provenance["forward_use"])


@pytest.mark.usefixtures("fresh_compiler")
def test_where_no_call_is_seen_it_is_not_known() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.layer.weight, self.layer.bias)

    module = Functional()
    workload = captured(module, module, torch.ones(2, 3))
    assert not workload.forward_use_known
    assert "not known: no call of a module" in str(workload.provenance["forward_use"])
    assert captured(module.layer, module.layer, torch.ones(2, 3)).forward_use_known


@pytest.mark.usefixtures("host_time")
def test_on_a_gpu_calls_are_stamped_in_iterations_of_their_own_on_both_clocks(gpu: Gpu) -> None:
    layers = [nn.Linear(3, 3) for _ in range(3)]
    module = nn.Sequential(*layers)
    for number, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, seconds=(1 + number) * MS: busy(seconds))
    recorder = Recorder(module)
    recorder.device = CUDA
    recorder.install()

    def iteration() -> None:
        module(torch.ones(1, 3)).sum().backward()
        recorder.end_iteration()

    for _ in range(2):
        iteration()
        assert not any(layer._forward_pre_hooks for layer in layers)
    recorder.start_calls()
    for _ in range(CALL_ITERATIONS):
        iteration()
    recorder.remove()
    assert gpu.waits == []
    torch.cuda.synchronize()
    use = recorder.times(0, 2)[0]["forward_use_s"]
    assert use is not None
    assert use.device_s == pytest.approx([0, 0, MS, MS, 3 * MS, 3 * MS], abs=0.05 * MS)
    assert (use.host_s < 1 * MS).all()
    assert not any(layer._forward_pre_hooks for layer in layers)
