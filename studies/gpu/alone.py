"""A model's step without DDP, and its backward beside copies on the same device: one JSON document.

    python -m studies.gpu.alone --model resnet50 --batch-size 32 --device cuda [--iterations 50] [--copies]

The device is waited for only where a stretch of steps ends, so that a host that runs ahead may.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ddpexec.capturing.capture import training_step
from ddpexec.capturing.models import build
from ddpexec.microbench.under_load import computation_of
from ddpexec.timing.stopwatch import seconds_of
from ddpsim.workload.files import load_workload

WARM_UP, STRETCHES = 5, 5
COPY_BYTES = {"cuda": 256 << 20, "cpu": 8 << 20}
COPIES = 8
"""Queued at a time, so that the thread that queues them hardly runs."""


def step_s(model: str, size: int, device: torch.device, iterations: int) -> float:
    """Return the period of a training step, the median over stretches."""
    step = training_step(build(model, device), size, device)
    for _ in range(WARM_UP):
        step()
    count = max(1, iterations // STRETCHES)

    def stretch() -> None:
        for _ in range(count):
            step()

    found = []
    for number in range(STRETCHES):
        found.append(seconds_of(stretch, device) / count)
        say(f"steps {number * count + count} of {count * STRETCHES}, {found[-1] * 1e3:.2f} ms")
    return statistics.median(found)


class Copies:
    """A thread that copies memory of a device to other memory of it, a few copies in flight."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._from, self._to = (torch.ones(COPY_BYTES[device.type] // 4, device=device) for _ in range(2))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._over = threading.Event()
        self._speeds: list[float] = []

    def speed(self, beside: Callable[[], object]) -> float:
        """Return the median bytes a second copied while `beside` runs."""
        self._over.clear()
        self._speeds = []
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            beside()
        finally:
            self._over.set()
            thread.join()
        return statistics.median(self._speeds)

    def _run(self) -> None:
        with torch.cuda.stream(self._stream):
            while not self._over.is_set():
                self._speeds.append(COPIES * self._from.nbytes / seconds_of(self._some, self._device))

    def _some(self) -> None:
        for _ in range(COPIES):
            self._to.copy_(self._from, non_blocking=True)


def beside_copies(model: str, size: int, device: torch.device, iterations: int) -> dict[str, float]:
    """Return how forward and backward and copies slow each other, each first alone."""
    compute = computation_of(replace(load_workload(model), batch_size=size), device)

    def median_s() -> float:
        return statistics.median(seconds_of(compute, device) for _ in range(iterations))

    for _ in range(WARM_UP):
        compute()
    say("forward and backward alone")
    alone_s = median_s()
    copies = Copies(device)
    say("copies alone")
    alone_Bps = copies.speed(lambda: time.sleep(1.0))  # noqa: N806
    say("both")
    times: list[float] = []
    beside_Bps = copies.speed(lambda: times.append(median_s()))  # noqa: N806
    return {
        "compute_s": alone_s,
        "compute_beside_s": times[0],
        "compute_slowdown": times[0] / alone_s,
        "copied_Bps": alone_Bps,
        "copied_beside_Bps": beside_Bps,
        "copy_slowdown": alone_Bps / beside_Bps,
    }


def say(line: str) -> None:
    print(f"alone: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure what was asked for and print it."""
    given = parsed()
    device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
    what = (given.model, given.batch_size, device, given.iterations)
    print(json.dumps(beside_copies(*what) if given.copies else {"step_s": step_s(*what)}, indent=2))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--copies", action="store_true", help="measure beside copies instead of whole steps")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
