"""Traces that torch's own profiler writes, imported."""

import json
import time

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from ddpsim.workload.kineto import import_trace  # noqa: E402

LAYERS, SLEEP_S = 4, 0.01


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLEEP_S)
        return gradient.clone()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4 + i, bias=False) for i in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = Slow.apply(layer(x)[..., :4])
        return x


def traced(path, **options):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        for _ in range(3):
            net(torch.ones(7, 4)).sum().backward()
            time.sleep(SLEEP_S / 2)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return net


def test_a_cpu_trace_with_shapes_needs_no_workload(tmp_path):
    net = traced(tmp_path / "trace.json", record_shapes=True)
    workload = import_trace(tmp_path / "trace.json").workload
    assert workload.device == "cpu"
    assert [p.shape for p in workload.parameters] == [tuple(p.shape) for p in net.parameters()]
    assert workload.arrival_order() == [3, 2, 1, 0]
    # A sleep stands before each gradient.
    assert workload.iterations >= 2
    for layer in range(LAYERS):
        assert (workload.gradient_hook_s[:, layer] >= (LAYERS - layer) * SLEEP_S).all()
    assert (workload.gradient_hook_s == workload.gradient_ready_s).all()
    assert (workload.backward.host_s >= LAYERS * SLEEP_S).all()
    # What the loop does between backward and optimizer is nobody's.
    assert (workload.optimizer.host_s < workload.backward.host_s).all()


def test_the_import_command(tmp_path, capsys):
    from ddpsim.cli import main

    traced(tmp_path / "trace.json", record_shapes=True)
    with pytest.raises(SystemExit) as end:
        main(["workload", "import", str(tmp_path / "trace.json"), "-o", str(tmp_path / "w.json"), "--json"])
    assert end.value.code == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["parameters"] == LAYERS
    assert "shapes from the trace" in captured.err
    with pytest.raises(SystemExit) as end:
        main(["workload", "import", str(tmp_path / "trace.json")])
    assert json.loads(capsys.readouterr().out)["schema"] == "ddpsim.workload/1"
    traced(tmp_path / "bare.json")
    with pytest.raises(SystemExit) as end:
        main(["workload", "import", str(tmp_path / "bare.json")])
    assert end.value.code == 2
    assert "the trace holds no shapes of gradients; give --shapes W" in capsys.readouterr().err
