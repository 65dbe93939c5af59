"""A transport corrected by rows measured on exactly its machine and rank count.

Read `CurveTransport` first. Between two rows a time is the median of three readings of what happens there (`RowTable`):
the model times a factor between the rows' own, a cubic through both, a fixed cost with a constant rate. Rows far apart
do not show where between them a protocol changes; each reading alone is badly off where it guesses wrong, and no two of
them are wrong in the same place.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

import simpy

from ddpsim.collectives.calibration import Calibration, Curve
from ddpsim.collectives.network.fairness import Demand, alone_s
from ddpsim.collectives.network.fluid import Network
from ddpsim.collectives.scaled import TransportAround, fit_demand, fit_steps, scale_steps
from ddpsim.collectives.schedules import Steps
from ddpsim.collectives.steps import carry_out
from ddpsim.collectives.transport import Transport
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Placement

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
        start, end, wanted = math.exp(self.sizes[low]), math.exp(self.sizes[low + 1]), math.exp(size)
        before, after = math.exp(self.times[low]), math.exp(self.times[low + 1])
        return math.log(before + (after - before) * (wanted - start) / (end - start))


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


_CARRIED = 0.02
"""Doubt that an operation's time has beyond that of the allreduce whose rows correct it.

Chosen by hand: with it 19 of the 24 rows of studies/accuracy/operations.md lie in their 80 % bands, without it 15. No
other box has judged it.
"""


@dataclass(frozen=True, slots=True)
class Correction:
    """The measured rows of one operation.

    Attributes:
        measured: the model of what was measured.
    """

    operation: Operation
    rows: RowTable
    measured: Transport

    @classmethod
    def of(cls, curve: Curve, measured: Transport) -> Correction:
        """Return the correction by `curve`."""
        times = {point.size_bytes: point.time_s for point in sorted(curve.points, key=lambda point: point.size_bytes)}
        modelled_s = [measured.time_s(curve.operation, size) for size in times]
        return cls(curve.operation, RowTable.of(list(times), list(times.values()), modelled_s), measured)

    def correct_s(self, inner: Transport, operation: Operation, size_bytes: int) -> float:
        """Return what the rows make of the time that `inner` says an operation takes."""
        modelled_s = inner.time_s(operation, size_bytes)
        if self.measured is inner and self.operation is operation:
            return self.rows.time_s(size_bytes, modelled_s)
        own_s = self.measured.time_s(self.operation, size_bytes)
        return self.rows.time_s(size_bytes, own_s) * modelled_s / own_s

    def doubt(self, size_bytes: int) -> float:
        """Return how unsure the corrected time is (`interpolation.RowTable.doubt`)."""
        return self.rows.doubt(size_bytes, self.measured.time_s(self.operation, size_bytes))


@dataclass(frozen=True, slots=True)
class CurveTransport(TransportAround):
    """`inner` with its times corrected by measured rows (`interpolation.RowTable`).

    Where the rows were measured otherwise than `inner` launches, a time is theirs times what the model says of the
    difference. An operation without rows of its own takes an allreduce's times what the model says of both, where both
    run the same algorithm: they load the same links.

    At a row the time is the row's, as one flow and as single transfers too. Between two rows a time stays between
    theirs, so where the rows rise the curve does. Beyond the first and last row the factor there holds on. A time
    shorter than the model's is taken from its latency first (`scaled.fit_demand`).
    """

    corrections: tuple[Correction, ...]
    start_s: float = 0.0
    _steps: dict[tuple[Operation, int], Steps] = field(default_factory=dict, repr=False, compare=False)

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the demand inside, so changed that alone it takes the corrected time."""
        demand = self.inner.demand(operation, size_bytes)
        if size_bytes == 0:
            return demand
        corrected = self._fit(demand, operation, size_bytes)
        return replace(corrected, latency_s=corrected.latency_s + self.start_s)

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the corrected time."""
        if size_bytes == 0:
            return self.inner.time_s(operation, size_bytes)
        return self._correct_s(operation, size_bytes) + self.start_s

    def doubt(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> float | None:
        """Return how unsure the corrected time is; None where no rows correct it."""
        correction = self._correction(operation, size_bytes)
        if correction is None:
            return None
        return correction.doubt(size_bytes) + (0.0 if correction.operation is operation else _CARRIED)

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return the transfers inside, so changed that the whole takes the corrected time.

        How long they take alone follows from no formula: they are carried out for it, once a size.
        """
        key = (operation, size_bytes)
        if key not in self._steps and size_bytes:
            steps, demand = self.inner.steps(operation, size_bytes), self.inner.demand(operation, size_bytes)
            fitted = fit_steps(steps, demand, self._fit(demand, operation, size_bytes))
            network = Network(simpy.Environment(), self.capacities)
            network.env.run(carry_out(network, fitted))
            fitted = scale_steps(fitted, self._correct_s(operation, size_bytes) / network.env.now)
            self._steps[key] = replace(fitted, launch_s=fitted.launch_s + self.start_s)
        return self._steps[key] if size_bytes else self.inner.steps(operation, size_bytes)

    def _fit(self, demand: Demand, operation: Operation, size_bytes: int) -> Demand:
        return fit_demand(demand, alone_s(demand, self.capacities), self._correct_s(operation, size_bytes))

    def _correct_s(self, operation: Operation, size_bytes: int) -> float:
        correction = self._correction(operation, size_bytes)
        if correction is None:
            return self.inner.time_s(operation, size_bytes)
        return correction.correct_s(self.inner, operation, size_bytes)

    def _correction(self, operation: Operation, size_bytes: int) -> Correction | None:
        """Return the rows of the operation, else an allreduce's where the same algorithm runs both."""
        by_operation = {correction.operation: correction for correction in self.corrections}
        if operation in by_operation or Operation.ALLREDUCE not in by_operation:
            return by_operation.get(operation)
        own, measured = (self.inner.choice(size_bytes, each) for each in (operation, Operation.ALLREDUCE))
        return by_operation[Operation.ALLREDUCE] if own.algorithm == measured.algorithm else None


def find_curve(
    calibration: Calibration | None,
    placement: Placement,
    algorithm: str = "auto",
    operation: Operation = Operation.ALLREDUCE,
) -> Curve | None:
    """Return the curve of exactly this machine, rank count, forced algorithm and operation.

    Of ranks of several devices none is known: their GPUs are not the first ones of a node.
    """
    if placement.devices > 1:
        return None
    for curve in calibration.curves if calibration else ():
        if (curve.topology, curve.nodes, curve.gpus_per_node, curve.algorithm, curve.operation) == (
            placement.topology.fingerprint(),
            placement.nodes,
            placement.gpus_per_node,
            algorithm,
            operation,
        ):
            return curve
    return None


def find_curves(calibration: Calibration | None, placement: Placement, algorithm: str = "auto") -> list[Curve]:
    """Return the curves of exactly this machine, rank count and forced algorithm, an allreduce's first."""
    curves = (find_curve(calibration, placement, algorithm, operation) for operation in Operation)
    return [curve for curve in curves if curve is not None]
