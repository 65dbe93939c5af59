"""Step time of our DDP against torch's C++ reducer, interleaved in one set of processes, with 95 % intervals.

    python -m studies.benchmarks.executor [--device cpu|cuda] [--case 'mlp-*'] [--ranks 1,2] [--launches 4]
                                   [--blocks 10] [-o FILE] [--stop 150s]

A case is MODEL-RANKS-copy|view-default|5MiB; `small` (2,000 parameters) also has `each`, one gradient a bucket. Ours,
torch's and the model alone train copies of one model by turns, in an order drawn for each block and then its reverse,
each step after a barrier. A case is launched several times, the copies made in another order each time, because where
its tensors come to lie makes a copy of the model faster or slower by some percent for as long as the process lives.

Memory once allocated stays with the process (`--allocator default`: as glibc has it). Otherwise whether freed gradients
go back to the kernel, to be zeroed page by page when they come again, depends on which of the copies lies last in the
heap: 0 or 10,000 page faults a step for the same code, ours or torch's, 30 % of an MLP's step.

On a GPU one rank has it for itself, over NCCL, and is judged; several share it over gloo, and are reported. A step
there lasts until the device has done it. `small` is bound by its host, the others by the device.

With `-o` the measurements are kept, and another call goes on where the last one ended. `--stop` ends it in time.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import fnmatch
import gc
import itertools
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from ddpexec.capturing.models import build
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.common.units import parse_time
from studies.benchmarks.ratios import ARMS, HEADER, Blocks, Measured, Results, line, summary
from tests.ddpexec.groups import ranks

BATCH = {
    "cpu": {"mlp": 16, "resnet50": 1, "bert-base": 1, "small": 8},
    "cuda": {"mlp": 64, "resnet50": 32, "bert-base": 16, "small": 8},
}
MODELS = tuple(BATCH["cpu"])
CAPS = {"default": None, "5MiB": 5.0, "each": 0.0}
WARM_UP = 2
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


@dataclass(frozen=True)
class Case:
    model: str
    world_size: int
    kind: str
    cap: str

    def __str__(self) -> str:
        return f"{self.model}-{self.world_size}-{self.kind}-{self.cap}"

    @property
    def options(self) -> dict[str, Any]:
        cap = {} if CAPS[self.cap] is None else {"bucket_cap_mb": CAPS[self.cap]}
        return {"gradient_as_bucket_view": self.kind == "view", **cap}


class Small(nn.Module):
    """Two thousand parameters of 64 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(64) * 0.1 + 1) for _ in range(2000))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def parts(name: str, device: torch.device) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Return a module and the loss of one forward of it, or of its wrapper."""
    torch.manual_seed(0)
    size = BATCH[device.type][name]
    if name == "small":
        x = torch.randn(size, 64, device=device)
        return Small().to(device), lambda module: module(x).sum()
    model = build(name, device)
    batch = model.make_batch(size, device, torch.Generator(device).manual_seed(dist.get_rank()))
    return model.module, lambda module: model.loss(module(*batch.inputs), batch)


def hold_memory() -> None:
    """Let this process keep what it frees, where the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_TOP_PAD, 64 << 20)


def measure(rank: int, case: Case, device: str, blocks: int, seed: int, hold: bool) -> tuple[int, int, list[Blocks]]:
    """Return the numbers of parameters and buckets, and of each block both steps of each arm."""
    warnings.simplefilter("ignore")
    if hold:
        hold_memory()
    order = random.Random(seed)
    place = torch.device(device)
    module, loss = parts(case.model, place)
    wrap: dict[str, Callable[[nn.Module], nn.Module]] = {
        "ddpexec": lambda net: DistributedDataParallel(net, **case.options),
        "torch": lambda net: nn.parallel.DistributedDataParallel(net, **case.options),
        "none": lambda net: net,
    }
    nets = {arm: wrap[arm](copy.deepcopy(module)) for arm in order.sample(ARMS, len(ARMS))}
    optimizers = {arm: torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9) for arm, net in nets.items()}

    def step(arm: str) -> float:
        dist.barrier()
        settle(place)
        begin = time.perf_counter()
        loss(nets[arm]).backward()
        optimizers[arm].step()
        optimizers[arm].zero_grad()
        settle(place)
        return time.perf_counter() - begin

    gc.disable()
    times: list[Blocks] = []
    for _ in range(WARM_UP + blocks):
        turns = order.sample(ARMS, len(ARMS))
        taken: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for arm in (*turns, *reversed(turns)):
            taken[arm].append(step(arm))
        times.append([taken[arm] for arm in ARMS])
        gc.collect()
    reducer: Any = nets["ddpexec"].reducer
    return len(list(module.parameters())), len(reducer.buckets), times[WARM_UP:]


def settle(device: torch.device) -> None:
    """Wait until a GPU has done all that is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def processes(device: str, world_size: int) -> dict[str, str]:
    """Return how ranks start and which backend they use."""
    if device == "cpu":
        return {"start": "fork", "backend": "gloo"}
    return {"start": "spawn", "backend": "nccl" if world_size == 1 else "gloo"}


def launch(case: Case, device: str, blocks: int, seed: int, *, hold: bool) -> tuple[int, int, Blocks]:
    """Run one launch of a case on ranks of its own; a step takes as long as its slowest rank."""
    options = {"timeout_s": 600, "group_timeout_s": 300, **processes(device, case.world_size)}
    measured = ranks.run_own(case.world_size, measure, case, device, blocks, seed, hold, **options)
    by_block = zip(*(times for _, _, times in measured), strict=True)
    slowest = [[_slowest(turns) for turns in zip(*block, strict=True)] for block in by_block]
    return measured[0][0], measured[0][1], slowest


def _slowest(turns: tuple[list[float], ...]) -> float:
    return float(sum(map(max, zip(*turns, strict=True))))


def cases(pattern: str, world_sizes: list[int]) -> Iterator[Case]:
    """Yield the cases whose name matches, of these numbers of ranks."""
    for model, world_size, kind, cap in itertools.product(MODELS, world_sizes, ("copy", "view"), CAPS):
        case = Case(model, world_size, kind, cap)
        if (model == "small" or cap != "each") and fnmatch.fnmatchcase(str(case), pattern):
            yield case


def conditions(device: str, allocator: str) -> dict[str, str]:
    """Return what must be alike for measurements to be compared."""
    alike = {"torch": torch.__version__, "allocator": allocator}
    if device == "cpu":
        return alike
    if torch.cuda.device_count() == 0:
        raise SystemExit("--device cuda: torch sees no GPU; use cpu")
    return {**alike, "device": torch.cuda.get_device_name(0)}


def judged(measured: dict[str, Measured], device: str) -> Iterator[str]:
    """Yield what all cases say together; on a GPU those that share it say so apart."""
    if device == "cpu":
        yield from summary(measured)
        return
    alone = {name: case for name, case in measured.items() if "-1-" in name}
    yield from summary(alone)
    if shared := {name: case for name, case in measured.items() if name not in alone}:
        yield "ranks that share the GPU, over gloo:"
        yield from summary(shared)


def main() -> None:
    """Launch what is missing, then print a line for each case and what they say together."""
    arguments = parsed()
    os.environ["OMP_NUM_THREADS"] = "1"
    end = time.monotonic() + arguments.stop
    results = Results(arguments.out, conditions(arguments.device, arguments.allocator))
    wanted = list(cases(arguments.case, [int(size) for size in arguments.ranks.split(",")]))
    missing = 0
    for number, case in itertools.product(range(arguments.launches), wanted):
        name = str(case)
        if results.launches(name) <= number:
            missing += time.monotonic() >= end
            if time.monotonic() < end:
                print(f"bench: {name}, launch {number + 1} of {arguments.launches}", file=sys.stderr, flush=True)
                hold = arguments.allocator == "held"
                results.add(name, *launch(case, arguments.device, arguments.blocks, seed=number, hold=hold))
    measured = {str(case): results.cases[str(case)] for case in wanted if str(case) in results.cases}
    print(HEADER)
    for name, case_measured in measured.items():
        print(line(name, case_measured))
    for text in judged(measured, arguments.device):
        print(text)
    if missing:
        print(f"stopped: {missing} launches left; call again with the same --out")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--case", default="*", help="pattern of the cases' names, e.g. 'mlp-*' or '*-view-5MiB'")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--launches", type=int, default=4, help="of each case")
    parser.add_argument("--blocks", type=int, default=10, help="of each launch: two steps of each arm")
    parser.add_argument("--allocator", choices=("held", "default"), default="held")
    parser.add_argument("--stop", type=parse_time, default=float("inf"), metavar="TIME", help="begin no launch later")
    parser.add_argument("-o", "--out", type=Path, help="where measurements are kept, and taken up again")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
