"""Timed layers: a recorded backward replayed at its true pace, with real parameters, hooks, buckets and traffic.

Each layer's backward waits until its gradient's recorded time and returns a real gradient. On a CPU it sleeps, to
absolute times, so that hooks and copies use the time in between as they do beside a GPU. On a GPU a spinning kernel of
the recorded length stands for the computation, and hooks and copies are the device's work as they are in training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddpexec.capturing.models import Batch, TrainingModel
from ddpexec.capturing.models.training import as_tensor
from ddpexec.running.replay import Replay
from ddpexec.running.timed_layers import TimedLayers
from ddpsim.workload import Workload
from ddpsim.workload.replayed import single_clock


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A workload as something that can be trained.

    Attributes:
        model: the same shape as a shipped model.
        optimizer: replays the optimizer's time; changes no parameter.
        replay: what was asked for and what came out.
    """

    model: TrainingModel
    optimizer: TimedOptimizer
    replay: Replay

    def make_optimizer(self, parameters: list[nn.Parameter]) -> TimedOptimizer:
        """Return an optimizer of some parameters, or of parts of them."""
        return TimedOptimizer(parameters, self.replay)


def make_timed_model(
    workload: Workload,
    *,
    device: torch.device | str = "cpu",
    rank: int = 0,
    seed: int = 0,
    scale_compute: float = 1.0,
    in_order: bool = False,
) -> TimedModel:
    """Return a model with the parameters and buffers of `workload` that keeps its pace.

    Args:
        workload: recorded on any device; replayed on one clock (`ddpsim.workload.replayed`).
        device: where parameters live; `cuda` replays with a spinning kernel.
        rank, seed: draw which recorded iteration each iteration replays, differently on each rank.
        scale_compute: factor on all recorded times.
        in_order: whether recorded iterations come one after another, anew after the last, instead of being drawn.

    Raises:
        WorkloadError: a parameter whose gradient is sparse, or names that no module tree can have.
    """
    paced = single_clock(workload, scale_compute)
    replay = Replay(paced, torch.device(device), rank, seed, in_order=in_order)
    module = TimedLayers(workload, replay)

    def loss(output: object, batch: Batch) -> Tensor:
        # Recorded times count from the call of backward, which is next; autograd takes a while to its first node. Where
        # units are gathered before that node, they count from there.
        if not module.in_units:
            replay.begin()
        return as_tensor(output)

    model = TrainingModel(workload.name, module, workload.batch_size, "nothing: layers are timed", _batch, loss)
    return TimedModel(model, TimedOptimizer(list(module.parameters()), replay), replay)


class TimedOptimizer:
    """Takes the recorded time of the optimizer, in which it resets all gradients; changes no parameter.

    One of some parameters only takes a share of the time: that of their bytes in all parameters'.
    """

    def __init__(self, parameters: list[nn.Parameter], replay: Replay) -> None:
        self._parameters, self._replay = parameters, replay
        whole = sum(parameter.size_bytes for parameter in replay.workload.parameters)
        self._share = sum(map(_bytes_here, parameters)) / whole if whole else 1.0

    def step(self) -> None:
        """Reset the gradients and wait until the optimizer's time is over."""
        replay = self._replay.of_thread()
        replay.begin()
        for parameter in self._parameters:
            parameter.grad = None
        optimizer_s = float(replay.workload.optimizer.device_s[replay.iteration])
        replay.end(self._share * optimizer_s)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: `step` has reset the gradients in the recorded time, which includes that."""


def _bytes_here(parameter: nn.Parameter) -> int:
    """Return the bytes of a parameter that this rank updates: its shard of one that is sharded."""
    shard = getattr(parameter, "to_local", None)
    here: Tensor = parameter if shard is None else shard()
    return here.nbytes


def _batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
    return Batch((torch.zeros(size, device=device),), ())
