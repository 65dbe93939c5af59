"""What `ddpexec.trace` costs: `python -m studies.benchmarks.tracing [--every 20] [--pairs 48] [--model timed|NAME]`.

Two ranks of stock DDP train in one set of processes, by turns without and with a trace, ABBA. A block's steps are timed
after its first stamped one; two of them are stamped and a file of two is written, so that all that a long trace does is
in it, and of files, which have fifty otherwise, more than in proportion. `timed` are timed layers: as many gradients
as ResNet-50 has, in a step of 150 ms, whose host waits between two of them, as it does on a GPU: what a stamp takes
there is hidden. A model's name trains that on
its CPU cores, where nothing hides; `host` has as many gradients as `timed` and nothing to compute, so that the
processor time that a trace takes is known well even on a busy machine. The cost is the median over pairs, its bounds
the 95 % interval of that by bootstrap; the exit code is 1 where the upper one is above 0.5 % of the step. Where it is
allowed all threads of both ranks have real-time priority, so that what else the machine does is not in it.
With `--kept` pairs are added to those in a file of JSON lines, and all of them are told of: a machine that is lent for
minutes at a time makes as many as are wanted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import ddpexec
from ddpexec.capturing.models import Batch, TrainingModel, build
from ddpexec.capturing.models.training import as_tensor
from ddpexec.running import replay, timed
from ddpsim.bucketing import Parameter
from ddpsim.workload import Phase, Workload
from tests.ddpexec.groups import ranks

MOST = 0.005
"""Share of the step that a trace may cost."""
GRADIENTS, FORWARD_S, BACKWARD_S, OPTIMIZER_S = 161, 0.045, 0.1, 0.005
RESAMPLES = 5000
STAMPED = 2
"""Steps of a block that are stamped, and written."""


class Host(nn.Module):
    """As many parameters as `layers` has, of 12 kB, each multiplied by once."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(3000)) for _ in range(GRADIENTS))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        value = samples
        for scale in self.scales:
            value = value * scale
        return value


class Optimizer(torch.optim.Optimizer):
    """Timed layers' optimizer as one of torch's, whose hooks tell of its steps."""

    def __init__(self, parameters: list[nn.Parameter], replayed: timed.TimedOptimizer) -> None:
        super().__init__(parameters, {})
        self._replayed = replayed

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Take the recorded time."""
        self._replayed.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the step has."""


def layers(gradients: int = GRADIENTS) -> Workload:
    """Return a step of `gradients` layers of 12 kB, evenly in time."""
    ready_s = BACKWARD_S * np.arange(gradients, 0, -1)[None, :] / gradients
    forward, backward, optimizer = (
        Phase(np.array([seconds]), np.array([seconds])) for seconds in (FORWARD_S, BACKWARD_S, OPTIMIZER_S)
    )
    return Workload(
        name=f"layers{gradients}", device="cpu", precision="fp32", batch_size=1, threads=1, estimated=True,
        parameters=tuple(Parameter(f"layer{place}.weight", (3000,)) for place in range(gradients)),
        buffers=(), forward=forward, backward=backward, optimizer=optimizer,
        gradient_hook_s=ready_s, gradient_ready_s=ready_s,
    )  # fmt: skip


def training(name: str, rank: int) -> Callable[[], None]:
    """Return a step of stock DDP."""
    torch.manual_seed(rank)
    if name == "timed":
        replay = timed.make_timed_model(layers(), rank=rank)
        model = replay.model
        optimizer: Any = Optimizer(list(model.module.parameters()), replay.optimizer)
    elif name == "host":
        model = TrainingModel("host", Host(), 1, "nothing", _ones, lambda output, _: as_tensor(output).sum())
        optimizer = torch.optim.SGD(model.module.parameters(), lr=1e-9)
    else:
        model = build(name, torch.device("cpu"))
        optimizer = model.make_optimizer()
    ddp = nn.parallel.DistributedDataParallel(model.module, bucket_cap_mb=0.25 if name in ("timed", "host") else None)
    batch = model.make_batch(1, torch.device("cpu"), torch.Generator().manual_seed(rank))

    def step() -> None:
        model.loss(ddp(*batch.inputs), batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


Pair = tuple[tuple[float, float], tuple[float, float]]
"""Of a block without and one with a trace: mean seconds, and mean processor seconds of all threads, of a step."""


def _ones(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
    return Batch((torch.ones(3000, device=device),), ())


def measure(rank: int, name: str, every: int, pairs: int, folder: str) -> list[Pair]:
    """Return what each pair of blocks took."""
    mock.patch.object(replay, "keep_time").start()  # all threads keep their priority
    step, steps = training(name, rank), STAMPED * every

    def block(number: int, traced: bool) -> tuple[float, float]:
        options = {"every": every, "warm_up": 1, "steps_per_file": STAMPED, "interval": steps}
        where = f"{folder}/{number}"
        with ddpexec.trace(where, **options) if traced else nullcontext():
            for _ in range(every + 1):  # the first stamped step is among them, and what is done once for all
                step()
            torch.distributed.barrier()
            begin, busy = time.perf_counter(), time.process_time()
            for _ in range(steps):  # the start of one writes a file
                step()
            return (time.perf_counter() - begin) / steps, (time.process_time() - busy) / steps

    for _ in range(5):
        step()
    found: list[Pair] = []
    for pair in range(pairs):
        order = (False, True) if pair % 2 == 0 else (True, False)
        times = {traced: block(pair, traced) for traced in order}
        found.append((times[False], times[True]))
        if rank == 0:
            more = times[True][0] / times[False][0] - 1
            print(f"pair {pair + 1} of {pairs}: {more:+.3%}", file=sys.stderr, flush=True)
    return found


def cost(shares: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of what pairs tell, and its 95 % interval."""
    given = np.array(shares)
    drawn = np.median(np.random.default_rng(0).choice(given, (RESAMPLES, len(given))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(given)), float(low), float(high)


def added(pairs: Sequence[Pair], kept: Path, name: str, every: int) -> list[Pair]:
    """Add pairs to a file, and return all pairs of the same model and number in it."""
    with open(kept, "a") as file:
        for plain, traced in pairs:
            file.write(json.dumps({"model": name, "every": every, "plain": plain, "traced": traced}) + "\n")
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    asked = [row for row in rows if (row["model"], row["every"]) == (name, every)]
    return [((row["plain"][0], row["plain"][1]), (row["traced"][0], row["traced"][1])) for row in asked]


def main() -> None:
    """Print the cost beside its bound; exit with 1 where the upper end of its interval exceeds it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--model", default="timed")
    parser.add_argument("--kept", type=Path, help="pairs of earlier calls, to which those of this one are added")
    arguments = parser.parse_args()
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with tempfile.TemporaryDirectory() as folder:
        words = arguments.model, arguments.every, arguments.pairs, folder
        by_rank = ranks.run_own(2, measure, *words, timeout_s=3000, group_timeout_s=120)
        files = len(list(Path(folder).rglob("rank0.json.gz")))
    pairs = [max(each, key=lambda pair: pair[1][0]) for each in zip(*by_rank, strict=True)]
    if arguments.kept is not None:
        pairs = added(pairs, arguments.kept, arguments.model, arguments.every)
    busy, *around = (each * 1e3 for each in cost([traced[1] - plain[1] for plain, traced in pairs]))
    middle, low, high = cost([traced[0] / plain[0] - 1 for plain, traced in pairs])
    step_ms = float(np.median([plain[0] for plain, _ in pairs])) * 1e3
    print(f"{arguments.model}, every={arguments.every}: {len(pairs)} pairs, {files} files, a step of {step_ms:.1f} ms")
    print(f"processor time of all threads {busy:+.3f} ms, 95 % interval {around[0]:+.3f} to {around[1]:+.3f} ms")
    print(f"a trace costs {middle:+.3%} of it, 95 % interval {low:+.3%} to {high:+.3%} (at most {MOST:.1%})")
    sys.exit(high > MOST)


if __name__ == "__main__":
    main()
