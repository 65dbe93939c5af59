"""What a run trains: a shipped model, a step of one's own, or timed layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ddpexec.errors import OptionError
from ddpexec.models import TrainingModel, build
from ddpexec.models.training import sgd
from ddpexec.running.own import OwnTraining
from ddpexec.running.replay import Replay
from ddpexec.running.settings import RunSettings
from ddpexec.running.timed import make_timed_model
from ddpexec.schedules.updates import MakeOptimizer
from ddpsim.workload import Workload


@dataclass(slots=True)
class TrainingSubject:
    """What is trained: a model, its optimizer and what makes one of some parameters, and the device it is on."""

    model: TrainingModel | OwnTraining
    optimizer: Any
    device: torch.device
    timed: bool
    replay: Replay | None = None
    make_optimizer: MakeOptimizer = sgd


def subject_of(
    name: str | None,
    step: str | None,
    workload: Workload | None,
    device: torch.device,
    settings: RunSettings,
    rank: int,
) -> TrainingSubject:
    """Return what is trained: the step of a user's own, else the layers of a workload, else the model of a name.

    Raises:
        OptionError: none of them is given.
    """
    if step is not None:
        return TrainingSubject(OwnTraining(step, device), None, device, False)
    if workload is not None:
        slowness = settings.slowness(rank)
        timed = make_timed_model(workload, device=device, rank=rank, seed=settings.seed, scale_compute=slowness)
        return TrainingSubject(timed.model, timed.optimizer, device, True, timed.replay, timed.make_optimizer)
    if name is None:
        raise OptionError("neither `model`, `step` nor `workload` is given", remedy="give one, e.g. `model=resnet50`")
    model = build(name, device)
    return TrainingSubject(model, model.make_optimizer(), device, False)
