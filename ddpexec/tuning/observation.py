"""What ranks saw of some steps, as plain numbers that one rank can send another. No torch is needed to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import FrozenParameter

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sent:
    """A bucket as one rank sent it in one step; moments are seconds of that rank's own clock."""

    size_bytes: int
    started_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Some steps of one rank, in which its gradients were reduced.

    Attributes:
        forward_s, backward_s, optimizer_s: of each step on the host, without what DDP took of it; shape (steps,).
        forward_device_s, backward_device_s, optimizer_device_s: on the device, equal on a CPU.
        hook_s: when each gradient was there, after backward's begin and without DDP's hooks before it; shape
            (steps, parameters), NaN where there was none.
        ready_s: the same on the device.
        plain_hook_s, launching_hook_s: usual seconds of a hook of DDP that launches nothing, and of one that does.
        sent: the buckets of each step, in launch order.
        groups: parameters of each bucket, by number in registration order.
        use_s: when forward first uses each parameter, after its own begin on the host; shape (steps, parameters), NaN
            where it does not. None where nobody has looked: that matters to schemes alone.
        use_device_s: the same on the device.
    """

    forward_s: Seconds
    forward_device_s: Seconds
    backward_s: Seconds
    backward_device_s: Seconds
    optimizer_s: Seconds
    optimizer_device_s: Seconds
    hook_s: Seconds
    ready_s: Seconds
    plain_hook_s: float
    launching_hook_s: float
    sent: Sequence[Sequence[Sent]]
    groups: Sequence[Sequence[int]]
    use_s: Seconds | None = None
    use_device_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """What does not change from step to step.

    Attributes:
        parameters: in registration order.
        device: `cpu`, or the GPU's name.
        backend: `gloo`, `mpi` or `nccl`, of the training's group.
        world_size: of that group.
        flags: options of DDP by their names, those that change a prediction.
        scheme: in force, by its name.
        schemes: that may take its place; empty where DDP alone can be carried out.
        frozen: parameters that take no gradient.
    """

    parameters: tuple[Parameter, ...]
    device: str
    backend: Literal["nccl", "gloo", "mpi"]
    world_size: int
    flags: tuple[tuple[str, bool], ...] = ()
    scheme: str = "ddp"
    schemes: tuple[str, ...] = ()
    frozen: tuple[FrozenParameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """All ranks' steps under each plan that was run: DDP's with the present buckets first, then those that probed.

    Attributes:
        step_s: usual seconds of a step under the first plan, without stamps.
        plans: of each plan, every rank's steps.
        small: bytes of a message too small to take bandwidth, and its allreduce's seconds; None where none was timed.
    """

    job: ObservedJob
    step_s: float
    plans: Sequence[Sequence[RankSteps]]
    small: tuple[int, float] | None = None
