"""What training with our DDP keeps on a GPU, beside torch's: live tensors, and the most there were at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.ddpexec.ddp.test_memory import live_bytes
from tests.gpu.places import Place
from tests.gpu.training import Training

OPTIONS: tuple[dict[str, Any], ...] = (
    {"gradient_as_bucket_view": False},
    {"gradient_as_bucket_view": True},
    {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    {"gradient_as_bucket_view": False, "static_graph": True},
)


@dataclass(frozen=True)
class Meter:
    """Counts a device's bytes in live tensors, now and at most since `reset`; a CPU's C++ buckets are not seen."""

    live: Callable[[], int]
    most: Callable[[], int]
    reset: Callable[[], object]


def meter(device: torch.device) -> Meter:
    if device.type == "cpu":
        return Meter(live_bytes, live_bytes, gc.collect)
    return Meter(torch.cuda.memory_allocated, torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)


def kept(kind: str, device: torch.device, options: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that training adds, after three steps and at most in a fourth."""
    count = meter(device)
    gc.collect()
    before = count.live()
    training = Training(kind, device, 0, options)
    for _ in range(3):
        training.step()
    count.reset()
    training.step()
    return count.live() - before, count.most() - before


def compared(rank: int, device: torch.device) -> list[tuple[dict[str, Any], tuple[int, int], tuple[int, int]]]:
    kept("none", device, {})  # what CUDA's libraries keep for themselves comes with the first use
    return [(options, kept("ddpexec", device, options), kept("torch", device, options)) for options in OPTIONS]


def test_live_bytes_and_their_peak_are_within_two_percent_of_torchs(place: Place) -> None:
    for options, ours, theirs in place.run(compared)[0]:
        if place.device == "cuda" or options["gradient_as_bucket_view"]:
            assert ours == pytest.approx(theirs, rel=0.02), options
