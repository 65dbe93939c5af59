"""The recorder of a capture: stamps of one process's iterations on the host's clock and, on a GPU, as CUDA events.

Start with `Recorder`. On a GPU it works in three passes, so that none disturbs another: the iterations that are timed;
`CALL_ITERATIONS` in which calls of modules are stamped, from which `forward_use_of` derives when forward first needs
each parameter; and a `DevicePass` under the profiler, which tells how long the device is busy in each phase and where
the host waits for it. The profiler slows the host but hardly the kernels, so nothing else is timed under it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from ddpexec.capturing.devices import NANOSECOND, CopiesBetween, DevicesStamps, Stamp, check_devices
from ddpexec.capturing.forward_calls import FirstUse, ForwardCalls
from ddpexec.capturing.phases import Phases, autocast_dtype_of, batch_size_of, precision_of
from ddpexec.ddp.parameters import collect
from ddpsim.common.errors import WorkloadError
from ddpsim.workload import Phase
from ddpsim.workload.kineto.device_use import DeviceUse, device_use
from ddpsim.workload.profile import ForwardUse, median_use

PREFIX = "ddpexec:"


class DevicePass:
    """Profiles a few iterations whose phases are marked one after the other.

    Args:
        device: a GPU, which need not be the current one.

    Attributes:
        iterations: how many are profiled.
        done: whether they are over.
    """

    iterations = 2

    def __init__(self, device: torch.device) -> None:
        self.done = False
        self._device = device
        self._profiler: profile | None = None
        self._mark: record_function | None = None
        self._left = self.iterations
        self._use: DeviceUse | None = None

    def start(self) -> None:
        """Begin with the next iteration."""
        if self._profiler is None and not self.done:
            torch.cuda.synchronize(self._device)
            self._profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self._profiler.start()

    def mark(self, phase: str) -> None:
        """Begin `phase`, which ends the one before."""
        if self._profiler is None:
            return
        self._close_mark()
        self._mark = record_function(PREFIX + phase)
        self._mark.__enter__()  # type: ignore[no-untyped-call]

    def end_iteration(self) -> None:
        """Count an iteration; after the last one read the profile."""
        if self._profiler is None or self._mark is None:
            return
        self._close_mark()
        self._left -= 1
        if self._left == 0:
            profiler, self._profiler = self._profiler, None
            torch.cuda.synchronize(self._device)
            profiler.stop()
            self._use = device_use(_events(profiler), PREFIX)
            self.done = True

    def stop(self) -> None:
        """End the profiler early, where it still runs."""
        if self._profiler is not None:
            self._close_mark()
            self._profiler.stop()
            self._profiler = None

    def use(self) -> DeviceUse:
        """Return what the pass found."""
        assert self._use is not None
        return self._use

    def _close_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None


def _events(profiler: profile) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, object]] = json.loads(path.read_text())["traceEvents"]
        return events


@dataclass(frozen=True, slots=True)
class StampedForward:
    """A forward holds when it began and ended, and when it needed each parameter, by registration index."""

    start: Stamp
    end: Stamp
    needs: Sequence[FirstUse[Stamp] | None]

    @property
    def host_s(self) -> float:
        """Seconds of the host."""
        return self.end.host_s - self.start.host_s

    @property
    def device_s(self) -> float:
        """Seconds of the device, idle ones among them."""
        return self.end.device_since(self.start)

    def use(self) -> ForwardUse:
        """Return the needs as seconds from the start."""
        moments = [None if need is None else need.moment for need in self.needs]
        host = [np.nan if moment is None else moment.host_s - self.start.host_s for moment in moments]
        device = [np.nan if moment is None else max(moment.device_since(self.start), 0.0) for moment in moments]
        return ForwardUse(np.array(host), np.array(device))

    def tells(self) -> bool:
        """Whether any call inside was seen, so that not all needs are but the start."""
        return any(need is not None and (need.moment is not self.start or not need.around) for need in self.needs)


def forward_use_of(forwards: Sequence[StampedForward], host_s: float, device_s: float) -> tuple[ForwardUse | None, str]:
    """Return when forward first needs each parameter, the median of `forwards`, and for people how that is known.

    Args:
        forwards: whose hooks make them a little longer than those that are recorded without.
        host_s, device_s: what forward takes on either clock in the recorded iterations.
    """
    if not any(forward.tells() for forward in forwards):
        return None, "not known: no call of a module that owns parameters was seen; all count as at the start"
    # Stamps in the calls make forward longer, so what they tell is scaled to the forward without them.
    host, device = (
        whole / own if (own := float(np.median([getattr(forward, clock) for forward in forwards]))) > 0 else 1.0
        for clock, whole in (("host_s", host_s), ("device_s", device_s))
    )
    use = median_use([forward.use() for forward in forwards]).scale(host, device)
    rounded = ForwardUse(use.host_s.round(NANOSECOND), use.device_s.round(NANOSECOND))
    return rounded, "measured: pre-hooks of the modules that own parameters" + _make_around(forwards)


def _make_around(forwards: Sequence[StampedForward]) -> str:
    needs = zip(*(forward.needs for forward in forwards), strict=True)
    count = sum(any(need is not None and need.around for need in of_one) for of_one in needs)
    if not count:
        return ""
    whose = f"{count} of {len(forwards[0].needs)} parameters are of modules that are not called themselves"
    return f"; {whose}: the call of the next one around them is taken"


CALL_ITERATIONS = 3
"""Iterations of a GPU's capture in which calls of modules are stamped; chosen by hand: their median leaves one out."""


@dataclass(slots=True)
class IterationStamps:
    """A record holds the stamps of one iteration."""

    forward: Stamp | None = None
    calls: Mapping[int, Stamp] = field(default_factory=dict)
    backward: Stamp | None = None
    gradients: dict[int, Stamp] = field(default_factory=dict)
    backward_end: Stamp | None = None
    end: Stamp | None = None


class Recorder:
    """Stamps a module's iterations.

    Calls of modules inside are stamped too: on a CPU in all iterations; on a GPU, where that would keep the host from
    running ahead, in `CALL_ITERATIONS` of their own after those that are timed.
    """

    def __init__(self, module: nn.Module) -> None:
        model = collect(module)
        self._parameters, self._everything = model.tensors, (*model.tensors, *model.frozen_tensors)
        if not self._parameters:
            raise WorkloadError("no parameter of the module needs a gradient", place="Capture")
        self.device = self._parameters[0].device
        self.devices = list(dict.fromkeys(parameter.device for parameter in self._parameters))
        check_devices(self.devices)
        self.copies = CopiesBetween()
        self._stamps = DevicesStamps(self.devices) if len(self.devices) > 1 else None
        self.precision = "fp32"
        self.autocast_dtype: str | None = None
        self.batch_size: int | None = None
        self._records: list[IterationStamps] = []
        self._current = IterationStamps()
        self._phases = Phases(module, self._parameters, self)
        self._calls = ForwardCalls(module, self._everything, self._stamp, len(self._parameters))
        self._pass = DevicePass(self.device) if self.device.type == "cuda" else None

    @property
    def iterations(self) -> int:
        """Iterations ended so far."""
        return len(self._records)

    @property
    def call_iterations(self) -> int:
        """Iterations in which only calls of modules are stamped, after those that are timed."""
        return 0 if self._pass is None else CALL_ITERATIONS

    @property
    def further_iterations(self) -> int:
        """Iterations after those that are timed: for the calls of modules, and under the profiler."""
        return 0 if self._pass is None else CALL_ITERATIONS + self._pass.iterations

    @property
    def profiled(self) -> bool:
        """Whether the profiled pass is over, or none is needed."""
        return self._pass is None or self._pass.done

    def install(self) -> None:
        """Put the hooks in place."""
        self._phases.install()
        if self.device.type != "cuda":
            self._calls.install()

    def remove(self) -> None:
        """Take every hook away again."""
        self._phases.remove()
        self._calls.remove()
        self.copies.end()
        if self._pass is not None:
            self._pass.stop()

    def end_iteration(self) -> float:
        """Close the current iteration; return its seconds on the host."""
        record, record.end = self._current, self._stamp()
        self._phases.end_step()
        assert record.forward is not None
        self._records.append(record)
        self._current = IterationStamps()
        if self._pass is not None:
            self._pass.end_iteration()
        return record.end.host_s - record.forward.host_s

    def start_calls(self) -> None:
        """Begin to stamp calls of modules, where that is not done in all iterations."""
        if self.device.type == "cuda":
            self._calls.install()
        self.copies.wanted = self._stamps is not None

    def start_profile(self) -> None:
        """Begin the profiled pass, where there is a device to look at."""
        if self._pass is not None:
            self._calls.remove()
            self._pass.start()

    def times(self, skip: int, count: int) -> tuple[dict[str, Any], str, str]:
        """Return the times of `count` iterations after the first `skip`, by a `Workload`'s fields, and how they came.

        The last is how it is known when forward uses parameters.
        """
        records = self._records[skip : skip + count]
        use = None
        if self._pass is not None:
            for device in self.devices:
                torch.cuda.synchronize(device)
            use = self._pass.use()
        # Both clocks count from the start of backward: the host's hooks directly, the device by events on its stream. A
        # gradient that an iteration did not produce stays NaN.
        hook, ready = (np.full((count, len(self._parameters)), np.nan) for _ in range(2))
        for row, record in enumerate(records):
            assert record.backward is not None
            for index, stamp in record.gradients.items():
                hook[row, index] = round(stamp.host_s - record.backward.host_s, NANOSECOND)
                ready[row, index] = round(max(stamp.device_since(record.backward), 0.0), NANOSECOND)

        def phase(name: str, start: str, end: str) -> Phase:
            return phase_of([(getattr(record, start), getattr(record, end)) for record in records], name, use)

        forward = phase("forward", "forward", "backward")
        use_s, use_how = self._forward_use(records, skip + count, forward)
        how = "" if use is None else ", CUDA events; busy time and waits from the profiler, in iterations of their own"
        fields = {
            "forward": forward,
            "backward": phase("backward", "backward", "backward_end"),
            "optimizer": phase("optimizer", "backward_end", "end"),
            "gradient_hook_s": hook,
            "gradient_ready_s": ready,
            "forward_use_s": use_s,
            "synchronises": () if use is None else use.synchronises,
        }
        return fields, how, use_how

    def _forward_use(
        self, timed: Sequence[IterationStamps], after: int, forward: Phase
    ) -> tuple[ForwardUse | None, str]:
        stamped = self._records[after : after + CALL_ITERATIONS] if self.device.type == "cuda" else timed
        whole = [_forward(record) for record in timed]
        device_s = float(np.median([end.device_since(start) for start, end in whole]))
        forwards = [
            StampedForward(*_forward(record), self._calls.find_needs(record.calls, record.gradients))
            for record in stamped
        ]
        return forward_use_of(forwards, float(np.median(forward.host_s)), device_s)

    def _stamp(self) -> Stamp:
        if self._stamps is not None:
            return self._stamps.now()
        if self.device.type != "cuda":
            return Stamp(time.perf_counter(), None)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return Stamp(time.perf_counter(), event)

    def on_forward(self, inputs: Sequence[object]) -> None:
        """Stamp the start of forward."""
        if self.iterations == 0:
            self.precision, self.batch_size = precision_of(self._everything), batch_size_of(inputs)
            self.autocast_dtype = autocast_dtype_of(self._parameters)
        self._current.forward = self._stamp()
        self._current.calls = self._calls.begin(self._current.forward)
        self._mark("forward")
        self.copies.begin()

    def on_backward(self) -> None:
        """Stamp the start of backward."""
        self.copies.end()
        self._current.backward = self._stamp()
        self._calls.end()
        self._mark("backward")

    def on_gradient(self, index: int, parameter: Tensor) -> None:
        """Stamp a gradient."""
        self._current.gradients[index] = self._stamp()

    def on_backward_end(self) -> None:
        """Stamp the end of backward."""
        self._current.backward_end = self._stamp()
        self._mark("optimizer")

    def _mark(self, phase: str) -> None:
        if self._pass is not None:
            self._pass.mark(phase)


def _forward(record: IterationStamps) -> tuple[Stamp, Stamp]:
    assert record.forward is not None
    assert record.backward is not None
    return record.forward, record.backward


def phase_of(stamps: list[tuple[Stamp, Stamp]], name: str, use: DeviceUse | None) -> Phase:
    """Return a phase's host and busy device times; where the host waited for the device, without the wait."""
    host = np.array([end.host_s - start.host_s for start, end in stamps])
    device = np.array([end.device_since(start) for start, end in stamps])
    # Host time that the profiler saw in waits for the device is no work of the host; device time beyond what was busy
    # is idle time, in which the device waited for the host.
    if use is not None:
        host = np.maximum(host - use.waited_s[name], 0.0)
        if use.busy_s[name] > 0:  # a profiler that may not look at the device sees nothing
            device = np.minimum(device, use.busy_s[name])
    return Phase(host.round(NANOSECOND), device.round(NANOSECOND))
