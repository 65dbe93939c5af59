"""Timed layers: a recorded backward replayed at its true pace, with real parameters, hooks, buckets and traffic.

Each layer's backward waits until its gradient's recorded time and returns a real gradient. On a CPU it sleeps, to
absolute times, so that hooks and copies use the time in between as they do beside a GPU. On a GPU a spinning kernel of
the recorded length stands for the computation, and hooks and copies are the device's work as they are in training.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpexec.models import Batch, TrainingModel
from ddpexec.models.training import as_tensor
from ddpexec.timing.waiting import keep_time, sharpen_timers, spinner, wait_until
from ddpsim.errors import WorkloadError
from ddpsim.workload import Workload
from ddpsim.workload.single_clock import single_clock

TOLERANCE_S, TOLERANCE_SHARE = 0.2e-3, 0.01
"""Seconds, and share of its time, from which on a gradient counts as late; chosen by hand."""
COPIED_AT_ONCE = 1 << 20
"""Bytes of a gradient that is in its bucket within about the time that a thread may be late."""


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


def timed_model(
    workload: Workload,
    *,
    device: torch.device | str = "cpu",
    rank: int = 0,
    seed: int = 0,
    scale_compute: float = 1.0,
    straggler: float = 1.0,
    in_order: bool = False,
) -> TimedModel:
    """Return a model with the parameters and buffers of `workload` that keeps its pace.

    Args:
        workload: recorded on any device; replayed on one clock (`ddpsim.workload.single_clock`).
        device: where parameters live; `cuda` replays with a spinning kernel.
        rank, seed: draw which recorded iteration each iteration replays, differently on each rank.
        scale_compute: factor on all recorded times.
        straggler: another such factor, of this rank alone.
        in_order: whether recorded iterations come one after another, anew after the last, instead of being drawn.

    Raises:
        WorkloadError: a parameter whose gradient is sparse, or names that no module tree can have.
    """
    paced = single_clock(workload, scale_compute * straggler)
    replay = Replay(paced, torch.device(device), rank, seed, in_order=in_order)
    module = _TimedModule(workload, replay)

    def loss(output: object, batch: Batch) -> Tensor:
        # Recorded times count from the call of backward, which is next; autograd takes a while to its first node.
        replay.begin()
        return as_tensor(output)

    model = TrainingModel(workload.name, module, workload.batch_size, "nothing: layers are timed", _batch, loss)
    return TimedModel(model, TimedOptimizer(list(module.parameters()), replay), replay)


class Replay:
    """A replay knows the recorded iteration in force, and the clock that the rank is held to.

    Attributes:
        workload: on one clock, scaled.
        device: where parameters live.
        iteration: which recorded iteration is replayed.
        start_s: when the phase in force began, on `time.perf_counter`.
        running: whether a phase has begun and not ended.
        lateness_s: of each gradient of the last backward against its recorded time; NaN for one without a gradient.
            On a CPU only, as the next.
        gradients, late: how many there were in all, and how many of them came later than `TOLERANCE_S` and
            `TOLERANCE_SHARE` of their time allow.
    """

    def __init__(
        self, workload: Workload, device: torch.device, rank: int, seed: int, *, in_order: bool = False
    ) -> None:
        self.workload, self.device = workload, device
        self.iteration = 0
        self._coming = itertools.cycle(range(workload.iterations)) if in_order else None
        self.running = self._keeps_time = False
        self.lateness_s = np.full(len(workload.parameters), np.nan)
        self.gradients = self.late = 0
        self._draws = np.random.default_rng([seed, rank])
        self._orders = [_gradients_in_order(workload, k) for k in range(workload.iterations)]
        self.start_s = 0.0
        self._on_device_s = 0.0
        self._spin = spinner(device) if device.type == "cuda" else None
        sharpen_timers()

    def next_iteration(self) -> list[int]:
        """Take or draw the next recorded iteration and return its gradients' parameters in arrival order."""
        drawn = self._draws.integers(self.workload.iterations) if self._coming is None else next(self._coming)
        self.iteration = int(drawn)
        return self._orders[self.iteration]

    def begin(self) -> None:
        """Start the clock of a phase, which nothing else on this machine is to delay."""
        self._keep_time(on=True)
        self.running = True
        self.start_s = time.perf_counter()
        self._on_device_s = 0.0

    def reach(self, seconds: float) -> float:
        """Return `seconds` after the phase's start, or keep a GPU busy up to there; return how late that was."""
        if self._spin is not None:
            self._on_device_s += self._spin(seconds - self._on_device_s)
            return 0.0
        return wait_until(self.start_s + seconds) - self.start_s - seconds

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Let the clock of a phase stand still while the rank does, or waits for, something else."""
        start_s, on_device_s, running = self.start_s, self._on_device_s, self.running
        began_s = time.perf_counter()
        self._keep_time(on=False)
        yield
        self._keep_time(on=running)
        self.start_s = start_s + time.perf_counter() - began_s
        self._on_device_s, self.running = on_device_s, running

    def end(self, seconds: float) -> None:
        """Reach the end of a phase, `seconds` after its start."""
        self.reach(seconds)
        self.running = False
        self._keep_time(on=False)

    def reach_gradient(self, parameter: int) -> None:
        """Wait for the recorded time of a gradient; then what copies for long shares the cores again."""
        self._keep_time(on=True)
        ready_s = float(self.workload.gradient_ready_s[self.iteration, parameter])
        late_s = self.reach(ready_s)
        if self._spin is None:
            self.lateness_s[parameter] = late_s
            self.gradients += 1
            self.late += late_s > max(TOLERANCE_S, TOLERANCE_SHARE * ready_s)
        if self.workload.parameters[parameter].size_bytes > COPIED_AT_ONCE:
            self._keep_time(on=False)

    def _keep_time(self, *, on: bool) -> None:
        if on != self._keeps_time and self._spin is None:
            self._keeps_time = on
            keep_time(on=on)


class TimedOptimizer:
    """Takes the recorded time of the optimizer, in which it resets all gradients; changes no parameter.

    One of some parameters only takes a share of the time: that of their bytes in all parameters'.
    """

    def __init__(self, parameters: list[nn.Parameter], replay: Replay) -> None:
        self._parameters, self._replay = parameters, replay
        whole = sum(parameter.size_bytes for parameter in replay.workload.parameters)
        self._share = sum(parameter.nbytes for parameter in parameters) / whole if whole else 1.0

    def step(self) -> None:
        """Reset the gradients and wait until the optimizer's time is over."""
        self._replay.begin()
        for parameter in self._parameters:
            parameter.grad = None
        optimizer_s = float(self._replay.workload.optimizer.device_s[self._replay.iteration])
        self._replay.end(self._share * optimizer_s)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: `step` has reset the gradients in the recorded time, which includes that."""


class _TimedModule(nn.Module):
    """Parameters and buffers under their recorded names, and a forward that builds the chain of timed layers."""

    _replay: Replay
    _gradients: list[_Gradient]
    _announce: Callable[[Sequence[int]], None] | None = None

    def __init__(self, workload: Workload, replay: Replay) -> None:
        super().__init__()
        for parameter in workload.parameters:
            if parameter.sparse:
                raise WorkloadError(f"the gradient of {parameter.name} is sparse; timed layers make dense ones")
            dtype = getattr(torch, parameter.dtype)
            value = nn.Parameter(torch.zeros(parameter.shape, dtype=dtype, device=replay.device))
            owner, name = _owner(self, parameter.name)
            owner.register_parameter(name, value)
        for buffer in workload.buffers:
            owner, name = _owner(self, buffer.name)
            owner.register_buffer(
                name, torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype), device=replay.device)
            )
        named = dict(self.named_parameters())
        if list(named) != [parameter.name for parameter in workload.parameters]:
            raise WorkloadError("its parameters are not in the order of a module tree", place=workload.name)
        self._replay = replay
        self._gradients = [_Gradient(p, i, replay.device) for i, p in enumerate(named.values())]

    def announce_forward(self, announce: Callable[[Sequence[int]], None]) -> None:
        """Call `announce` with parameters at the time at which forward first needs them, from now on."""
        self._announce = announce
        use = self._replay.workload.forward_use_s
        self._uses = uses_in_order(np.zeros(len(self._gradients)) if use is None else use.device_s)

    def forward(self, samples: Tensor) -> Tensor:
        replay = self._replay
        replay.begin()
        order = replay.next_iteration()
        self._use_parameters(after_s=-1.0, until_s=0.0)
        value = _apply(_Tail, torch.zeros((), device=samples.device, requires_grad=True), replay)
        for index in reversed(order):
            gradient = self._gradients[index]
            value = _apply(_Layer, value, gradient.parameter, gradient, replay)
        loss = _apply(_Start, value, replay)
        self._use_parameters(after_s=0.0, until_s=float("inf"))
        replay.end(float(replay.workload.forward.device_s[replay.iteration]))
        return loss

    def _use_parameters(self, *, after_s: float, until_s: float) -> None:
        """Announce what forward needs between two of its times; the first before the graph is built, as it may wait."""
        replay, announce = self._replay, self._announce
        if announce is None:
            return
        forward_s = float(replay.workload.forward.device_s[replay.iteration])
        for use_s, indices in self._uses:
            if after_s < use_s <= until_s:
                replay.reach(min(use_s, forward_s))
                with replay.beside():
                    announce(indices)


def uses_in_order(times: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> list[tuple[float, list[int]]]:
    """Return when forward first needs which parameters, in order of time; those it never needs come at its end.

    >>> uses_in_order([0.0, 0.5, float("nan"), 0.0])
    [(0.0, [0, 3]), (0.5, [1]), (inf, [2])]
    """
    found: dict[float, list[int]] = {}
    for index in np.argsort(np.asarray(times), kind="stable"):
        use_s = float("inf") if np.isnan(times[index]) else float(times[index])
        found.setdefault(use_s, []).append(int(index))
    return list(found.items())


class _Gradient:
    """What a timed layer returns: always the same values, in memory that the gradient may own until it is reset."""

    def __init__(self, parameter: nn.Parameter, index: int, device: torch.device) -> None:
        self.parameter, self.index = parameter, index
        self._on_cpu = device.type == "cpu"
        self._memory: Tensor | None = None

    def make(self) -> Tensor:
        """Return the gradient; a CPU writes memory only where the last one was changed after it was handed out.

        A GPU always does: to look first would make its host wait.
        """
        value = gradient_value(self.index)
        if self.parameter.grad is not None:
            return torch.full_like(self.parameter, value)
        if self._memory is None:
            self._memory = torch.empty_like(self.parameter)
        if not self._on_cpu or (self._memory.numel() and self._memory.view(-1)[0].item() != value):
            self._memory.fill_(value)
        return self._memory.detach()


def gradient_value(index: int) -> float:
    """Return the value of every element of the gradient of parameter `index`: small, and exact in any float type."""
    return (index % 32 + 1) / 256


class _Start(torch.autograd.Function):
    """Start the clock of a backward whose loss did not; the last of forward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, replay: Replay) -> Tensor:
        ctx.replay = replay
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if not ctx.replay.running:
            ctx.replay.begin()
        return gradients[0], None


class _Layer(torch.autograd.Function):
    """Return one parameter's gradient at its time."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, parameter: Tensor, gradient: _Gradient, replay: Replay) -> Tensor:
        ctx.gradient, ctx.replay = gradient, replay
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gradient: _Gradient = ctx.gradient
        made = gradient.make()
        ctx.replay.reach_gradient(gradient.index)
        return gradients[0], made, None, None


class _Tail(torch.autograd.Function):
    """Take what backward took after its last gradient; the first of forward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, replay: Replay) -> Tensor:
        ctx.replay = replay
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        replay: Replay = ctx.replay
        replay.end(float(replay.workload.backward.device_s[replay.iteration]))
        return gradients[0], None


def _apply(function: type[torch.autograd.Function], *arguments: object) -> Tensor:
    return as_tensor(function.apply(*arguments))  # type: ignore[no-untyped-call]


def _gradients_in_order(workload: Workload, iteration: int) -> list[int]:
    ready = workload.gradient_ready_s[iteration]
    return [index for index in workload.arrival_order(iteration) if not np.isnan(ready[index])]


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    *path, last = name.split(".")
    module = root
    for step in path:
        if step not in module._modules:
            module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    return module, last


def _batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
    return Batch((torch.zeros(size, device=device),), ())
