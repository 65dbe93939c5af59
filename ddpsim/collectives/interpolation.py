"""Times between measured rows of one machine: the median of three readings of what happens in between.

Rows far apart do not show where between them a protocol changes; each reading alone is badly off where it guesses
wrong, and no two of them are wrong in the same place.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

_REPEATS, _APART, _BEYOND = 0.02, 0.3, 0.05
"""Doubt of a measured row, a share of what the readings differ by, and doubt a factor e of size beyond the rows.

Between rows whose readings are 10 % apart the doubt is 0.02 + 0.3 * 0.1 = 0.05. Chosen by hand: bands of as many doubts
as hold 80 % of rows left out of the tables kept here are 1.133 wide on average, and 1.130 to 1.145 with any one of the
three at half or at double (`python -m studies.accuracy.by_hand`).
"""


@dataclass(frozen=True, slots=True)
class RowTable:
    """Measured rows of one machine, which rise in size; each is met.

    Attributes:
        sizes: natural logarithms of bytes.
        times: of seconds.
        models: of the seconds that the model says.
        slopes: of time over size at each row, of the monotone cubic.
    """

    sizes: tuple[float, ...]
    times: tuple[float, ...]
    models: tuple[float, ...]
    slopes: tuple[float, ...]

    @classmethod
    def of(cls, sizes_bytes: Sequence[int], times_s: Sequence[float], models_s: Sequence[float]) -> RowTable:
        """Return the rows of these bytes, seconds measured and seconds modelled."""
        sizes, times, models = (tuple(map(math.log, each)) for each in (sizes_bytes, times_s, models_s))
        return cls(sizes, times, models, _slopes(sizes, times))

    def time_s(self, size_bytes: int, modelled_s: float) -> float:
        """Return the time of `size_bytes`, of which the model says `modelled_s`.

        Beyond the first and last row the model's factor there holds on.
        """
        # Rounded, so that a level stretch is level to the last bit.
        return math.exp(round(median(self._readings(size_bytes, modelled_s)), 12))

    def doubt(self, size_bytes: int, modelled_s: float) -> float:
        """Return by how much the logarithm of `time_s` may be wrong, up to a common factor (`bands`).

        What a row repeats to, how far the readings are apart, and how far the size is beyond the rows.
        """
        readings, size = self._readings(size_bytes, modelled_s), math.log(size_bytes)
        beyond = max(self.sizes[0] - size, size - self.sizes[-1], 0.0)
        return _REPEATS + _APART * (max(readings) - min(readings)) + _BEYOND * beyond

    def _readings(self, size_bytes: int, modelled_s: float) -> tuple[float, ...]:
        """Return the logarithms of what the time may be; one beyond the rows."""
        size, model = math.log(size_bytes), math.log(modelled_s)
        above = bisect.bisect_left(self.sizes, size)
        if above in (0, len(self.sizes)):
            end = min(above, len(self.sizes) - 1)
            return (model + self.times[end] - self.models[end],)
        low, high = above - 1, above
        part = (size - self.sizes[low]) / (self.sizes[high] - self.sizes[low])
        return (self._model(low, part, model), self._cubic(low, part), self._line(low, size))

    def _bracket(self, low: int, part: float) -> tuple[float, float]:
        """Return least and largest time from which neither time nor rate falls with size, where the rows allow it."""
        before, after = self.times[low], self.times[low + 1]
        width = self.sizes[low + 1] - self.sizes[low]
        if not 0 <= after - before <= width:
            return min(before, after), max(before, after)
        return max(before, after - (1 - part) * width), min(after, before + part * width)

    def _model(self, low: int, part: float, model: float) -> float:
        """Return the model, its factor interpolated in log size, within the bracket."""
        factors = [self.times[row] - self.models[row] for row in (low, low + 1)]
        least, largest = self._bracket(low, part)
        return min(max(model + factors[0] * (1 - part) + factors[1] * part, least), largest)

    def _cubic(self, low: int, part: float) -> float:
        """Return the cubic through both rows with their slopes (Hermite), in logarithms."""
        width, rest = self.sizes[low + 1] - self.sizes[low], 1 - part
        ends = (1 + 2 * part) * rest**2 * self.times[low] + part**2 * (3 - 2 * part) * self.times[low + 1]
        return ends + width * part * rest * (rest * self.slopes[low] - part * self.slopes[low + 1])

    def _line(self, low: int, size: float) -> float:
        """Return a fixed cost and a constant rate from one row to the next."""
        start, end, asked = math.exp(self.sizes[low]), math.exp(self.sizes[low + 1]), math.exp(size)
        before, after = math.exp(self.times[low]), math.exp(self.times[low + 1])
        return math.log(before + (after - before) * (asked - start) / (end - start))


def _slopes(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, ...]:
    """Return the slopes at the rows of which the cubic is monotone (Fritsch and Butland 1984)."""
    widths = [after - before for before, after in pairwise(sizes)]
    chords = [(after - before) / width for (before, after), width in zip(pairwise(times), widths, strict=True)]
    if not chords:
        return (0.0,)
    inner = (_mean(*pair) for pair in pairwise(zip(chords, widths, strict=True)))
    return (chords[0], *inner, chords[-1])


def _mean(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the weighted harmonic mean of two chords' slopes; 0 where one is level."""
    if before[0] <= 0 or after[0] <= 0:
        return 0.0
    near, far = 2 * after[1] + before[1], after[1] + 2 * before[1]
    return (near + far) / (near / before[0] + far / after[0])
