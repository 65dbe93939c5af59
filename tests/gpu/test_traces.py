"""What `ddpexec run` and `capture` leave on a GPU: timed layers at their pace, and both clocks of host and device."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch

from ddpexec.capturing.capture import CaptureSettings, capture_model
from ddpsim.trace.json import read_trace
from ddpsim.trace.records import BACKWARD, COMPUTE, Iteration, Trace
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload, save_workload
from ddpsim.workload.replayed import single_clock
from tests.ddpexec.small import small_workload
from tests.gpu.places import CPU, GPU, Place

MS = 1e-3
TOLERANCE_S, TOLERANCE_SHARE = 0.2 * MS, 0.01
CPU_TOLERANCE_S = 5 * MS
"""Where other processes take the cores."""


def replayed(place: Place, workload: str, out: Path, *options: object) -> Trace:
    """Run a workload's timed layers on one rank and return the trace."""
    place.ddpexec("run", "--workload", workload, "--iterations", 10, "--out", out, *options)
    return read_trace(out)


def backward_start_s(trace: Trace, iteration: Iteration) -> float:
    """Return when the device began an iteration's backward."""
    spans = (span for span in trace.spans if span.name == BACKWARD and span.stream == COMPUTE)
    return next(span.start_s for span in spans if iteration.start_s <= span.start_s <= iteration.end_s)


def ready_s(trace: Trace) -> dict[int, float]:
    """Return each gradient's median time from the start of backward, on the device."""
    times: dict[int, list[float]] = {}
    for iteration in trace.iterations:
        begin = backward_start_s(trace, iteration)
        for gradient in iteration.gradients:
            times.setdefault(gradient.parameter, []).append(gradient.ready_s - begin)
    return {parameter: median(found) for parameter, found in times.items()}


def check_pace(workload: Workload, trace: Trace, tolerance_s: float = TOLERANCE_S) -> None:
    ready = ready_s(trace)
    assert sorted(ready) == list(range(len(workload.parameters)))
    times = single_clock(workload, 1.0).gradient_ready_s
    recorded = {parameter: median(times[:, parameter]) for parameter in ready}
    errors = {parameter: ready[parameter] - recorded[parameter] for parameter in ready}
    off = [p for p, error in errors.items() if abs(error) > max(tolerance_s, TOLERANCE_SHARE * recorded[p])]
    worst = max(errors, key=lambda parameter: abs(errors[parameter]))
    told = f"{len(off)} of {len(ready)} gradients are off; the worst, {worst}, by {errors[worst] / MS:.3f} ms"
    assert not off, f"{told} at {recorded[worst] / MS:.3f} ms"


def test_timed_layers_keep_their_pace(place: Place, tmp_path: Path) -> None:
    workload = small_workload(step_s=4 * MS)
    save_workload(workload, tmp_path / "small.json")
    trace = replayed(place, str(tmp_path / "small.json"), tmp_path / "run")
    check_pace(workload, trace, CPU_TOLERANCE_S if place == CPU else TOLERANCE_S)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["resnet50", "bert-base"])
def test_a_network_of_timed_layers_keeps_its_pace(name: str, tmp_path: Path) -> None:
    check_pace(load_workload(name), replayed(GPU, name, tmp_path / "run"))


@pytest.mark.parametrize("implementation", ["ddpexec", "torch"])
def test_traces_have_both_clocks(place: Place, implementation: str, tmp_path: Path) -> None:
    save_workload(small_workload(step_s=4 * MS), tmp_path / "small.json")
    trace = replayed(place, str(tmp_path / "small.json"), tmp_path / "run", "--impl", implementation)
    assert len(trace.iterations) == 10
    for iteration in trace.iterations:
        assert len(iteration.gradients) == 6
        assert [len(bucket.parameters) for bucket in iteration.buckets] == [6]
        for gradient in iteration.gradients:
            assert gradient.hook_s < gradient.ready_s or (place == CPU and gradient.hook_s == gradient.ready_s)
        for bucket in iteration.buckets:
            assert bucket.ready_s <= bucket.started_s <= bucket.finished_s <= bucket.written_s
            assert bucket.launched_s < bucket.ready_s or place == CPU


def captured(rank: int, device: torch.device) -> Workload:
    return capture_model("mlp", CaptureSettings(iterations=5), batch_size=64, device=str(device))


def test_a_capture_has_both_clocks(place: Place) -> None:
    workload = place.run(captured)[0]
    phases = (workload.forward, workload.backward, workload.optimizer)
    assert all((phase.device_s > 0).all() for phase in phases)
    assert np.isfinite(workload.gradient_ready_s).all()
    assert (workload.device == "cpu") == (place == CPU)
    for phase in phases:
        assert np.array_equal(phase.host_s, phase.device_s) == (place == CPU)
    assert np.array_equal(workload.gradient_hook_s, workload.gradient_ready_s) == (place == CPU)
