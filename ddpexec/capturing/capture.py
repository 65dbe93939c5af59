"""Capture one rank's iteration without communication, from a shipped model, a user's step, or a training loop.

Around a training loop of one's own it takes three lines::

    from ddpexec.capturing.capture import Capture        # 1

    with Capture(model, "workload.json") as capture:        # 2
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model(batch)).backward()
            optimizer.step()
            capture.step()                                  # 3

Host times are taken in the hooks that DDP uses; on a GPU a CUDA event is recorded with each, so nothing waits for the
device while it is timed. Pre-hooks of the modules inside tell when forward first needs each parameter: on a GPU in
three iterations afterwards, for events at every module would slow a host that has little else to do. The profiler runs
last, over two more, and only to learn how long the device was *busy* and where the host waited for it. How long one
process of the user's `DataLoader` takes for a batch is measured apart (`find_loading`).

`capture_alone` records on this process, `capture_together` on all ranks that torchrun started, at once: they share a
machine as they will in the job.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from ddpexec.capturing.describe import Compiles, describe_buffers, device_model
from ddpexec.capturing.devices import tell_devices, time_copies
from ddpexec.capturing.left_out import count_sent, describe_synchronised_norms
from ddpexec.capturing.models import TrainingModel, build, flush_denormals
from ddpexec.capturing.own_step import OwnStep, load_own_step, name_errors
from ddpexec.capturing.recorder import Recorder
from ddpexec.ddp.parameters import collect
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.groups.launched import join_launched
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.timing.stopwatch import gather_other_work
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.common.options.input_stage import InputStage
from ddpsim.common.other_work import OtherWork, ProcessorClock, find_other_work
from ddpsim.common.units import format_count
from ddpsim.workload import Workload
from ddpsim.workload.files import save_workload
from ddpsim.workload.pool import pool_captures
from ddpsim.workload.profile import LEFT_OUT, tokens_of
from ddpsim.workload.replayed import COMPILED


def capture_together(capture: Callable[[str], Workload], device: str = "") -> Workload | None:
    """Return on rank 0 the iterations of all ranks as one workload, on the others None.

    Ranks begin together and record without waiting for each other.

    Args:
        capture: records this rank's iterations on the device named.
        device: `cpu`, `cuda`, or nothing for GPUs where there are any; each local rank takes the GPU of its number.

    Raises:
        InputError: as `capture`, and as `join_launched`.
        WorkloadError: ranks that recorded different steps.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with join_launched("capture", "gloo", kind) as rank:
        rank.communicator.barrier()
        clock = ProcessorClock()
        own = capture(str(rank.device))
        other = gather_other_work(clock, rank.communicator)
        everyones: list[Workload | None] | None = None
        if rank.communicator.rank == 0:
            everyones = [None] * dist.get_world_size()
        with name_lost_ranks(rank.communicator, "the gathering of the ranks' recordings"):
            dist.gather_object(own, everyones)
        if everyones is None:
            return None
        recorded = [each for each in everyones if each is not None]
        return beside(replace(pool_captures(recorded), ranks=len(recorded)), other)


def capture_alone(capture: Callable[[str], Workload], device: str = "") -> Workload:
    """Return what this process alone records, as `capture` does."""
    clock = ProcessorClock()
    return beside(capture(device), find_other_work([clock.since()]))


def beside(workload: Workload, other: OtherWork | None) -> Workload:
    """Return a capture with the other work that the machine did meanwhile."""
    other_document = {} if other is None else other.document()
    return replace(workload, provenance={**workload.provenance, **other_document})


BATCHES = 10
"""Batches that are loaded to be timed, after one that is not."""


def find_loading(own: OwnStep) -> InputStage | None:
    """Return how the batches of a step with a data loader, its attribute `loader`, are loaded; None where it has none.

    One process loads them here, one after the other, whatever the loader's own number is.

    Raises:
        InputError: a `loader` that is none of torch's, that loads nothing, or that raises.
    """
    loader = getattr(own.step, "loader", None)
    if loader is None:
        return None
    if not isinstance(loader, DataLoader):
        what, remedy = f"`loader` is a {type(loader).__name__}", "let it be a torch.utils.data.DataLoader"
        raise InputError(what, place=f"--step {own.path}", remedy=remedy)
    times, sizes = [], []
    with name_errors(own.path):
        for seconds, batch in _time_batches(itertools.islice(_batches(loader), BATCHES + 1)):
            times.append(seconds)
            sizes.append(batch_bytes(batch))
    if not times:
        raise InputError("`loader` has no batch", place=f"--step {own.path}", remedy="give its dataset samples")
    return InputStage(
        load_s=median(times[1:] or times),
        workers=loader.num_workers,
        copy_bytes=max(sizes),
        pinned=loader.pin_memory,
    )


def batch_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch, which is a tensor or holds some in dicts, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, dict):
        batch = list(batch.values())
    return sum(map(batch_bytes, batch)) if isinstance(batch, list | tuple) else 0


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield batches as one of the loader's processes makes them."""
    collate = loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        samples = iter(loader.dataset)
        while batch := list(itertools.islice(samples, loader.batch_size or 1)):
            yield collate(batch if loader.batch_size else batch[0])
    elif loader.batch_sampler is None:
        for index in loader.sampler:
            yield collate(loader.dataset[index])
    else:
        for indices in loader.batch_sampler:
            yield collate([loader.dataset[index] for index in indices])


def _time_batches(batches: Iterable[Any]) -> Iterator[tuple[float, Any]]:
    iterator = iter(batches)
    while True:
        begin = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield time.perf_counter() - begin, batch


PRECISIONS = ("fp32", "tf32", "bf16", "amp")

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """Settings of a capture say how much is recorded.

    Attributes:
        iterations: recorded, after those of the warm-up.
        warm_up: iterations run first and discarded.
        threads: host threads to compute with; None leaves torch's setting.
        progress: called after each iteration with its number, the total, and its seconds.
    """

    iterations: int = 10
    warm_up: int = 3
    threads: int | None = None
    progress: Progress = lambda done, total, seconds: None


class Capture:
    """Record iterations of a training loop; after the last one the loop runs on undisturbed.

    Call `step()` at the end of each iteration, when the optimizer is done. An iteration counts from the start of the
    module's forward, so that loading data is not in it. The file is written when enough iterations are recorded.

    Args:
        module: the module that is trained, not wrapped in DDP.
        output: workload file to write; None leaves it to the caller (`workload`).
        name: of the workload; by default the module's class.
        batch_size: samples an iteration; by default the first dimension of the first tensor given to forward.
        settings: how much to record.

    Raises:
        InputError: the module is already wrapped in DDP.
        WorkloadError: an iteration without exactly one forward and one backward, or fewer iterations than asked for.
    """

    def __init__(
        self,
        module: nn.Module,
        output: str | Path | None = None,
        *,
        name: str | None = None,
        batch_size: int | None = None,
        settings: CaptureSettings | None = None,
    ) -> None:
        if isinstance(module, (DistributedDataParallel, nn.parallel.DistributedDataParallel)):
            raise InputError("the module is wrapped in DDP", place="Capture", remedy="capture the plain module")
        self.workload: Workload | None = None
        self._module, self._output, self._batch_size = module, output, batch_size
        self._settings = settings or CaptureSettings()
        self._name = name or type(module).__name__.lower()
        self._recorder = Recorder(module)
        self._compiles = Compiles(module)
        self._sent, self._sends = count_sent(), 0

    @property
    def done(self) -> bool:
        """Whether enough is recorded."""
        return self.workload is not None

    def step(self) -> None:
        """Mark the end of an iteration; does nothing once enough is recorded."""
        if self.done:
            return
        self._sends, self._sent = count_sent() - self._sent, count_sent()
        settings = self._settings
        seconds = self._recorder.end_iteration()
        done, total = self._recorder.iterations, settings.warm_up + settings.iterations
        if done <= total:
            settings.progress(done, total, seconds)
        if done == total:
            self._recorder.start_calls()
        if done == total + self._recorder.call_iterations:
            self._recorder.start_profile()
        if done >= total and self._recorder.profiled:
            self._finish()

    def _finish(self) -> None:
        self._recorder.remove()
        self.workload = self._build()
        if self._output is not None:
            save_workload(self.workload, self._output)

    def _build(self) -> Workload:
        fields, how, use_how = self._recorder.times(self._settings.warm_up, self._settings.iterations)
        device, precision = self._recorder.device, self._recorder.precision
        batch_size = self._batch_size or self._recorder.batch_size
        if batch_size is None:
            remedy = "give the batch size"
            raise WorkloadError("forward is given no tensor to take it from", place="batch_size", remedy=remedy)
        hardware, devices = device_model(device), self._recorder.devices
        model = collect(self._module)
        workload = Workload(
            name=f"{self._name}@{hardware.lower()}-{precision}-b{batch_size}",
            device=hardware,
            precision=precision,
            batch_size=batch_size,
            threads=torch.get_num_threads() if device.type == "cpu" else None,
            estimated=False,
            parameters=model.policy,
            frozen=model.frozen,
            buffers=describe_buffers(self._module),
            autocast_dtype=self._recorder.autocast_dtype,
            **fields,
            provenance={
                "how": "measured: post-accumulate hooks, host clock" + how,
                "torch": torch.__version__,
                "hardware": _hardware(device),
                "warm_up": self._settings.warm_up,
                "forward_use": use_how,
                **({COMPILED: True} if self._compiles.seen else {}),
                **({LEFT_OUT: notes} if (notes := list(self._left_out())) else {}),
            },
        )
        if len(devices) == 1:
            return workload
        copied = self._recorder.copies.copied
        return tell_devices(workload, devices, copied, time_copies(copied))

    def _left_out(self) -> Iterator[str]:
        yield from describe_synchronised_norms(self._module)
        if self._sends > 0:
            yield (
                f"the step itself makes {format_count(self._sends, 'collective')}: what they took among the ranks of "
                "this capture is in its times, and on other ranks they are left out"
            )

    def __enter__(self) -> Capture:
        self._recorder.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._recorder.remove()
        if kind is None and not self.done:
            have, wanted = self._recorder.iterations, self._settings.warm_up + self._settings.iterations
            what = f"the loop ended after {have} iterations, {wanted + self._recorder.further_iterations} are needed"
            raise WorkloadError(what, place="Capture", remedy="call step() after each iteration, or ask for fewer")


def capture_model(
    name: str, settings: CaptureSettings, *, batch_size: int | None = None, precision: str = "fp32", device: str = ""
) -> Workload:
    """Return a workload measured on the shipped model `name`, trained with SGD with momentum on random samples.

    Raises:
        InputError: an unknown model, precision or device, or a precision the device lacks.
    """
    where = _device(device)
    _check_precision(precision, where)
    # What torch does without being told where, it does on the current device.
    with torch.cuda.device(where) if where.type == "cuda" else nullcontext():
        return _capture(build(name, where), settings, batch_size, precision, where)


def capture_step(path: str, settings: CaptureSettings, *, batch_size: int | None = None) -> Workload:
    """Return a workload measured on a user's own training step.

    Args:
        path: `package.module:function`. The function is called once, without arguments, and returns `(module, step)`:
            the `nn.Module` that is trained, and a callable without arguments that does one training step: one forward
            of the module, one backward, the optimizer. What `step` does before forward (loading data) is not counted;
            where it has a data loader, its attribute `loader`, what that takes is recorded beside.
        settings: how much to record.
        batch_size: samples a step; by default the first dimension of the first tensor given to forward.

    Raises:
        InputError: the function cannot be imported, raises, or returns something else.
        WorkloadError: a step without exactly one forward and one backward.
    """
    own = load_own_step(path)
    capture = Capture(own.module, name=own.name, batch_size=batch_size, settings=settings)
    return replace(_run(capture, own.train, settings), input_stage=find_loading(own))


def _capture(
    model: TrainingModel, settings: CaptureSettings, batch_size: int | None, precision: str, device: torch.device
) -> Workload:
    if precision == "bf16":
        model.module.to(torch.bfloat16)
    size = batch_size or model.batch_size
    step = training_step(model, size, device, autocast=precision == "amp")
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        with flush_denormals():
            workload = _run(Capture(model.module, name=model.name, batch_size=size, settings=settings), step, settings)
        return replace(workload, sequence_length=tokens_of(model.sample))
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32


def training_step(
    model: TrainingModel, batch_size: int, device: torch.device, *, autocast: bool = False, seed: int = 0
) -> Callable[[], object]:
    """Return one training step of a shipped model: forward, backward, SGD with momentum, gradients reset to None."""
    optimizer = model.make_optimizer()
    batch = model.make_batch(batch_size, device, torch.Generator(device).manual_seed(seed))
    dtype = next(model.module.parameters()).dtype
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in batch.inputs)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
            loss = model.loss(model.module(*inputs), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _run(capture: Capture, step: Callable[[], object], settings: CaptureSettings) -> Workload:
    threads = torch.get_num_threads()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        with capture:
            while not capture.done:
                step()
                capture.step()
    finally:
        torch.set_num_threads(threads)
    assert capture.workload is not None
    return capture.workload


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InputError(f"unknown device {name!r}", place="device", remedy="use cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        have = f"this machine has {torch.cuda.device_count()} GPUs that torch can use"
        raise InputError(f"no device {name!r}: {have}", place="device", remedy="use cpu")
    return device


def _check_precision(precision: str, device: torch.device) -> None:
    if precision not in PRECISIONS:
        remedy = f"use one of {', '.join(PRECISIONS)}"
        raise InputError(f"unknown precision {precision!r}", place="precision", remedy=remedy)
    if precision == "tf32" and device.type != "cuda":
        raise InputError(f"tf32 does not exist on {device.type}", place="precision", remedy="use fp32, bf16 or amp")


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )
