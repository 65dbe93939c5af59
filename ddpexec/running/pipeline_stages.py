"""The stages of one rank: parts of a model as torch's tracer cuts it, or timed ones that keep a workload's pace."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline

from ddpexec.capturing.models import Batch, TrainingModel
from ddpexec.ddp.parameters import collect
from ddpexec.errors import OptionError
from ddpexec.running.devices import divide_layers, refuse_tied
from ddpexec.timing.waiting import keep_time, wait_until
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
        found = [p.grad for stage in self.stages for p in stage.submod.parameters() if p.grad is not None]
        return torch._utils._flatten_dense_tensors(found)  # type: ignore[no-any-return, no-untyped-call]

    def take(self, summed: Tensor) -> None:
        """Take gradients that were summed over copies."""
        if self.flat is None:
            found = [p.grad for stage in self.stages for p in stage.submod.parameters() if p.grad is not None]
            means = torch._utils._unflatten_dense_tensors(summed, found)  # type: ignore[no-untyped-call]
            for gradient, mean in zip(found, means, strict=True):
                gradient.copy_(mean)


def model_stages(
    model: TrainingModel,
    given: Pipeline,
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
    count = given.stages * given.stages_per_rank
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
    stages = [pipe.build_stage(k, batches[0].inputs[0].device, group) for k in range(place, count, given.stages)]
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

    def forward(self, given: Tensor) -> Tensor:
        """Take forward's time."""
        found: Tensor = _Timed.apply(given, self.weight, self.forward_s, self.backward_s)  # type: ignore[no-untyped-call]
        return found


class _Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        _pass(forward_s)
        return given.clone()

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
    workload: Workload, given: Pipeline, place: int, group: dist.ProcessGroup, device: torch.device
) -> RankStages:
    """Return this rank's timed stages of `workload`, cut as the simulator cuts it.

    Raises:
        OptionError: on a GPU.
        InputError: more stages than layers.
    """
    if device.type != "cpu":
        what, remedy = "timed stages wait on the host", "give `device=cpu`, or run a model: `model`"
        raise OptionError(what, place="pipeline", remedy=remedy)
    costs = stages_of(workload, given.stages * given.stages_per_rank)
    values = max(1, (given.boundary_bytes or 0) // 4)
    mine = range(place, len(costs.stages), given.stages)
    count = len(costs.stages)
    timed = {k: TimedStage(costs.forward_s[k], costs.backward_s[k]) for k in mine}
    stages = [PipelineStage(stage, k, count, device, group=group) for k, stage in timed.items()]
    size = sum(workload.parameters[index].size_bytes for k in mine for index in costs.stages[k])
    optimizer_s = float(np.median(workload.optimizer.device_s)) / given.stages
    batches = [Batch((), (torch.zeros(1),))] * given.micro_batches
    inputs = (torch.zeros((given.micro_batches, values)),)
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
