"""Traces that torch's own profiler writes, imported."""

import json
import time

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ddpexec.capturing.estimate import estimate_module
from ddpsim.workload.kineto.workload import import_trace
from tests.ddpexec.capturing.own_steps import SLEEP_S, SLEEPERS, Sleeping
from tests.ddpexec.groups import ranks


def traced(path, **options):
    torch.manual_seed(0)
    net = Sleeping()
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
    result = import_trace(tmp_path / "trace.json")
    workload = result.workload
    assert any("shapes from the trace" in note for note in result.notes)
    assert workload.device == "cpu"
    assert [p.shape for p in workload.parameters] == [tuple(p.shape) for p in net.parameters()]
    assert workload.arrival_order() == [3, 2, 1, 0]
    # A sleep stands before each gradient.
    assert workload.iterations >= 2
    for layer in range(SLEEPERS):
        assert (workload.gradient_hook_s[:, layer] >= (SLEEPERS - layer) * SLEEP_S).all()
    assert (workload.gradient_hook_s == workload.gradient_ready_s).all()
    assert (workload.backward.host_s >= SLEEPERS * SLEEP_S).all()
    # What the loop does between backward and optimizer is nobody's.
    assert workload.optimizer.host_s.min() < workload.backward.host_s.max()


LATE_S = 0.08


def ddp_trace(rank, folder):
    """Train under torch's DDP; rank 1 comes late to forward, so that rank 0 waits for it in its last bucket."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(Sleeping(), torch.nn.BatchNorm1d(4))
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1e-4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(4):
            output = ddp(torch.ones(7, 4))
            time.sleep(LATE_S * rank)
            output.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    if rank == 0:
        profiler.export_chrome_trace(f"{folder}/trace.json")


def test_waiting_for_another_rank_is_not_the_models_time(tmp_path):
    ranks.run(2, ddp_trace, str(tmp_path))
    result = import_trace(tmp_path / "trace.json")
    workload = result.workload
    assert any("allreduces" in note for note in result.notes)
    assert len(workload.parameters) == SLEEPERS + 2
    # The trace's own events bound what is the model's: backward ends with its last node, forward begins after the
    # broadcast of buffers; what rank 0 waits for rank 1 comes after the one and in the other.
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events if e.get("ph") == "X"]
    steps = sorted((start, end) for name, start, end in spans if name.startswith("ProfilerStep"))[
        -workload.iterations :
    ]
    for row, (begin, stop) in enumerate(steps):
        inside = [span for span in spans if begin <= span[1] < stop]
        nodes = [span for span in inside if "evaluate_function" in span[0]]
        backward_s = min(start for _, start, _ in nodes)
        forward_s = next(start for name, start, _ in inside if name == "DistributedDataParallel.forward")
        broadcasts = [end - start for name, start, end in inside if name == "c10d::broadcast_"]
        assert (
            SLEEPERS * SLEEP_S <= workload.backward.host_s[row] <= max(end for _, _, end in nodes) - backward_s + 1e-6
        )
        assert workload.forward.host_s[row] <= backward_s - forward_s - sum(broadcasts) + 1e-6
    assert workload.arrival_order()[:2] in ([5, 4], [4, 5])


class Reader(torch.nn.Module):
    """Its output is tied to the embedding, and every layer's call is marked in the trace."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Conv1d(5, 5, 1), torch.nn.Linear(4, 4)]
        )
        self.embedding = torch.nn.Embedding(9, 4)
        self.embedding.weight = self.head.weight
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, tokens):
        with record_function("mark head.weight"):
            x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            with record_function(f"mark layers.{number}"):
                x = layer(x)
            time.sleep(SLEEP_S / 4)
        return self.head(x)


def test_forward_needs_a_parameter_within_the_call_of_its_layer(tmp_path):
    torch.manual_seed(0)
    net, tokens = Reader(), torch.randint(9, (2, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            net(tokens).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    model = estimate_module(net, tokens, "V100")
    result = import_trace(tmp_path / "trace.json", model)
    assert any("known by the sequence numbers" in note for note in result.notes)
    marks = {}
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        if event.get("ph") == "X" and event["name"].startswith("mark "):
            marks.setdefault(event["name"][5:], []).append((event["ts"], event["ts"] + event["dur"]))
    spans = {name: np.array(sorted(times)) / 1e6 for name, times in marks.items()}
    use = dict(zip((p.name for p in model.parameters), result.workload.forward_use_s.host_s, strict=True))
    assert [name for name in use if np.isnan(use[name])] == ["unused.weight", "unused.bias"]
    # Counted from the embedding, which is looked up within its mark and is the first to read the tied weight.
    first = spans["head.weight"]
    assert use["head.weight"] == min(seconds for seconds in use.values() if seconds >= 0)
    for name, seconds in use.items():
        if name.startswith("layers"):
            mark = spans[name[: len("layers.0")]]
            assert min(mark[:, 0] - first[:, 1]) <= seconds <= max(mark[:, 1] - first[:, 0]), name
