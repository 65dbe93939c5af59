"""A rank's own step clock: what is left of a tuner once it has decided."""

from __future__ import annotations

from statistics import median

WINDOW = 100
"""Steps of which the median is held against the step as it was decided on."""
SHIFT = 0.05
"""Share by which the step must have changed to be tuned for anew."""


class StepClock:
    """Takes the seconds of each step, and tells at the end of a window whether they have shifted.

    Args:
        step_s: usual step when it was decided; the first window that has not shifted takes its place.
    """

    def __init__(self, step_s: float) -> None:
        self._steps: list[float] = []
        self._usual_s, self._settled = step_s, False
        self.windows = 0

    def take(self, seconds: float) -> bool | None:
        """Take one step; return whether the window that it ends has shifted, None where it ends none."""
        self._steps.append(seconds)
        if len(self._steps) < WINDOW:
            return None
        now_s = median(self._steps)
        self._steps.clear()
        self.windows += 1
        if abs(now_s / self._usual_s - 1) > SHIFT:
            return True
        if not self._settled:
            self._usual_s, self._settled = now_s, True
        return False
