"""A rank whose layers sleep: gradients arrive at their times, and hooks, copies and launches use the time between."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.simulation.cpu_rank import CpuRank
from ddpsim.simulation.processor import Process


@dataclass(slots=True)
class TimedRank(CpuRank):
    """Waits for absolute times, counted from the start of each phase, as ddpexec's timed layers do.

    Nothing computes, so nothing is slowed by a collective; what hooks take delays a gradient only where it outlasts
    the time to the next.
    """

    due_s: float = 0.0

    def begin_phase(self) -> float:
        """Count times from now on."""
        self.due_s = self.env.now
        return self.env.now

    def compute(self, seconds: float) -> Process:
        """Wait until `seconds` after the time waited for last."""
        self.due_s += seconds
        if self.due_s > self.env.now:
            yield self.env.timeout(self.due_s - self.env.now)

    def optimize(self, seconds: float) -> Process:
        """Wait for `seconds` from now on, wherever in a phase that is."""
        yield self.env.timeout(seconds)

    def held_up(self, since_s: float) -> None:
        """Let what is left of the phase come later by as much."""
        self.due_s += self.env.now - since_s
