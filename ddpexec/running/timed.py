"""Timed layers: a recorded backward replayed at its true pace, with real parameters, hooks, buckets and traffic.

Each layer's backward waits until its gradient's recorded time and returns a real gradient. On a CPU it sleeps, to
absolute times, so that hooks and copies use the time in between as they do beside a GPU. On a GPU a spinning kernel of
the recorded length stands for the computation, and hooks and copies are the device's work as they are in training.

Modules have the parameters' own names; the autograd functions behind them (`_Layer`) keep the gradients' times by the
clock of `running.replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpexec.capturing.models import Batch, TrainingModel
from ddpexec.capturing.models.training import as_tensor
from ddpexec.running.replay import Replay
from ddpsim.bucketing.assign import in_registration_order
from ddpsim.common.errors import WorkloadError
from ddpsim.schedules.units import blocks_of
from ddpsim.workload import Workload
from ddpsim.workload.replayed import single_clock


class TimedLayers(nn.Module):
    """Parameters and buffers under their recorded names, and a forward that builds the chain of timed layers.

    Attributes:
        in_units: whether forward calls the modules of its blocks, so that what is hooked to them runs.
    """

    _replay: Replay
    _gradients: list[_Gradient]
    _announce: Callable[[Sequence[int]], bool] | None = None

    def __init__(self, workload: Workload, replay: Replay) -> None:
        super().__init__()
        self.in_units = False
        blocks = blocks_of(workload.all_parameters)
        for index, parameter in in_registration_order(workload.all_parameters):
            if parameter.sparse:
                raise WorkloadError(f"the gradient of {parameter.name} is sparse; timed layers make dense ones")
            dtype = getattr(torch, parameter.dtype)
            zeros = torch.zeros(parameter.shape, dtype=dtype, device=replay.device)
            value = nn.Parameter(zeros, requires_grad=index < len(workload.parameters))
            owner, name = _owner(self, parameter.name, blocks)
            owner.register_parameter(name, value)
        for buffer in workload.buffers:
            owner, name = _owner(self, buffer.name, blocks)
            owner.register_buffer(
                name, torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype), device=replay.device)
            )
        named = [name for name, value in self.named_parameters() if value.requires_grad]
        if named != [parameter.name for parameter in workload.parameters]:
            raise WorkloadError("its parameters are not in the order of a module tree", place=workload.name)
        self._replay = replay
        self._gradients = [_Gradient(*_owner(self, name, blocks), i, replay.device) for i, name in enumerate(named)]
        self._blocks = {index: name for name, indices in blocks.items() for index in indices}

    def announce_forward(self, announce: Callable[[Sequence[int]], bool]) -> None:
        """Call `announce` with parameters at the time at which forward first needs them, from now on."""
        self._announce = announce
        use = self._replay.workload.forward_use_s
        count = len(self._gradients)
        self._uses = uses_in_order(np.zeros(count) if use is None else use.device_s[:count])

    def call_units(self) -> None:
        """Call the module of each block from now on: once for all its layers, when forward first needs one of them."""
        self.in_units = True

    def forward(self, samples: Tensor) -> Tensor:
        """Return what to begin backward with, once forward's time has passed."""
        replay = self._replay
        replay.begin()
        order = replay.begin_iteration()
        self._use_parameters(after_s=-1.0, until_s=0.0)
        value = torch.zeros((), device=samples.device, requires_grad=True)
        value = _apply(_Passing, value, replay.end_backward)
        if self.in_units:
            value = _apply(_Passing, self._chain_units(value, order), replay.begin)
        else:
            value = _chain_layers(value, [self._gradients[i] for i in reversed(order)], replay)
            value = _apply(_Passing, value, replay.begin_once)
        self._use_parameters(after_s=0.0, until_s=float("inf"))
        replay.end(float(replay.workload.forward.device_s[replay.iteration]))
        return value

    def _chain_units(self, value: Tensor, order: Sequence[int]) -> Tensor:
        """Chain the layers of each block inside its module, where backward first comes out of the last of them.

        The clock stands still beside what is hooked to the module: before and after it in forward and in backward.
        """
        replay = self._replay
        for block, indices in _group_by_block(list(reversed(order)), self._blocks):
            gradients = [self._gradients[index] for index in indices]
            if block is None:
                value = _chain_layers(value, gradients, replay)
                continue
            replay.reach(self._find_use_s(indices))
            value = _apply(_Passing, value, replay.resume)
            replay.pause()
            value = self.get_submodule(block)(value, gradients, replay)
            replay.resume()
            value = _apply(_Passing, value, replay.pause)
        return value

    def _find_use_s(self, indices: Sequence[int]) -> float:
        """Return when forward first needs one of these parameters; its end at the latest."""
        use = self._replay.workload.forward_use_s
        times = [0.0] if use is None else [float(use.device_s[index]) for index in indices]
        forward_s = float(self._replay.workload.forward.device_s[self._replay.iteration])
        return min([forward_s, *(seconds for seconds in times if not np.isnan(seconds))])

    def _use_parameters(self, *, after_s: float, until_s: float) -> None:
        """Announce what forward needs between two of its times; the first before the graph is built, as it may wait."""
        replay, announce = self._replay, self._announce
        if announce is None:
            return
        forward_s = float(replay.workload.forward.device_s[replay.iteration])
        for use_s, indices in self._uses:
            if after_s < use_s <= until_s:
                replay.reach(min(use_s, forward_s))
                replay.beside(partial(announce, indices))


class _Block(nn.Module):
    """The layers of one block, chained where its module is called."""

    def forward(self, value: Tensor, gradients: Sequence[_Gradient], replay: Replay) -> Tensor:
        replay.resume()
        value = _chain_layers(_apply(_Passing, value, replay.pause), gradients, replay)
        value = _apply(_Passing, value, replay.resume)
        replay.pause()
        return value


def _chain_layers(value: Tensor, gradients: Sequence[_Gradient], replay: Replay) -> Tensor:
    for gradient in gradients:
        value = _apply(_Layer, value, gradient.parameter, gradient, replay)
    return value


def _group_by_block(order: Sequence[int], blocks: dict[int, str]) -> list[tuple[str | None, list[int]]]:
    """Return `order` with all parameters of a block where its first is; those of none stand alone.

    >>> _group_by_block([3, 0, 2, 1], {0: "h.0", 1: "h.0"})
    [(None, [3]), ('h.0', [0, 1]), (None, [2])]
    """
    groups: dict[str | int, tuple[str | None, list[int]]] = {}
    for index in order:
        block = blocks.get(index)
        groups.setdefault(index if block is None else block, (block, []))[1].append(index)
    return list(groups.values())


def uses_in_order(times: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> list[tuple[float, list[int]]]:
    """Return when forward first needs which parameters, in order of time; those it never needs come at its end.

    >>> uses_in_order([0.0, 0.5, float("nan"), 0.0])
    [(0.0, [0, 3]), (0.5, [1]), (inf, [2])]
    """
    by_time: dict[float, list[int]] = {}
    for index in np.argsort(np.asarray(times), kind="stable"):
        use_s = float("inf") if np.isnan(times[index]) else float(times[index])
        by_time.setdefault(use_s, []).append(int(index))
    return list(by_time.items())


class _Gradient:
    """What a timed layer returns: always the same values, in memory that the gradient may own until it is reset."""

    def __init__(self, owner: nn.Module, name: str, index: int, device: torch.device) -> None:
        self._owner, self._name, self.index = owner, name, index
        self._on_cpu = device.type == "cpu"
        self._memory: Tensor | None = None

    @property
    def parameter(self) -> Tensor:
        """The parameter as its module has it now: gathered, where it is sharded."""
        now = self._owner._parameters[self._name]
        assert now is not None
        return now

    def make(self, parameter: Tensor) -> Tensor:
        """Return the gradient of what forward used; a CPU writes memory only where the last one was changed.

        A GPU always does: to look first would make its host wait.
        """
        value = gradient_value(self.index)
        if parameter.grad is not None:
            return torch.full_like(parameter, value)
        if self._memory is None:
            self._memory = torch.empty_like(parameter)
        if not self._on_cpu or (self._memory.numel() and self._memory.view(-1)[0].item() != value):
            self._memory.fill_(value)
        return self._memory.detach()


def gradient_value(index: int) -> float:
    """Return the value of every element of the gradient of parameter `index`: small, and exact in any float type."""
    return (index % 32 + 1) / 256


class _Passing(torch.autograd.Function):
    """Call something when backward passes this point of the chain."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, call: Callable[[], None]) -> Tensor:
        ctx.call = call
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.call()
        return gradients[0], None


class _Layer(torch.autograd.Function):
    """Return one parameter's gradient at its time."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, parameter: Tensor, gradient: _Gradient, replay: Replay) -> Tensor:
        ctx.parameter, ctx.gradient, ctx.replay = parameter, gradient, replay
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gradient: _Gradient = ctx.gradient
        result = gradient.make(ctx.parameter)
        ctx.replay.reach_gradient(gradient.index)
        return gradients[0], result, None, None


def _apply(function: type[torch.autograd.Function], *arguments: object) -> Tensor:
    return as_tensor(function.apply(*arguments))  # type: ignore[no-untyped-call]


def _owner(root: nn.Module, name: str, blocks: Collection[str]) -> tuple[nn.Module, str]:
    *path, last = name.split(".")
    module = root
    for depth, step in enumerate(path, 1):
        if step not in module._modules:
            module.add_module(step, _Block() if ".".join(path[:depth]) in blocks else nn.Module())
        module = module.get_submodule(step)
    return module, last


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
