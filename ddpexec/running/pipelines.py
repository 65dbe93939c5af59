"""Train a model in stages by `torch.distributed.pipelining`, in several copies at once, and time its steps.

Start with `PipelineRun`. A rank's stages are parts of a model as torch's tracer cuts it (`model_stages`), or timed
stages that keep a workload's pace (`make_timed_stages`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    pipeline,
)

from ddpexec.capturing.models import Batch, TrainingModel, build
from ddpexec.ddp.parameters import collect
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.running.devices import divide_layers, refuse_tied
from ddpexec.running.pipeline_options import PipelineOptions
from ddpexec.running.settings import DISCARDED, RunSettings
from ddpexec.timing.clock import drain
from ddpexec.timing.waiting import keep_time, wait_until
from ddpsim.common.errors import InputError
from ddpsim.common.files import read_json
from ddpsim.schedules.units import modules_of
from ddpsim.simulation.jobs.pipeline import Pipeline
from ddpsim.simulation.jobs.stages import stages_of
from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True)
class RankStages:
    """What a rank holds of a model.

    Attributes:
        stages: torch's, of one pipeline.
        cut: registration indices of the parameters of every stage of the model.
        gradients: what is summed over copies when all micro-batches are done.
        batch: the inputs of a step, for the rank of the first stage; empty elsewhere.
        batches: the micro-batches, for the loss.
    """

    stages: list[Any]
    cut: tuple[tuple[int, ...], ...]
    batch: tuple[Tensor, ...]
    batches: Sequence[Batch]
    optimizer: Any
    loss: Any
    flat: Tensor | None = None

    def gradients(self) -> Tensor:
        """Return all gradients of this rank in one tensor."""
        if self.flat is not None:
            return self.flat
        gradients = [p.grad for stage in self.stages for p in stage.submod.parameters() if p.grad is not None]
        return torch._utils._flatten_dense_tensors(gradients)  # type: ignore[no-any-return, no-untyped-call]

    def take(self, summed: Tensor) -> None:
        """Take gradients that were summed over copies."""
        if self.flat is None:
            found = [p.grad for stage in self.stages for p in stage.submod.parameters() if p.grad is not None]
            means = torch._utils._unflatten_dense_tensors(summed, found)  # type: ignore[no-untyped-call]
            for gradient, mean in zip(found, means, strict=True):
                gradient.copy_(mean)


def model_stages(
    model: TrainingModel,
    options: Pipeline,
    place: int,
    group: dist.ProcessGroup,
    batches: Sequence[Batch],
    cut: Sequence[Sequence[int]] | None,
) -> RankStages:
    """Return this rank's stages of `model`, cut by torch's tracer before the first module of each stage.

    Args:
        model: the whole, the same on each rank.
        given: how many stages there are.
        place: of this rank in its pipeline.
        group: of the ranks of the pipeline.
        batches: of its copy of the model, one a micro-batch, on the device where its tensors live.
        cut: registration indices of each stage; None cuts where the longest has the fewest parameters.

    Raises:
        OptionError: more stages than layers, a parameter of two stages, or a model that cannot be traced.
    """
    remedy = "replay its `workload`, or run a model without"
    refuse_tied(model.module, "", "of two stages", "pipeline", remedy)
    policy = collect(model.module).policy
    count = options.stages * options.stages_per_rank
    if cut is None:
        cut = divide_layers(modules_of(policy), [each.numel for each in policy], count, "stages of")
    names = [policy[stage[0]].name.rpartition(".")[0] for stage in cut[1:]]
    split = dict.fromkeys(names, SplitPoint.BEGINNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe = pipeline(model.module, mb_args=batches[0].inputs, split_spec=split)
        if pipe.num_stages != count:
            raise RuntimeError(f"the tracer made {pipe.num_stages} stages of {count}")
    except Exception as error:
        what = f"torch cannot cut {model.name} before {', '.join(names)}: {' '.join(str(error).split())[:200]}"
        raise OptionError(what, place="pipeline", remedy="use other `stages`, or replay its `workload`") from error
    stages = [pipe.build_stage(k, batches[0].inputs[0].device, group) for k in range(place, count, options.stages)]
    optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=1e-3, momentum=0.9)
    inputs = tuple(torch.cat(each) for each in zip(*(batch.inputs for batch in batches), strict=True))
    return RankStages(stages, tuple(map(tuple, cut)), inputs, list(batches), optimizer, model.loss)


class TimedStage(nn.Module):
    """A stage that takes as long as the workload says, and passes activations of a given size on.

    Its gradients are one tensor of the parameters' bytes, which backward leaves as it is.
    """

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, activations: Tensor) -> Tensor:
        """Take forward's time."""
        output: Tensor = _Timed.apply(activations, self.weight, self.forward_s, self.backward_s)  # type: ignore[no-untyped-call]
        return output


class _Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, activations: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        _pass(forward_s)
        return activations.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        _pass(ctx.backward_s)
        return gradients[0], torch.zeros(()), None, None


class PacedOptimizer:
    """Takes the optimizer's time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def step(self) -> None:
        """Wait until it is over."""
        _pass(self._seconds)

    def zero_grad(self) -> None:
        """Do nothing: the gradients of timed stages are never added to."""


def make_timed_stages(
    workload: Workload, pipeline: Pipeline, place: int, group: dist.ProcessGroup, device: torch.device
) -> RankStages:
    """Return this rank's timed stages of `workload`, cut as the simulator cuts it.

    Raises:
        OptionError: on a GPU.
        InputError: more stages than layers.
    """
    if device.type != "cpu":
        what, remedy = "timed stages wait on the host", "give `device=cpu`, or run a model: `model`"
        raise OptionError(what, place="pipeline", remedy=remedy)
    costs = stages_of(workload, pipeline.stages * pipeline.stages_per_rank)
    values = max(1, (pipeline.boundary_bytes or 0) // 4)
    mine = range(place, len(costs.stages), pipeline.stages)
    count = len(costs.stages)
    timed = {k: TimedStage(costs.forward_s[k], costs.backward_s[k]) for k in mine}
    stages = [PipelineStage(stage, k, count, device, group=group) for k, stage in timed.items()]
    size = sum(workload.parameters[index].size_bytes for k in mine for index in costs.stages[k])
    optimizer_s = float(np.median(workload.optimizer.device_s)) / pipeline.stages
    batches = [Batch((), (torch.zeros(1),))] * pipeline.micro_batches
    inputs = (torch.zeros((pipeline.micro_batches, values)),)
    flat = torch.zeros(size // 4)
    return RankStages(
        stages, costs.stages, inputs, batches, PacedOptimizer(optimizer_s), lambda output, batch: output[0, 0], flat
    )


def _pass(seconds: float) -> None:
    """Return when `seconds` have passed, which no other thread of this machine is to delay."""
    until_s = time.perf_counter() + seconds
    keep_time(on=True)
    wait_until(until_s)
    keep_time(on=False)


_SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


class PipelineRun:
    """One rank's part of a run in stages.

    Args:
        settings: its backend, batch, iterations and seed.
        options: of the pipeline.
        device: of this rank.
        model: name of a shipped model; or
        workload: timed stages instead.

    Raises:
        InputError: stages that do not divide the ranks, more of them than layers, a model that torch cannot cut, or a
            prediction of another pipeline; on every rank alike.
    """

    def __init__(
        self,
        settings: RunSettings,
        options: PipelineOptions,
        device: torch.device,
        communicator: Communicator,
        *,
        model: str | None = None,
        workload: Workload | None = None,
    ) -> None:
        self._settings, self._device, self._communicator = settings, device, communicator
        self._given = pipeline = options.check(communicator.world_size)
        predicted = None if options.predicted is None else _prediction(options.predicted)
        self._copy, self._place = divmod(communicator.rank, pipeline.stages)
        self._copies = communicator.world_size // pipeline.stages
        own, self._replicas = self._groups()
        torch.manual_seed(settings.seed)
        if workload is not None:
            self.held: RankStages = make_timed_stages(workload, pipeline, self._place, own, device)
            self._name, self._samples = workload.name, workload.batch_size
        else:
            trained = build(model or "", device)
            self._name, self._samples = trained.name, settings.batch_size or trained.batch_size
            cut = None if predicted is None else predicted["stages"]
            _check_cut(cut, pipeline.stages * pipeline.stages_per_rank)
            generator = torch.Generator(device).manual_seed(settings.seed + self._copy)
            batches = [trained.make_batch(self._samples, device, generator) for _ in range(pipeline.micro_batches)]
            self.held = model_stages(trained, pipeline, self._place, own, batches, cut)
        self._predicted_s = None if predicted is None else float(predicted["step_s"])
        if predicted is not None and [list(stage) for stage in self.held.cut] != predicted["stages"]:
            what = "the prediction's stages are not those of this run"
            raise OptionError(what, place=f"predicted={options.predicted}", remedy="predict this workload, cut so")
        stages: Any = self.held.stages if pipeline.order == "interleaved" else self.held.stages[0]
        schedule = _SCHEDULES[pipeline.order]
        self._schedule = schedule(stages, n_microbatches=pipeline.micro_batches, loss_fn=self._loss)

    def train(self, progress: Callable[[int, int, float], None]) -> dict[str, Any]:
        """Run the discarded steps and those that count; return what they took, as JSON values, times in seconds.

        A period is the longest of all ranks, a loss the mean of its micro-batches, of the first copy; `error` is how
        much longer the predicted step is than the measured one, as a share of it.

        Raises:
            LostRankError: another rank died, raised or did not come within the timeout.
        """
        total, begins, losses = DISCARDED + self._settings.iterations, list[float](), list[float]()
        with name_lost_ranks(self._communicator, "a step of the pipeline", others_code=True):
            self._communicator.barrier()
            for index in range(total):
                begins.append(time.perf_counter())
                losses.append(self._step())
                drain(self._device)
                progress(index + 1, total, time.perf_counter() - begins[-1])
            begins.append(time.perf_counter())
            mine = [
                later - earlier for earlier, later in zip(begins[DISCARDED:-1], begins[DISCARDED + 1 :], strict=True)
            ]
            gathered = self._communicator.gather_objects((mine, losses[DISCARDED:]), self._device)
        periods = [max(each) for each in zip(*(periods for periods, _ in gathered), strict=True)]
        step_s, known_s = median(periods), self._predicted_s
        return {
            "model": self._name,
            "pipeline": self._given.order,
            "step_s": step_s,
            "periods_s": periods,
            "samples_per_s": self._copies * self._given.micro_batches * self._samples / step_s,
            "stages": [list(stage) for stage in self.held.cut],
            "ranks_per_pipeline": self._given.stages,
            "copies": self._copies,
            "micro_batches": self._given.micro_batches,
            "losses": gathered[self._given.stages - 1][1],
            "predicted_step_s": known_s,
            "error": None if known_s is None else known_s / step_s - 1,
        }

    def _step(self) -> float:
        """Train once; return the loss where this rank has the last stage, else 0."""
        held, losses = self.held, list[Tensor]()
        first, last = self._place == 0, self._place == self._given.stages - 1
        arguments = held.batch if first else ()
        if last:
            self._schedule.step(*arguments, target=torch.arange(self._given.micro_batches), losses=losses)
        else:
            self._schedule.step(*arguments)
        # torch's pipelining reduces nothing over copies: all gradients of this rank go in one allreduce, as no overlap
        # is wanted here.
        if self._copies > 1:
            summed = held.gradients()
            dist.all_reduce(summed, group=self._replicas)
            held.take(summed.div_(self._copies) if held.flat is None else summed)
        held.optimizer.step()
        held.optimizer.zero_grad()
        return float(torch.stack([each.detach() for each in losses]).mean()) if losses else 0.0

    def _loss(self, output: Any, number: Tensor) -> Tensor:
        loss: Tensor = self.held.loss(output, self.held.batches[int(number)])
        return loss

    def _groups(self) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Return the group of this rank's pipeline, and that of the ranks of its place in all copies."""
        ranks, timeout = range(self._communicator.world_size), self._settings.timeout
        each = self._given.stages
        # Every rank makes every group, its own or not, in the same order: `new_group` hangs otherwise.
        pipelines = [dist.new_group(list(ranks[k : k + each]), timeout=timeout) for k in ranks[::each]]
        replicas = [dist.new_group(list(ranks[place::each]), timeout=timeout) for place in range(each)]
        return pipelines[self._copy], replicas[self._place]


def _check_cut(cut: Any, count: int) -> None:
    if cut is not None and len(cut) != count:
        what = f"the prediction has {len(cut)} stages, the run {count}"
        raise OptionError(what, place="predicted", remedy="give the `stages` and `stages_per_rank` it was made with")


def _prediction(path: str) -> dict[str, Any]:
    """Return what `ddpsim pipeline --json` wrote.

    Raises:
        InputError: a file without a step and stages.
    """
    remedy = "write it with `ddpsim pipeline ... --json`"
    document = read_json(Path(path), InputError, remedy)
    if not isinstance(document, dict) or not {"step_s", "stages"} <= document.keys():
        raise InputError("no prediction of a pipeline", place=path, remedy=remedy)
    return document


def write_measurement(measured: dict[str, Any], out: Path) -> None:
    """Write `pipeline.json` into a folder."""
    from ddpsim.common.files import json_text, write_whole

    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "pipeline.json", json_text(measured))
