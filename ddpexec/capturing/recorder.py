"""Stamps of one process's iterations on the host clock and, on a GPU, as CUDA events beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ddpexec.capturing.device_pass import DevicePass
from ddpexec.ddp.parameters import collect
from ddpsim.errors import WorkloadError
from ddpsim.workload import Phase
from ddpsim.workload.kineto.events import DeviceUse
from ddpsim.workload.profile import Seconds

_NANOSECOND = 9


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment: seconds on the host clock, and the place in the device's stream."""

    host_s: float
    event: torch.cuda.Event | None

    def device_since(self, start: Stamp) -> float:
        """Return seconds on the device since `start`; on a CPU the host's."""
        if self.event is None or start.event is None:
            return self.host_s - start.host_s
        return float(start.event.elapsed_time(self.event)) / 1e3


@dataclass(slots=True)
class Record:
    """Stamps of one iteration."""

    forward: Stamp | None = None
    backward: Stamp | None = None
    gradients: dict[int, Stamp] = field(default_factory=dict)
    backward_end: Stamp | None = None
    end: Stamp | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """What a workload needs of the recorded iterations; see `ddpsim.workload.Workload`."""

    forward: Phase
    backward: Phase
    optimizer: Phase
    gradient_hook_s: Seconds
    gradient_ready_s: Seconds
    synchronises: tuple[str, ...]
    how: str


class Recorder:
    """Hooks on a module and on autograd's entry that stamp its iterations."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters = collect(module).tensors
        if not self._parameters:
            raise WorkloadError("no parameter of the module needs a gradient", place="Capture")
        self.device = self._parameters[0].device
        self.precision = "fp32"
        self.batch_size: int | None = None
        self._records: list[Record] = []
        self._current = Record()
        self._handles: list[Callable[[], None]] = []
        self._pass = DevicePass(self.device) if self.device.type == "cuda" else None

    @property
    def iterations(self) -> int:
        """Iterations ended so far."""
        return len(self._records)

    @property
    def profile_iterations(self) -> int:
        """Iterations run under the profiler after those that are timed."""
        return 0 if self._pass is None else self._pass.iterations

    @property
    def profiled(self) -> bool:
        """Whether the profiled pass is over, or none is needed."""
        return self._pass is None or self._pass.done

    def install(self) -> None:
        """Put the hooks in place."""
        self._handles.append(self._module.register_forward_pre_hook(self._on_forward, with_kwargs=True).remove)
        for index, parameter in enumerate(self._parameters):
            hook = self._gradient_hook(index)
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._handles.append(handle.remove)
        self._handles.append(self._watch_backward())

    def remove(self) -> None:
        """Take every hook away again."""
        while self._handles:
            self._handles.pop()()
        if self._pass is not None:
            self._pass.stop()

    def end_iteration(self) -> float:
        """Close the current iteration; return its seconds on the host."""
        record, record.end = self._current, self._stamp()
        start = record.forward
        if start is None or record.backward is None or record.backward_end is None:
            missing = "forward of the module" if start is None else "backward"
            remedy = "call step() once after each forward, backward and optimizer step"
            raise WorkloadError(f"no {missing}", place=f"iteration {self.iterations}", remedy=remedy)
        self._records.append(record)
        self._current = Record()
        if self._pass is not None:
            self._pass.end_iteration()
        return record.end.host_s - start.host_s

    def start_profile(self) -> None:
        """Begin the profiled pass, where there is a device to look at."""
        if self._pass is not None:
            self._pass.start()

    def times(self, skip: int, count: int) -> Times:
        """Return the times of `count` iterations after the first `skip`."""
        records = self._records[skip : skip + count]
        use = None
        if self._pass is not None:
            torch.cuda.synchronize(self.device)
            use = self._pass.use()
        hook, ready = (np.full((count, len(self._parameters)), np.nan) for _ in range(2))
        for row, record in enumerate(records):
            assert record.backward is not None
            for index, stamp in record.gradients.items():
                hook[row, index] = round(stamp.host_s - record.backward.host_s, _NANOSECOND)
                ready[row, index] = round(max(stamp.device_since(record.backward), 0.0), _NANOSECOND)

        def phase(name: str, start: str, end: str) -> Phase:
            return _phase([(getattr(record, start), getattr(record, end)) for record in records], name, use)

        how = "" if use is None else ", CUDA events; busy time and waits from the profiler, in iterations of their own"
        return Times(
            phase("forward", "forward", "backward"),
            phase("backward", "backward", "backward_end"),
            phase("optimizer", "backward_end", "end"),
            hook,
            ready,
            () if use is None else use.synchronises,
            how,
        )

    def _stamp(self) -> Stamp:
        if self.device.type != "cuda":
            return Stamp(time.perf_counter(), None)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return Stamp(time.perf_counter(), event)

    def _on_forward(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not torch.is_grad_enabled():
            return  # evaluation between training steps
        if self._current.forward is not None:
            remedy = "capture a step with one forward; accumulation is `--no-sync-every` of the prediction"
            raise WorkloadError("a second forward", place=f"iteration {self.iterations}", remedy=remedy)
        if self.iterations == 0:
            self.precision = self._find_precision()
            first = next((x for x in [*args, *kwargs.values()] if isinstance(x, Tensor) and x.dim() > 0), None)
            self.batch_size = None if first is None else int(first.shape[0])
        self._current.forward = self._stamp()
        self._mark("forward")

    def _gradient_hook(self, index: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            self._current.gradients[index] = self._stamp()

        return hook

    def _watch_backward(self) -> Callable[[], None]:
        """Stamp around `torch.autograd.backward`, through which `loss.backward()` goes; return the undoing."""
        original = torch.autograd.backward

        def backward(*args: object, **kwargs: object) -> None:
            if self._current.backward is not None:
                remedy = "capture a step with one backward; accumulation is `--no-sync-every` of the prediction"
                raise WorkloadError("a second backward", place=f"iteration {self.iterations}", remedy=remedy)
            self._current.backward = self._stamp()
            self._mark("backward")
            original(*args, **kwargs)  # type: ignore[arg-type]
            self._current.backward_end = self._stamp()
            self._mark("optimizer")

        torch.autograd.backward = backward

        def restore() -> None:
            torch.autograd.backward = original

        return restore

    def _mark(self, phase: str) -> None:
        if self._pass is not None:
            self._pass.mark(phase)

    def _find_precision(self) -> str:
        if torch.is_autocast_enabled(self.device.type):
            return "amp"
        if all(parameter.dtype == torch.bfloat16 for parameter in self._parameters):
            return "bf16"
        tf32 = self.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        return "tf32" if tf32 else "fp32"


def _phase(stamps: list[tuple[Stamp, Stamp]], name: str, use: DeviceUse | None) -> Phase:
    """Return a phase's host and busy device times; where the host waited for the device, without the wait."""
    host = np.array([end.host_s - start.host_s for start, end in stamps])
    device = np.array([end.device_since(start) for start, end in stamps])
    if use is not None:
        host = np.maximum(host - use.waited_s[name], 0.0)
        if use.busy_s[name] > 0:  # a profiler that may not look at the device sees nothing
            device = np.minimum(device, use.busy_s[name])
    return Phase(host.round(_NANOSECOND), device.round(_NANOSECOND))
