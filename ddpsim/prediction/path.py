"""What a predicted step waits for, and what more of each resource would save: documents of its longest path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpsim.simulation.critical_path import savings
from ddpsim.units import format_time


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest path of an iteration: each moment of it is spent on what everything else waited for then.

    Attributes:
        seconds: by cause, the most first; they sum to the iteration.
    """

    seconds: Mapping[str, float]

    @classmethod
    def of(cls, found: Mapping[str, float], iteration_s: float) -> CriticalPath:
        """Return the path of an iteration of `iteration_s`, where `found` is that of the mean iteration."""
        whole = sum(found.values())
        scale = iteration_s / whole if whole else 0.0
        return cls({name: scale * found[name] for name in sorted(found, key=lambda name: (-found[name], name))})

    def document(self) -> list[dict[str, object]]:
        """Return one entry a cause, with its seconds and its share of the iteration."""
        whole = sum(self.seconds.values())
        return [{"cause": name, "seconds": s, "share": s / whole if whole else 0.0} for name, s in self.seconds.items()]

    def sensitivities(self) -> list[dict[str, object]]:
        """Return by resource what one per cent more of it saves of the iteration, the most first."""
        saved = savings(dict(self.seconds))
        order = sorted(saved, key=lambda name: (-saved[name], name))
        return [{"resource": name, "saved_s": saved[name]} for name in order]

    def text(self) -> list[str]:
        """Return two lines: what the step waits for, and what one per cent more of each resource would save."""
        whole = sum(self.seconds.values())
        shares = [f"{name} {100 * s / whole:.1f} %" for name, s in self.seconds.items() if s >= 0.001 * whole]
        saved = {name: s for name, s in savings(dict(self.seconds)).items() if s >= 1e-6 * whole}
        helps = [f"{name} {format_time(saved[name])}" for name in sorted(saved, key=lambda name: -saved[name])]
        lines = [f"the step waits for: {', '.join(shares)}"]
        return [*lines, f"one per cent more of each would save: {', '.join(helps)}"] if helps else lines
