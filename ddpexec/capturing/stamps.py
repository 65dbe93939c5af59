"""Stamps of one process: moments on the host's clock and, on a GPU, CUDA events beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NANOSECOND = 9
"""Decimals of seconds that files keep: clocks tell no more."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment: seconds on the host's clock, and the place in the device's stream."""

    host_s: float
    event: torch.cuda.Event | None

    def device_since(self, start: Stamp) -> float:
        """Return seconds on the device since `start`; on a CPU the host's."""
        if self.event is None or start.event is None:
            return self.host_s - start.host_s
        return float(start.event.elapsed_time(self.event)) / 1e3
