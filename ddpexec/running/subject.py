"""What a run trains: a shipped model, a step of one's own, or timed layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddpexec.capturing.models import TrainingModel, build
from ddpexec.capturing.models.training import sgd
from ddpexec.ddp.parameters import collect
from ddpexec.ddp.updates import MakeOptimizer
from ddpexec.errors import OptionError
from ddpexec.running.devices import check_module, put_on_devices
from ddpexec.running.own import OwnTraining
from ddpexec.running.replay import Replay
from ddpexec.running.settings import RunSettings
from ddpexec.running.timed import make_timed_model
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
    devices: Sequence[torch.device],
    settings: RunSettings,
    rank: int,
) -> TrainingSubject:
    """Return what is trained: the step of a user's own, else the layers of a workload, else the model of a name.

    Args:
        devices: of the rank.

    Raises:
        OptionError: none of them is given, or what cannot be on several devices.
    """
    device = devices[0]
    if step is not None:
        own = OwnTraining(step, device)
        check_module(collect(own.module), devices, f"--step {step}")
        return TrainingSubject(own, None, device, False)
    if workload is not None:
        if len(devices) > 1:
            what, remedy = "timed layers wait on one host, and are on no device", "run a model: `model`"
            raise OptionError(what, place="devices", remedy=remedy)
        slowness = settings.slowness(rank)
        timed = make_timed_model(workload, device=device, rank=rank, seed=settings.seed, scale_compute=slowness)
        return TrainingSubject(timed.model, timed.optimizer, device, True, timed.replay, timed.make_optimizer)
    if name is None:
        raise OptionError("neither `model`, `step` nor `workload` is given", remedy="give one, e.g. `model=resnet50`")
    model = build(name, device)
    model = model if len(devices) == 1 else put_on_devices(model, devices)
    return TrainingSubject(model, model.make_optimizer(), device, False)
