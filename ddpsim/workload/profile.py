"""A workload: one rank's training iteration without communication, on two clocks.

On a GPU the host runs ahead of the device: a gradient's hook fires on the host when the kernel that makes it is
queued, and the gradient exists when the device completes that kernel. On a CPU the two coincide.

`ForwardUse` says when forward first needs each parameter: a schedule that lets forward wait for one goes by it.

Start at `Workload`, whose fields are the file's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import Dtype, FrozenParameter, Shape, repeated_name
from ddpsim.common.documents.fields import STATED, WRITTEN, Count, Index, Key, NotInFile, Number, OneOf, Text
from ddpsim.common.errors import WorkloadError
from ddpsim.common.options.input_stage import InputStage
from ddpsim.workload.devices import DevicePart, check_parts, device_numbers
from ddpsim.workload.layer_messages import ExpertParallel, TensorParallel
from ddpsim.workload.operators import StepOperators
from ddpsim.workload.times import Seconds, Table, Times

MOST_S = 1e9
"""Seconds at most of any time of an iteration; chosen by hand, thirty years: sums of times are then numbers too."""


@dataclass(frozen=True, slots=True)
class ForwardUse:
    """When forward first needs each parameter, from the start of forward.

    Attributes:
        host_s: seconds until the host launches the first operator that reads it, by registration index; NaN where
            forward reads it nowhere.
        device_s: seconds until the device begins that operator; likewise. Time in which it idles is in it.
    """

    host_s: Annotated[Times, Key(("host",))]
    device_s: Annotated[Times, Key(("device",))]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ForwardUse):
            return NotImplemented
        pairs = ((self.host_s, other.host_s), (self.device_s, other.device_s))
        return all(np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in pairs)

    @classmethod
    def at_the_start(cls, parameters: int) -> ForwardUse:
        """Return that of a forward which needs all of so many parameters when it starts."""
        return cls(np.zeros(parameters), np.zeros(parameters))

    def scale(self, host: float, device: float) -> ForwardUse:
        """Return this with the host's times multiplied by `host` and the device's by `device`."""
        return ForwardUse(self.host_s * host, self.device_s * device)

    def shares(self, host_s: float, device_s: float) -> ForwardUse:
        """Return this as shares of a forward of so many seconds; NaN where forward never needs a parameter.

        Where the device idles for want of launches, its last use is later than its busy time: that is the whole then.
        """
        return ForwardUse(_shares(self.host_s, host_s), _shares(self.device_s, device_s))

    def scale_device(self, device: float) -> ForwardUse:
        """Return this with the device's work multiplied by `device`; no operator begins before it is launched.

        The two clocks start apart, so that an operator may begin before its launch on the other: it did then too.
        """
        launched_s = np.minimum(self.host_s, self.device_s)
        return ForwardUse(self.host_s, np.maximum(self.device_s * device, launched_s))

    def merge_clocks(self) -> ForwardUse:
        """Return this with host and device as one clock: the later of the two."""
        seconds = np.maximum(self.host_s, self.device_s)
        return ForwardUse(seconds, seconds)

    def check(self, parameters: int, frozen: int = 0) -> None:
        """Hold this against the number of parameters, and of those that are frozen, of which all or none are there.

        Raises:
            WorkloadError: another number of times, a time that is negative or above `MOST_S`, or on one clock only.
        """
        for clock, times in (("host", self.host_s), ("device", self.device_s)):
            place = f"forward_use_s.{clock}"
            if times.shape not in ((parameters,), (parameters + frozen,)):
                raise WorkloadError(f"{len(times)} times for {parameters} parameters", place=place)
            if len(bad := np.flatnonzero((times > MOST_S) | (times < 0))):
                raise WorkloadError(f"{times[bad[0]]} is not a time in seconds", place=f"{place}.{bad[0]}")
        if len(bad := np.flatnonzero(np.isnan(self.host_s) != np.isnan(self.device_s))):
            what, remedy = "a parameter has one of its two times only", "give both or neither"
            raise WorkloadError(what, place=f"forward_use_s.device.{bad[0]}", remedy=remedy)


def median_use(uses: Sequence[ForwardUse]) -> ForwardUse:
    """Return the median of each parameter's times over those of `uses`, one at least, in which forward needs it."""
    return ForwardUse(_medians([use.host_s for use in uses]), _medians([use.device_s for use in uses]))


def _shares(times: NDArray[np.float64], whole_s: float) -> NDArray[np.float64]:
    whole_s = max(whole_s, float(np.max(times, initial=0.0, where=~np.isnan(times))))
    return times / whole_s if whole_s > 0 else times


def _medians(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    table = np.array(rows)
    medians, used = np.full(table.shape[1], np.nan), ~np.isnan(table).all(axis=0)
    medians[used] = np.nanmedian(table[:, used], axis=0)
    return medians


_TOKENS = re.compile(r"sequence of (\d{1,9}) tokens")

LEFT_OUT = "left_out"
"""Key of a workload's provenance: sentences on what of its step is in none of its times."""

SYNCHRONISATION_POINTS = ("after_forward", "after_backward", "after_optimizer")


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase holds the times of forward, backward or optimizer in each recorded iteration.

    Attributes:
        host_s: seconds the host took to launch the phase, shape (iterations,).
        device_s: seconds the device was *busy* with it, shape (iterations,); equal to `host_s` on a CPU.
    """

    host_s: Times
    device_s: Times

    def pick(self, iterations: slice) -> Phase:
        """Return the phase in some of its recorded iterations."""
        return Phase(self.host_s[iterations], self.device_s[iterations])

    def __eq__(self, other: object) -> bool:
        return _are_equal(self, other) if isinstance(other, Phase) else NotImplemented


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of the module, which DDP broadcasts before each forward; `device` where a rank has several."""

    name: Text
    shape: Shape
    dtype: Annotated[Dtype, STATED] = "float32"
    device: Text | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffer."""
        return Parameter(self.name, self.shape, self.dtype).size_bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """Iterations of one rank without DDP, recorded or estimated.

    Attributes:
        name: model's name, or `NAME@DEVICE-PRECISION-bN`.
        device: the hardware whose pace it keeps, e.g. `V100`, `cpu`.
        precision: `fp32`, `tf32`, `bf16` or `amp`.
        batch_size: samples an iteration and rank.
        threads: host threads the computation used; None on a GPU.
        estimated: True where times were computed rather than measured; `provenance` says how.
        parameters: those that take a gradient, in registration order.
        buffers: in registration order.
        forward, backward, optimizer: per recorded iteration; `optimizer` includes zero_grad.
        gradient_hook_s: host time of each gradient's hook from the host's start of backward, shape (iterations,
            parameters); NaN where a parameter had no gradient.
        gradient_ready_s: completion of each gradient on the device from the *device's* start of backward; likewise.
        synchronises: those of `SYNCHRONISATION_POINTS` at which the host waits for the device in every iteration
            (reading the loss, gradient clipping); empty where the host runs ahead.
        provenance: how it came about: versions, command, sources of figures.
        arithmetic_share: share of device time that goes with the device's clock; the rest goes with its memory's, which
            is the same on all devices of a model. 1 where it is not known.
        ranks: how many computed at once on the machine while it was recorded, and so share in its times.
        timed: whether layers that sleep keep its pace: gradients arrive at their times whatever the host does.
        forward_use_s: when forward first needs each parameter, the median of the recorded iterations; None where it is
            not known.
        activations_bytes: at the peak of a step, bytes of tensors beside parameters, gradients, buffers, optimizer
            state and the batch; None where it is not known.
        optimizer_kind: the step's optimizer, as `ddpsim.workload.estimate.ModelShape` names it; None where it is not
            known.
        autocast_dtype: of a step in `amp`, `bfloat16` where that is what autocast casts to; None is float16, or that it
            is not known.
        operators: of the step, from which it is estimated on other GPUs and for other batches; None where they are not
            known.
        input_stage: how the recorded step's batches are loaded and copied; None where it is not known.
        sequence_length: tokens of a sample, where the file says so; `tokens_per_sample` knows estimates' too.
        tensor: of a step that one of several ranks computes a part of, their number and messages; None of a whole step.
            No file has it.
        experts: likewise, of a step whose mixtures of experts are spread over ranks.
        boundary_bytes: of activations between two layers of a transformer; None where not counted, or where they are
            not known. No file has it.
        devices: of a rank that has several, in forward's order; empty where it has one.
        frozen: parameters that take no gradient, in registration order. Where an index may be of any parameter, theirs
            follow those of `parameters`: `forward_use_s` may have them too.

    Raises:
        WorkloadError: where shapes disagree, two parameters share a name, a time is negative or above `MOST_S`, one
            clock lacks a gradient or a forward use, an iteration has no gradient, or as `check_parts` says of devices.
    """

    SCHEMA: ClassVar = "ddpsim.workload/1"
    KIND: ClassVar = "workload file"

    name: Text
    device: Text
    precision: Text
    batch_size: Count
    threads: Count | None
    estimated: bool
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    forward: Phase
    backward: Phase
    optimizer: Phase
    gradient_hook_s: Table
    gradient_ready_s: Table
    synchronises: Annotated[tuple[str, ...], STATED] = ()
    arithmetic_share: Annotated[Number, WRITTEN] = 1.0
    ranks: Count = 1
    forward_use_s: ForwardUse | None = None
    activations_bytes: Index | None = None
    optimizer_kind: Text | None = None
    autocast_dtype: Annotated[str, OneOf(("float16", "bfloat16"))] | None = None
    input_stage: InputStage | None = None
    sequence_length: Count | None = None
    frozen: tuple[FrozenParameter, ...] = ()
    devices: tuple[DevicePart, ...] = ()
    operators: StepOperators | None = None
    provenance: Annotated[Mapping[str, object], STATED] = field(default_factory=dict)
    timed: Annotated[bool, NotInFile] = False
    tensor: Annotated[TensorParallel | None, NotInFile] = None
    experts: Annotated[ExpertParallel | None, NotInFile] = None
    boundary_bytes: Annotated[int | None, NotInFile] = None

    def __post_init__(self) -> None:
        if self.iterations == 0 or not self.parameters:
            raise WorkloadError("a workload needs at least one iteration and one parameter", place=self.name)
        if (same := repeated_name([parameter.name for parameter in self.all_parameters])) is not None:
            what = f"parameters {same[0]} and {same[1]} are both named {self.all_parameters[same[0]].name!r}"
            raise WorkloadError(what, place=f"parameters.{same[1]}", remedy="give each parameter a name of its own")
        self._check_phases()
        self._check_gradients()
        if self.forward_use_s is not None:
            self.forward_use_s.check(len(self.parameters), len(self.frozen))
        for place, each in enumerate(self.frozen):
            if not 0 <= each.before <= len(self.parameters):
                what, remedy = f"{each.before} of {len(self.parameters)} parameters are before it", "count from 0"
                raise WorkloadError(what, place=f"frozen.{place}.before", remedy=remedy)
        if self.devices:
            check_parts(self.devices, self.parameters, MOST_S)
        if not 0 <= self.arithmetic_share <= 1:
            what = f"{self.arithmetic_share!r} is not a share"
            raise WorkloadError(what, place="arithmetic_share", remedy="give a number from 0 to 1")
        if unknown := [point for point in self.synchronises if point not in SYNCHRONISATION_POINTS]:
            remedy = f"use {', '.join(SYNCHRONISATION_POINTS)}"
            raise WorkloadError(f"unknown synchronisation point {unknown[0]!r}", place="synchronises", remedy=remedy)

    def _check_phases(self) -> None:
        for name in ("forward", "backward", "optimizer"):
            phase: Phase = getattr(self, name)
            for clock in ("host_s", "device_s"):
                times: Seconds = getattr(phase, clock)
                if times.shape != (self.iterations,):
                    what = f"{len(times)} iterations, forward has {self.iterations}"
                    raise WorkloadError(what, place=f"{name}.{clock}")
                if bad := _find_first(~(times <= MOST_S) | (times < 0)):
                    raise WorkloadError(f"{times[bad]} is not a time in seconds", place=f"{name}.{clock}.{bad[0]}")

    def _check_gradients(self) -> None:
        shape = (self.iterations, len(self.parameters))
        for name in ("gradient_hook_s", "gradient_ready_s"):
            times = getattr(self, name)
            if times.shape != shape:
                raise WorkloadError(f"shape {times.shape}, expected (iterations, parameters) = {shape}", place=name)
            if bad := _find_first((times > MOST_S) | (times < 0)):
                raise WorkloadError(f"{times[bad]} is not a time in seconds", place=f"{name}.{bad[0]}.{bad[1]}")
        if bad := _find_first(np.isnan(self.gradient_hook_s) != np.isnan(self.gradient_ready_s)):
            place = f"gradient_ready_s.{bad[0]}.{bad[1]}"
            raise WorkloadError("a gradient has one of its two times only", place=place, remedy="give both or neither")
        if bad := _find_first(np.isnan(np.fmax.reduce(self.gradient_hook_s, axis=1))):
            what, remedy = "an iteration without any gradient", "record steps whose backward reaches a parameter"
            raise WorkloadError(what, place=f"gradient_hook_s.{bad[0]}", remedy=remedy)

    def __eq__(self, other: object) -> bool:
        return _are_equal(self, other) if isinstance(other, Workload) else NotImplemented

    def __repr__(self) -> str:
        what = f"{len(self.parameters)} parameters, {self.iterations} iterations"
        return f"<Workload: {self.name}, {self.device_label}, {self.precision}, batch of {self.batch_size}, {what}>"

    @property
    def iterations(self) -> int:
        """Number of recorded iterations."""
        return len(self.forward.host_s)

    @property
    def on_cpu(self) -> bool:
        """Whether host and device are one, so that hooks and copies delay the computation itself."""
        return self.device == "cpu" and not self.timed

    @property
    def one_clock(self) -> bool:
        """Whether the host's time is the computation: on a CPU, and where layers that sleep keep the pace."""
        return self.on_cpu or self.timed

    @property
    def device_shares(self) -> tuple[float, ...]:
        """Share of the parameters' bytes on each device of a rank: all of them on one, as a rule."""
        if not self.devices:
            return (1.0,)
        sizes, whole = [0] * len(self.devices), sum(each.size_bytes for each in self.parameters)
        for number, parameter in zip(device_numbers(self.devices, self.parameters), self.parameters, strict=True):
            sizes[number] += parameter.size_bytes
        return tuple(size / whole for size in sizes)

    @property
    def gpu(self) -> str | None:
        """The GPU that computes it; None where a host does, or layers that sleep."""
        return None if self.one_clock else self.device

    @property
    def device_label(self) -> str:
        """The device as files and outputs name it: `timed V100` where layers that sleep keep the pace of a V100."""
        return f"timed {self.device}" if self.timed else self.device

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of a sample: the file's, or those of `sequence of 128 tokens` that an estimate says a sample is."""
        return self.sequence_length or tokens_of(str(self.provenance.get("sample")))

    @property
    def left_out(self) -> tuple[str, ...]:
        """What of the step is in none of its times, a sentence each."""
        sentences = self.provenance.get(LEFT_OUT)
        return tuple(map(str, sentences)) if isinstance(sentences, list) else ()

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """Those that take a gradient, and behind them the frozen ones."""
        return (*self.parameters, *self.frozen)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(parameter.size_bytes for parameter in self.parameters)

    @property
    def frozen_bytes(self) -> int:
        """Bytes of all frozen parameters."""
        return sum(parameter.size_bytes for parameter in self.frozen)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.size_bytes for buffer in self.buffers)

    @property
    def forward_use_known(self) -> bool:
        """Whether it is known when forward first needs each parameter; where not, all count as needed at its start."""
        return self.forward_use_s is not None

    def forward_shares(self) -> ForwardUse:
        """Return what share of forward, on either clock, is over when it first needs each parameter, from 0 to 1.

        Shares go with a pace, whatever it is scaled by. All are 0, at the start, where nothing is known. Frozen
        parameters follow; one of which it is not known is needed with the next that takes a gradient.
        """
        if self.forward_use_s is None:
            return ForwardUse.at_the_start(len(self.all_parameters))
        use = self.forward_use_s.shares(float(np.median(self.forward.host_s)), float(np.median(self.forward.device_s)))
        count = len(self.parameters)
        if len(use.host_s) > count or not self.frozen:
            return use
        places = [*range(count), *(min(each.before, count - 1) for each in self.frozen)]
        return ForwardUse(use.host_s[places], use.device_s[places])

    def arrival_order(self, iteration: int = 0) -> list[int]:
        """Return registration indices in the order in which hooks fired; parameters without a gradient come last.

        torch appends those when it rebuilds, in registration order.
        """
        hooks = self.gradient_hook_s[iteration]
        return [int(index) for index in np.argsort(np.where(np.isnan(hooks), np.inf, hooks), kind="stable")]

    def pick(self, iterations: slice) -> Workload:
        """Return the workload of some of its recorded iterations."""
        return replace(
            self,
            forward=self.forward.pick(iterations),
            backward=self.backward.pick(iterations),
            optimizer=self.optimizer.pick(iterations),
            gradient_hook_s=self.gradient_hook_s[iterations],
            gradient_ready_s=self.gradient_ready_s[iterations],
        )

    def used_orders(self) -> list[tuple[int, ...]]:
        """Return the arrival order of each recorded iteration, without the parameters that had no gradient."""
        hooks = self.gradient_hook_s
        orders = (self.arrival_order(number) for number in range(self.iterations))
        return [tuple(i for i in order if not np.isnan(hooks[number, i])) for number, order in enumerate(orders)]

    def arrival_orders(self) -> list[tuple[int, ...]]:
        """Return the different arrival orders of all recorded iterations, the first one's first."""
        return list(dict.fromkeys(tuple(self.arrival_order(number)) for number in range(self.iterations)))

    def missing_gradients(self) -> list[frozenset[int]]:
        """Return, by recorded iteration, the registration indices of the parameters that had no gradient."""
        return [frozenset(map(int, np.flatnonzero(np.isnan(hooks)))) for hooks in self.gradient_hook_s]


def tokens_of(sample: str) -> int | None:
    """Return the tokens of a sample, by what is said of it; None where it is no sequence of them.

    >>> tokens_of("sequence of 128 tokens"), tokens_of("sample of 3x224x224")
    (128, None)
    """
    match = _TOKENS.fullmatch(sample)
    return None if match is None else int(match[1])


def _are_equal(one: Phase | Workload, other: Phase | Workload) -> bool:
    """Return whether all fields are equal, arrays by their values, and gradients that are missing in both."""
    pairs = ((getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    return all(
        np.array_equal(mine, theirs, equal_nan=True) if isinstance(mine, np.ndarray) else mine == theirs
        for mine, theirs in pairs
    )


def _find_first(mask: NDArray[np.bool_]) -> tuple[int, ...] | None:
    places = np.argwhere(mask)
    return tuple(int(i) for i in places[0]) if len(places) else None
