"""What a rebuild of buckets costs the host: `python -m studies.benchmarks.rebuild [--model resnet152]`.

By turns the buckets of a model's parameters in registration order and in the reverse of it, caps 1 and 25 MiB: the
plan, then its buckets. Medians by the thread's own clock, which waits for nobody, and by the wall's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from ddpexec.capturing.models import build
from ddpexec.ddp.buckets import Buckets, ReducerOptions
from ddpexec.ddp.parameters import collect
from ddpsim.bucketing import BucketCaps, rebuilt_plan

REPEATS = 40


def taken_ms(task: Callable[[], object]) -> tuple[float, float]:
    """Return what `task` takes by the thread's clock and by the wall's."""
    thread, wall = time.thread_time(), time.perf_counter()
    task()
    return (time.thread_time() - thread) * 1e3, (time.perf_counter() - wall) * 1e3


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet152")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, caps = collect(build(arguments.model, torch.device("cpu")).module), BucketCaps()
    orders = list(range(len(model.policy))), list(range(len(model.policy)))[::-1]
    for kind in ("copies", "views"):
        buckets = Buckets(model, ReducerOptions(caps=caps, gradient_as_bucket_view=kind == "views"), 0)
        plans, installs = [], []
        for number in range(REPEATS):
            assign = partial(rebuilt_plan, model.policy, caps, orders[number % 2])
            plans.append(taken_ms(assign))
            installs.append(taken_ms(partial(buckets.install, assign())))
        for what, times in (("plan", plans[2:]), ("buckets", installs[2:])):
            thread, wall = (statistics.median(each) for each in zip(*times, strict=True))
            print(f"{arguments.model}, {kind:6}  {what:8}{thread:8.2f} ms thread{wall:8.2f} ms wall")


if __name__ == "__main__":
    main()
