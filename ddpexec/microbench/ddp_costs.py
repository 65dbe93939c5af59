"""What DDP costs a rank beside wire time, each part measured apart on this machine, all ranks at once.

The parts are those of the simulation: hook and small copies, launch, copies by byte, the end of a bucket, DDP's share
of forward, buffers, the search for unused parameters. On a CPU caches are cold, as layers' computing leaves them.

Start with `measure_costs`. Copies into buckets and out are timed as a backward and its end make them, alone and during
collectives (`Copies`, `BesideCopies`); small allreduces during others (`measure_crowded`); and what torch's
`fully_shard` takes of a host for each collective beside waiting for it: hooks, views, copies (`measure_units`).
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddpexec.capturing.models.training import sgd
from ddpexec.ddp.flat import FlatBucket
from ddpexec.ddp.fully_sharded import FullySharded
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import Communicator, wait
from ddpexec.microbench.codecs import measure_codecs
from ddpexec.timing.clock import HostClock
from ddpexec.timing.observe import Observer
from ddpexec.timing.stopwatch import (
    Prepare,
    Span,
    agree_on_median,
    allreduces_span,
    chill,
    gather,
    measure_last_to_last,
    median_difference,
    seconds_of,
    span_of,
    time_on_device,
)

CROWDED_BYTES = 16 << 10
"""A message whose bytes take next to nothing."""
CROWDING_BYTES = 16 << 20
"""A message that is still on its way when `BEHIND` small ones beside it have ended."""
IN_FLIGHT = 2
"""Collectives that a process group of gloo keeps in flight (`ProcessGroupGloo.cpp`, two threads)."""
CROWD, BEHIND, ROUNDS = 32, 3, 7
"""Small messages launched at once, and one after the other beside a large one; repetitions. Chosen by hand."""


def measure_crowded(communicator: Communicator, device: torch.device) -> dict[str, float]:
    """Return medians: `pair_s` of a small allreduce among small ones, `behind_s` of one during a large one."""
    small = [torch.zeros(CROWDED_BYTES // 4, device=device) for _ in range(CROWD)]
    large = torch.zeros(CROWDING_BYTES // 4, device=device)

    together, behind = [], []
    for _ in range(ROUNDS):
        communicator.barrier()
        together.append(allreduces_span(communicator, *small))
        communicator.barrier()
        behind += _measure_small_behind_large(communicator, large, small[0])
    pair_s = statistics.median(measure_last_to_last(together, communicator)) * IN_FLIGHT / CROWD
    return {"pair_s": pair_s, "behind_s": statistics.median(measure_last_to_last(behind, communicator))}


def _measure_small_behind_large(communicator: Communicator, large: torch.Tensor, small: torch.Tensor) -> list[Span]:
    """Return the spans of small allreduces, each waited for, while a large one is in flight."""
    work = communicator.all_reduce(large, 0)
    # The first comes before the large one's bytes lie in the links' queues.
    spans = [allreduces_span(communicator, small) for _ in range(1 + BEHIND)][1:]
    wait(work, communicator, "a large allreduce")
    return spans


BUCKETS, BUCKET_PARAMETERS = 4, 12
"""Buckets that are copied into by turns, and gradients in each; chosen by hand."""
BUCKET_BYTES = 25 << 20
"""torch's default bucket; four of them and their gradients are more than caches hold."""

SMALL_BYTES = 64 << 10
"""A message whose time is that of its steps, its bytes next to nothing."""
LARGE_BYTES = 8 << 20
"""A message whose time is that of its bytes."""
_LARGE, _SMALL = 5, 12
"""Repetitions of the large and of the small collective, whose median counts; chosen by hand."""


def make_small_bucket(numel: int, device: torch.device) -> tuple[FlatBucket, list[nn.Parameter]]:
    """Return a bucket of gradients of `numel` elements, and its parameters."""
    parameters = [nn.Parameter(torch.ones(numel, device=device)) for _ in range(BUCKET_PARAMETERS)]
    indices = tuple(range(BUCKET_PARAMETERS))
    bucket = FlatBucket(0, indices, parameters, as_view=False, batched=False)
    bucket.divisor = 2
    return bucket, parameters


class Copies:
    """Default buckets with gradients that lie apart from them.

    Attributes:
        size_bytes: copied by one round trip: every gradient in and out.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        numel = BUCKET_BYTES // 4 // BUCKET_PARAMETERS
        self._buckets = [make_small_bucket(numel, device) for _ in range(BUCKETS)]
        self.size_bytes = 2 * sum(bucket.size_bytes for bucket, _ in self._buckets)
        self._next = 0
        for _, parameters in self._buckets:
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)

    def round_trip(self) -> None:
        """Copy every bucket in, then every bucket out."""
        for bucket, _ in self._buckets:
            for place in range(BUCKET_PARAMETERS):
                bucket.fill(place)
            bucket.complete()
        for bucket, _ in self._buckets:
            bucket.write_back(())

    def speed(self, communicator: Communicator) -> float:
        """Return bytes copied a second where all ranks copy at once, more gradients than caches hold."""
        self.round_trip()
        taken = self._make_timer()
        times = []
        for _ in range(6):
            communicator.barrier()
            times.append(taken())
        return self.size_bytes / statistics.median(times)

    def _make_timer(self) -> Callable[[], float]:
        if self._device.type == "cuda":
            return time_on_device(self.round_trip, self._device)
        return lambda: seconds_of(self.round_trip, self._device)

    def slowdowns(self, communicator: Communicator) -> dict[str, float]:
        """Return by which factors copies and collectives slow each other, one or more each; every rank copies.

        `copy_slowdown` of copies beside a large collective, `communication_slowdown` of that collective, and
        `step_slowdown` of a small one, whose time is that of threads woken from step to step.
        """
        large = [self.measure_beside(communicator, torch.ones(LARGE_BYTES // 4)) for _ in range(_LARGE)]
        small = [self.measure_beside(communicator, torch.ones(SMALL_BYTES // 4)) for _ in range(_SMALL)]
        copies = agree_on_median(statistics.median(each.copy_ratio for each in large), communicator)
        return {
            "copy_slowdown": max(1.0, copies),
            "communication_slowdown": max(1.0, _slowdown(large, communicator)),
            "step_slowdown": max(1.0, _slowdown(small, communicator)),
        }

    def measure_beside(self, communicator: Communicator, tensor: Tensor) -> BesideCopies:
        """Time a collective on `tensor` without copies and during them; every rank calls it."""
        communicator.barrier()
        quiet = allreduces_span(communicator, tensor)
        communicator.barrier()
        start, copies = time.perf_counter(), []
        work = communicator.all_reduce(tensor, 0)
        while not work.is_completed():
            copies.append(self._copy_one())
        busy = start, time.perf_counter()
        communicator.barrier()
        alone = [self._copy_one() for _ in range(max(len(copies), BUCKET_PARAMETERS))]
        # The collective may have ended during the last copy.
        during = copies[:-1] or copies or alone
        return BesideCopies(quiet, busy, statistics.fmean(during) / statistics.fmean(alone))

    def _copy_one(self) -> float:
        """Copy the next gradient in; return the seconds."""
        self._next = (self._next + 1) % (BUCKETS * BUCKET_PARAMETERS)
        number, place = divmod(self._next, BUCKET_PARAMETERS)
        start = time.perf_counter()
        self._buckets[number][0].fill(place)
        return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class BesideCopies:
    """A collective's spans on this rank without and with copies, and a copy's time during it over that alone."""

    quiet: Span
    busy: Span
    copy_ratio: float


def _slowdown(measured: list[BesideCopies], communicator: Communicator) -> float:
    """Return the collectives' median with copies during them over that without."""
    busy = measure_last_to_last([each.busy for each in measured], communicator)
    quiet = measure_last_to_last([each.quiet for each in measured], communicator)
    return statistics.median(busy) / statistics.median(quiet)


BLOCKS, WIDTH = 8, 16
"""Of the model: blocks of three small layers, about what a block of ResNet-50 has in parameters; chosen by hand."""
WARM_UP, REPEATS = 3, 12
"""Steps that are discarded, and those whose median counts; chosen by hand."""


class _Blocks(nn.Module):
    """Numbered blocks, and one layer in none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def measure_units(communicator: Communicator) -> float:
    """Return seconds a collective: a step under `fully_shard` less its collectives, over one without it.

    Of a collective counts what the rank that came last waited: what ranks wait for each other at every one of them is
    the host's time, whose chance differences add up where all wait for all.
    """
    observer = Observer(HostClock())
    sharded = FullySharded(_Blocks(), "fsdp2", sgd, process_group=communicator.main, observer=observer)
    plain, steps, without = _Blocks(), [], []
    for number in range(WARM_UP + REPEATS):
        observer.begin(number, synced=True)
        steps.append(_step_s(sharded))
        without.append(_step_s(plain))
    observer.close()
    count = len(sharded.schedule)
    waits = [end - begin for note in observer.notes for begin, end in note.waits or ()]
    last = [min(each) for each in zip(*gather(waits, communicator), strict=True)]
    sent_s = [sum(last[number * count : (number + 1) * count]) for number in range(WARM_UP + REPEATS)]
    own_s = [step - sent - plain_s for step, sent, plain_s in zip(steps, sent_s, without, strict=True)]
    taken: float = statistics.median(own_s[WARM_UP:]) / count
    return max(0.0, taken)


def _step_s(model: nn.Module) -> float:
    """Return the seconds of a forward and a backward, each with caches cold."""
    x, seconds = torch.ones(4, WIDTH), 0.0
    chill(x.device)
    begin = time.perf_counter()
    loss = model(x).sum()
    seconds += time.perf_counter() - begin
    chill(x.device)
    begin = time.perf_counter()
    loss.backward()
    seconds += time.perf_counter() - begin
    model.zero_grad(set_to_none=True)
    return seconds


GRADIENTS = 200
"""Small parameters of the model whose hooks are timed."""

_BUFFERS = 100
"""Buffers of the larger of two broadcasts that are compared; chosen by hand, about what ResNet-50 has (159)."""
_OPTIMIZER_S = 0.02
"""Seconds slept in place of an optimizer before a broadcast of buffers; chosen by hand."""


def measure_costs(launched: Launched) -> dict[str, float]:
    """Return DDP's costs by name, seconds or bytes per second, the median of the ranks' medians.

    `hook_s` a gradient, `launch_s` a collective, `copy_Bps` gradient bytes copied, `finish_s` a bucket without its
    copies, `forward_s` a forward, `buffer_s` a buffer, `search_s` a parameter; on a CPU also `broadcast_s`
    of buffers, and the factors by which copies and collectives slow each other; over gloo `pair_s` and `behind_s` of
    small allreduces beside others, and on a CPU `unit_s` of a collective under `fully_shard`. `fp16_kernel_s` and
    `fp16_Bps`, and those of other codecs, are of encoding.
    """
    communicator, device = launched.communicator, launched.device
    measures: dict[str, Callable[[Communicator, torch.device], float]] = {
        "launch_s": _launch,
        "finish_s": _finish,
        "forward_s": _forward,
        "buffer_s": _buffer,
        "search_s": _search,
    }
    costs = {name: agree_on_median(measure(communicator, device), communicator) for name, measure in measures.items()}
    copies = Copies(device)
    costs["copy_Bps"] = agree_on_median(copies.speed(communicator), communicator)
    if device.type == "cpu" and communicator.world_size > 1:
        costs |= {"broadcast_s": _broadcast(communicator, device, copies), **copies.slowdowns(communicator)}
    if communicator.backend == "gloo" and communicator.world_size > 1:
        costs |= measure_crowded(communicator, device)
    if communicator.backend == "gloo" and device.type == "cpu":
        costs["unit_s"] = agree_on_median(measure_units(communicator), communicator)
    costs |= measure_codecs(communicator, device)
    hook = functools.partial(_hook, finish_s=costs["finish_s"])
    return {"hook_s": agree_on_median(hook(communicator, device), communicator), **costs}


class _Chain(nn.Module):
    """Has many small parameters, buffers of two types as batch normalisation has, and next to nothing to compute."""

    def __init__(self, gradients: int, buffers: int = 0) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(gradients))
        for index in range(buffers):
            self.register_buffer(f"buffer{index}", torch.ones(16, dtype=torch.int64 if index % 2 else torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def _pair(device: torch.device, find_unused: bool = False) -> tuple[nn.Module, DistributedDataParallel]:
    """Return a chain, and another in DDP that sends nothing, after its rebuild."""
    plain, wrapped = _Chain(GRADIENTS).to(device), _Chain(GRADIENTS).to(device)
    ddp = DistributedDataParallel(wrapped, comm="noop", find_unused_parameters=find_unused)
    for _ in range(3):
        _backward(ddp, device)()
    return plain, ddp


def _backward(module: nn.Module, device: torch.device) -> Callable[[], None]:
    """Run forward and return the backward that belongs to it."""
    module.zero_grad(set_to_none=True)
    loss = module(torch.ones(16, device=device)).sum()
    return loss.backward  # type: ignore[no-any-return]


def _hook(communicator: Communicator, device: torch.device, finish_s: float) -> float:
    plain, ddp = _pair(device)
    added = median_difference(_with_cold_caches(ddp, device), _with_cold_caches(plain, device), device, 20)
    return max(0.0, added - finish_s) / GRADIENTS


def _with_cold_caches(module: nn.Module, device: torch.device) -> Prepare:
    """Return what runs forward, chills the caches, and returns the backward."""

    def prepare() -> Callable[[], None]:
        backward = _backward(module, device)
        chill(device)
        return backward

    return prepare


def _forward(communicator: Communicator, device: torch.device) -> float:
    def prepare(module: nn.Module) -> Callable[[], object]:
        chill(device)
        return lambda: _backward(module, device)

    plain, ddp = _pair(device)
    return median_difference(lambda: prepare(ddp), lambda: prepare(plain), device, 30)


def _search(communicator: Communicator, device: torch.device) -> float:
    """Compare whole steps with and without the search; what it adds to backward belongs to it."""

    def step(find_unused: bool) -> Prepare:
        _, ddp = _pair(device, find_unused)
        return lambda: lambda: _backward(ddp, device)()

    return median_difference(step(True), step(False), device, 20) / GRADIENTS


def _launch(communicator: Communicator, device: torch.device) -> float:
    tensor = torch.ones(1 << 14, device=device)
    times = []
    for _ in range(30):
        chill(device)
        communicator.barrier()
        start = time.perf_counter()
        work = communicator.all_reduce(tensor, 0)
        times.append(time.perf_counter() - start)
        wait(work, communicator, "an allreduce")
    return statistics.median(times)


def _finish(communicator: Communicator, device: torch.device) -> float:
    """Wait for a finished collective and write a bucket of small gradients back."""
    bucket, parameters = make_small_bucket(16, device)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    times = []
    for _ in range(30):
        bucket.complete()
        work = communicator.all_reduce(bucket.buffer, 0)
        chill(device)
        time.sleep(0.002)
        communicator.barrier()
        start = time.perf_counter()
        wait(work, communicator, "an allreduce")
        bucket.write_back(())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _buffer(communicator: Communicator, device: torch.device) -> float:
    """Compare a broadcast of many buffers with one of few; the bytes are too few to matter."""
    many, few = (DistributedDataParallel(_Chain(1, count).to(device)).buffer_sync for count in (_BUFFERS, 1))
    return median_difference(lambda: many.synchronise, lambda: few.synchronise, device, 30) / (_BUFFERS - 1)


def _broadcast(communicator: Communicator, device: torch.device, copies: Copies) -> float:
    """Broadcast buffers when every rank has written its buckets back and an optimizer's time has passed."""
    buffers = DistributedDataParallel(_Chain(1, _BUFFERS).to(device)).buffer_sync
    spans = []
    for _ in range(15):
        copies.round_trip()
        communicator.barrier()
        time.sleep(_OPTIMIZER_S)
        spans.append(span_of(buffers.synchronise, device))
    return statistics.median(measure_last_to_last(spans, communicator))
