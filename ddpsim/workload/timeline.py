"""Host and device of one process, operator by operator: when gradients are complete in an estimated step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FORWARD_LAUNCH_S = 30e-6
BACKWARD_LAUNCH_S = 40e-6
"""Host time of one operator in eager mode. 60 us is an upper bound forward: ResNet-50's inference takes 10.4 ms on a
V100 at batch sizes 1 to 4 (NVIDIA DeepLearningExamples, ResNet-50 v1.5), with 171 operators. Backward has no Python,
but its convolutions launch twice."""

EAGER_LAUNCH_S = 16e-6
"""The same where every kernel that eager mode dispatches is counted, casts and views of weights too: published steps of
small transformers that the host bounds take 11 to 30 us a kernel (studies/estimates). Between the two by hand, for one
machine's host is no other's: which of the two it is like is a doubt (`EAGER_LAUNCH` in
`ddpsim/prediction/doubts/spreads.py`)."""

ACCUMULATE_S = 2e-6
"""Host time of autograd's node that hands one gradient to its parameter, before the hook."""

LAUNCH_LATENCY_S = 5e-6
"""From the host's launch to the start of a kernel on an idle device."""


@dataclass(slots=True)
class Timeline:
    """Follows one process from launch to launch.

    Args:
        works: device time of each launch of forward, backward and optimizer.
        completes: for each launch of backward the registration indices of the gradients complete with it.
        optimizer_host_s: host time of the optimizer.
        host_factor: on the host's time of everything.
        graphs: whether forward and backward are each launched at once, as a CUDA graph.
        launch_s: host time of one launch of forward, and of backward.

    Attributes:
        gradients: by registration index, when its hook fires and when it is complete, from the start of backward.
        forward: for each launch of forward, when the host makes it and when the device begins it, from the first one's.
    """

    works: Sequence[Sequence[float]]
    completes: Sequence[Sequence[int]]
    optimizer_host_s: float
    host_factor: float = 1.0
    graphs: bool = False
    launch_s: tuple[float, float] = (FORWARD_LAUNCH_S, BACKWARD_LAUNCH_S)
    gradients: dict[int, tuple[float, float]] = field(init=False, default_factory=dict)
    forward: list[tuple[float, float]] = field(init=False, default_factory=list)
    _host: float = field(init=False, default=0.0)
    _device: float = field(init=False, default=0.0)

    @property
    def host_s(self) -> list[float]:
        """Host time of forward, backward and optimizer."""
        accumulated = sum(map(len, self.completes))
        times = [
            self.launch_s[0] * self._launches(0),
            self.launch_s[1] * self._launches(1) + ACCUMULATE_S * accumulated,
            self.optimizer_host_s,
        ]
        return [time * self.host_factor for time in times]

    @property
    def launches(self) -> int:
        """Launches of forward and backward."""
        return self._launches(0) + self._launches(1)

    def _launches(self, phase: int) -> int:
        return min(len(self.works[phase]), 1) if self.graphs else len(self.works[phase])

    def _launch_s(self, phase: int) -> float:
        return self.launch_s[phase] * self.host_factor * self._launches(phase) / max(len(self.works[phase]), 1)

    def run(self, *, wait: bool) -> None:
        """Run until the steady state, two iterations; the second one's moments are kept.

        Args:
            wait: whether the host waits for the device at the end of each.
        """
        for _ in range(2):
            self._forward()
            self._backward()
            self._launch(self.works[2], self.host_s[2] / max(len(self.works[2]), 1))
            if wait:
                self._host = max(self._host, self._device)

    def _forward(self) -> None:
        moments = [(self._host, self._launch([work], self._launch_s(0))) for work in self.works[0]]
        host_start, device_start = moments[0] if moments else (0.0, 0.0)
        self.forward = [(host - host_start, device - device_start) for host, device in moments]

    def _backward(self) -> None:
        host_start, device_start = self._host, None
        for work, gradients in zip(self.works[1], self.completes, strict=True):
            begin = self._launch([work], self._launch_s(1))
            device_start = begin if device_start is None else device_start
            for index in gradients:
                self._host += ACCUMULATE_S * self.host_factor
                self.gradients[index] = (self._host - host_start, self._device - device_start)

    def _launch(self, works: Sequence[float], launch_s: float) -> float:
        begin = self._device
        for work in works:
            self._host += launch_s
            begin = max(self._device, self._host + LAUNCH_LATENCY_S)
            self._device = begin + work
        return begin
