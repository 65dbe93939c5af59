"""Peaks of memory: estimated beside what a real step allocates on this processor, and beside published ones."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.capturing.estimate import estimate_step
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from tests.ddpexec.capturing import gpt2_steps
from tests.ddpexec.capturing.gpt2_steps import SMALL, Made

pytestmark = pytest.mark.usefixtures("one_rank")

MIB, GIB = 1 << 20, 1 << 30
WITHIN = 0.1


def rows(wrap: Callable[[nn.Module], nn.Module] = lambda module: module) -> Made:
    """Return a perceptron whose activations outweigh its parameters, with momentum."""
    layers = [nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU()) for _ in range(6)]
    return trained(wrap(nn.Sequential(*layers)), torch.randn(4096, 128), torch.optim.SGD, momentum=0.9)


def tokens(wrap: Callable[[nn.Module], nn.Module] = lambda module: module) -> Made:
    """Return a transformer whose optimizer needs more than its activations."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return trained(wrap(net), torch.randn(2, 64, 256), torch.optim.AdamW, foreach=True)


def trained(net: nn.Module, batch: Any, kind: Any, **options: Any) -> Made:
    optimizer = kind(net.parameters(), lr=1e-3, **options)

    def step() -> None:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    return net, step


def measured_bytes(make: Callable[..., Made], view: bool) -> int:
    """Return the most that tensors held at once in a step under torch's DDP, as its profiler saw the allocator."""
    gc.collect()  # what is freed meanwhile would count
    # Without the first broadcast: now and then gloo's thread is the last that holds its copy of all parameters, and
    # what that thread frees the profiler does not see.
    wrap = partial(nn.parallel.DistributedDataParallel, gradient_as_bucket_view=view, init_sync=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        _, step = make(wrap)
        for _ in range(3):
            step()
        with torch.profiler.record_function("counted"):
            step()
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    begin = next(event.start_ns() for event in events if event.name() == "counted")
    held, peak = 0, 0
    for event in events:
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held) if event.start_ns() >= begin else held
    return peak


def estimated_bytes(workload: Workload, *, view: bool = False) -> int:
    memory = predict(Job(workload, load_topology("dgx-h100"), options=Options(gradient_as_bucket_view=view))).memory
    assert memory is not None
    return memory.step_bytes


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("make", [rows, tokens])
def test_a_peak_on_this_processor(make: Callable[..., Made], view: bool) -> None:
    measured = measured_bytes(make, view)
    assert estimated_bytes(estimate_step(make, "H100"), view=view) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.needs("minutes")
def test_the_published_peak_of_gpt2_large_under_ddp() -> None:
    """30.34 GiB, with bf16 autocast: `rtxpro6000_zero_fsdp2_gpt2large.csv` of the measured data."""
    workload = estimate_step(gpt2_steps.large, "RTXPRO6000")
    assert workload.precision == "amp"
    assert estimated_bytes(workload, view=True) == pytest.approx(30.34 * GIB, rel=WITHIN)


@pytest.mark.parametrize(
    ("flash", "mib"), [(True, 2655), pytest.param(False, 3514, marks=pytest.mark.needs("minutes"))]
)
def test_published_peaks_of_gpt2_on_one_gpu(flash: bool, mib: float) -> None:
    workload = estimate_step(partial(gpt2_steps.training, replace(SMALL, flash=flash), 1), "H100")
    without_ddp = estimated_bytes(workload) - workload.gradient_bytes
    assert without_ddp == pytest.approx(mib * MIB, rel=WITHIN)


@pytest.mark.filterwarnings("error")
def test_the_demos_own_model_is_counted_without_real_tensors_or_warnings() -> None:
    notes: list[str] = []
    workload = estimate_step("ddpexec.lab.demo.own_model:make_training", "V100", note=notes.append)
    assert (workload.precision, notes) == ("amp", [])
    memory = predict(Job(workload, load_topology("dgx-1v")), band=False).memory
    assert memory is not None
    assert memory.fits
