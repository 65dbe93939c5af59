"""Step time of our DDP against torch's C++ reducer, interleaved in one set of processes, with 95 % intervals.

    python tests/bench/executor.py [--models small,mlp,resnet50,bert-base] [--ranks 1,2] [--blocks 40] [--json FILE]

Both train copies of one model by turns, ours, torch's, none, none, torch's, ours (none: the model alone), each step
after a barrier. A block gives one ratio of ours to torch's; a case's ratio is the geometric mean over blocks, its
interval Student's t over their logarithms. Beside it stand microseconds a parameter over the model alone.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from ddpexec.ddp import DistributedDataParallel
from ddpexec.models import build
from tests.exec import ranks

ARMS = ("ddpexec", "torch", "none")
BATCH = {"mlp": 16, "resnet50": 1, "bert-base": 1, "small": 8}
T_95 = {9: 2.262, 19: 2.093, 39: 2.023, 79: 1.990}


@dataclass(frozen=True)
class Case:
    model: str
    world_size: int
    view: bool
    cap_mb: float | None

    @property
    def options(self) -> dict[str, Any]:
        cap = {} if self.cap_mb is None else {"bucket_cap_mb": self.cap_mb}
        return {"gradient_as_bucket_view": self.view, **cap}


@dataclass(frozen=True)
class Result:
    case: Case
    ratio: float
    low: float
    high: float
    ours_s: float
    torch_s: float
    none_s: float
    parameters: int
    buckets: int


class Small(nn.Module):
    """Two thousand parameters of 64 numbers, in twenty calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(64) * 0.1 + 1) for _ in range(2000))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def parts(name: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Return a module and the loss of one forward of it, or of its wrapper."""
    torch.manual_seed(0)
    if name == "small":
        x = torch.randn(BATCH[name], 64)
        return Small(), lambda module: module(x).sum()
    model = build(name)
    batch = model.make_batch(BATCH[name], generator=torch.Generator().manual_seed(dist.get_rank()))
    return model.module, lambda module: model.loss(module(*batch.inputs), batch)


def measure(rank: int, case: Case, blocks: int) -> tuple[dict[str, list[float]], int, int]:
    """Return the step times of each arm, by twos a block, and the numbers of parameters and buckets."""
    warnings.simplefilter("ignore")
    module, loss = parts(case.model)
    nets = {arm: copy.deepcopy(module) for arm in ARMS}
    wrapped: dict[str, nn.Module] = {
        "ddpexec": DistributedDataParallel(nets["ddpexec"], **case.options),
        "torch": nn.parallel.DistributedDataParallel(nets["torch"], **case.options),
        "none": nets["none"],
    }
    optimizers = {arm: torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9) for arm, net in nets.items()}

    def step(arm: str) -> float:
        dist.barrier()
        begin = time.perf_counter()
        loss(wrapped[arm]).backward()
        optimizers[arm].step()
        optimizers[arm].zero_grad()
        return time.perf_counter() - begin

    gc.disable()
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for block in range(-3, blocks):
        for arm in (*ARMS, *reversed(ARMS)):
            seconds = step(arm)
            if block >= 0:
                times[arm].append(seconds)
        gc.collect()
    return times, len(list(module.parameters())), len(wrapped["ddpexec"].reducer.buckets)


def result(case: Case, blocks: int) -> Result:
    """Run one case on its own ranks; a step takes as long as its slowest rank."""
    measured = ranks.run(case.world_size, measure, case, blocks, timeout_s=3000, group_timeout_s=300)
    slowest = {arm: [max(rank) for rank in zip(*(m[0][arm] for m in measured), strict=True)] for arm in ARMS}
    mine, theirs = slowest["ddpexec"], slowest["torch"]
    logs = [math.log((mine[i] + mine[i + 1]) / (theirs[i] + theirs[i + 1])) for i in range(0, len(mine), 2)]
    mean, half = interval(logs)
    middle = {arm: statistics.median(times) for arm, times in slowest.items()}
    ratio, low, high = (math.exp(value) for value in (mean, mean - half, mean + half))
    return Result(case, ratio, low, high, middle["ddpexec"], middle["torch"], middle["none"], *measured[0][1:])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval."""
    freedom = len(values) - 1
    factor = T_95[max(known for known in T_95 if known <= freedom)] if freedom >= 9 else 2.5
    return statistics.fmean(values), factor * statistics.stdev(values) / math.sqrt(len(values))


def cases(models: Sequence[str], world_sizes: Sequence[int]) -> Iterator[Case]:
    """Yield every case: models, ranks, copy and view, default and 5 MiB buckets; small parameters one a bucket too."""
    for model in models:
        for world_size in world_sizes:
            for view in (False, True):
                for cap in (None, 5.0, 0.0) if model == "small" else (None, 5.0):
                    yield Case(model, world_size, view, cap)


def show(found: Result) -> str:
    """Return one line for a result."""
    case = found.case
    kind = f"{case.model:9} {case.world_size} ranks {'view' if case.view else 'copy'} {_cap(case):>7}"
    ratio = f"{found.ratio:.4f} [{found.low:.4f}, {found.high:.4f}]"
    each = [(seconds - found.none_s) / found.parameters * 1e6 for seconds in (found.ours_s, found.torch_s)]
    times = f"{found.ours_s * 1e3:8.2f} {found.torch_s * 1e3:8.2f} {found.none_s * 1e3:8.2f} ms"
    return f"{kind}  {ratio}  {times}  {each[0]:7.2f} {each[1]:7.2f} us a parameter, {found.buckets} buckets"


def _cap(case: Case) -> str:
    return "default" if case.cap_mb is None else str(case.cap_mb)


def a_bucket(found: Sequence[Result]) -> Iterator[str]:
    """Yield what a bucket costs: 2,000 of them against one, for the same parameters."""
    by_case = {result.case: result for result in found}
    for case, many in by_case.items():
        few = by_case.get(replace(case, cap_mb=None))
        if case.cap_mb == 0 and few is not None:
            each = [(many.ours_s - few.ours_s), (many.torch_s - few.torch_s)]
            ours, theirs = (seconds / (many.buckets - few.buckets) * 1e6 for seconds in each)
            kind = f"{case.world_size} ranks {'view' if case.view else 'copy'}"
            yield f"{kind}: {ours:.2f} us a bucket, torch's {theirs:.2f}"


def main() -> None:
    """Print each case as it is done, and the geometric mean at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="small,mlp,resnet50,bert-base")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--blocks", type=int, default=40, help="of two steps of each arm")
    parser.add_argument("--only", help="words that a case's line must hold, e.g. 'view 5.0'")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print("case  ours / torch's [95 %]  ours, torch's, none  over none")
    found = []
    for case in cases(arguments.models.split(","), [int(size) for size in arguments.ranks.split(",")]):
        words = f"{'view' if case.view else 'copy'} {_cap(case)}"
        if arguments.only is None or arguments.only == words:
            found.append(result(case, arguments.blocks))
            print(show(found[-1]), flush=True)
    for line in a_bucket(found):
        print(line)
    judged = [r for r in found if r.case.world_size <= 2]
    mean, half = interval([math.log(r.ratio) for r in judged]) if len(judged) > 1 else (math.log(judged[0].ratio), 0.0)
    print(f"geometric mean {math.exp(mean):.4f} [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}]")
    worst = max(judged, key=lambda r: r.low)
    print(f"highest lower end {worst.low:.4f}: {show(worst)}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(r) for r in found], indent=1))


if __name__ == "__main__":
    main()
