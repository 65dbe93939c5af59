"""What a machine has to be fast enough for: samples a second, or so many samples by a deadline."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.common.units import format_duration


@dataclass(frozen=True, slots=True)
class RateGoal:
    """A rate that a row has to reach.

    Attributes:
        samples_per_s: of all ranks together.
        deadline_s: by which `samples` have to be through; None where the rate itself was asked for.
        samples: of the training that the deadline is for.
    """

    samples_per_s: float
    deadline_s: float | None = None
    samples: float | None = None

    @classmethod
    def by(cls, deadline_s: float, samples_per_epoch: float, epochs: float = 1.0) -> RateGoal:
        """Return the goal of `epochs` epochs by a deadline."""
        samples = samples_per_epoch * epochs
        return cls(samples / deadline_s, deadline_s, samples)

    def is_met_by(self, samples_per_s: float) -> bool:
        """Whether a rate reaches the goal."""
        return samples_per_s >= self.samples_per_s

    def document(self) -> dict[str, object]:
        """Return the goal as JSON values."""
        return {"samples_per_s": self.samples_per_s, "deadline_s": self.deadline_s, "samples": self.samples}

    def describe(self) -> str:
        """Return the goal in words: `2.5 h`, `1200 samples/s`."""
        return f"{self.samples_per_s:.4g} samples/s" if self.deadline_s is None else format_duration(self.deadline_s)

    def describe_reached(self, samples_per_s: tuple[float, float, float]) -> str:
        """Return what a rate with its band amounts to, in the goal's own terms."""
        middle, low, high = samples_per_s
        if self.samples is None:
            return f"{middle:.4g} samples/s ({low:.4g} to {high:.4g})"
        times = (format_duration(self.samples / rate) for rate in (middle, high, low))
        return "{} ({} to {})".format(*times)
