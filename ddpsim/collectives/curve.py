"""A transport corrected by rows measured on exactly its machine and rank count."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.interpolation import Rows
from ddpsim.collectives.scaled import TransportAround, fitted, fitted_steps
from ddpsim.collectives.transport import Steps, Transport
from ddpsim.network.fairness import Demand
from ddpsim.topology.graph import Placement


@dataclass(frozen=True, slots=True)
class CurveTransport(TransportAround):
    """It is `inner` with its allreduce times corrected by measured rows (`interpolation.Rows`).

    Where the rows were measured otherwise than `inner` launches, a time is theirs times what the model says of the
    difference.

    Between two rows a time stays between theirs, so where the rows rise the curve does. Beyond the first and last row
    the factor there holds on. A time shorter than the model's is taken from its latency first (`scaled.fitted`).
    """

    rows: Rows
    measured: Transport
    start_s: float = 0.0

    @classmethod
    def over(
        cls, inner: Transport, curve: Curve, start_s: float = 0.0, measured: Transport | None = None
    ) -> CurveTransport:
        """Return `inner` corrected by `curve`, whose times are first made to rise with size.

        Args:
            start_s: what a collective takes beyond those measured, on an idle stream.
            measured: the model of what was measured; `inner` where None.
        """
        measured = measured or inner
        points = {point.size_bytes: point for point in monotone(curve.points)}.values()
        sizes = [point.size_bytes for point in points]
        rows = Rows.of(sizes, [point.time_s for point in points], [measured.allreduce_s(size) for size in sizes])
        return cls(inner, rows, measured, start_s)

    def allreduce(self, size_bytes: int) -> Demand:
        """Return the demand inside, so changed that alone it takes the corrected time."""
        if size_bytes == 0:
            return self.inner.allreduce(size_bytes)
        corrected = self._fitted(self.inner.allreduce(size_bytes), size_bytes)
        return replace(corrected, latency_s=corrected.latency_s + self.start_s)

    def allreduce_s(self, size_bytes: int) -> float:
        """Return the corrected time."""
        modelled_s = self.inner.allreduce_s(size_bytes)
        return self._corrected_s(size_bytes, modelled_s) + self.start_s if size_bytes else modelled_s

    def doubt(self, size_bytes: int) -> float:
        """Return how unsure the corrected time is (`interpolation.Rows.doubt`)."""
        return self.rows.doubt(size_bytes, self.measured.allreduce_s(size_bytes))

    def broadcast(self, size_bytes: int) -> Demand:
        """Return the demand inside, uncorrected."""
        return self.inner.broadcast(size_bytes)

    def steps(self, size_bytes: int) -> Steps:
        """Return the transfers inside, so changed that the whole takes the corrected time."""
        steps, demand = self.inner.steps(size_bytes), self.inner.allreduce(size_bytes)
        if size_bytes == 0:
            return steps
        corrected = fitted_steps(steps, demand, self._fitted(demand, size_bytes))
        return replace(corrected, launch_s=corrected.launch_s + self.start_s)

    def _fitted(self, demand: Demand, size_bytes: int) -> Demand:
        modelled_s = self.inner.allreduce_s(size_bytes)
        return fitted(demand, modelled_s, self._corrected_s(size_bytes, modelled_s))

    def _corrected_s(self, size_bytes: int, modelled_s: float) -> float:
        if self.measured is self.inner:
            return self.rows.time_s(size_bytes, modelled_s)
        own_s = self.measured.allreduce_s(size_bytes)
        return self.rows.time_s(size_bytes, own_s) * modelled_s / own_s


def monotone(points: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    """Return the points by size with times that never fall: neighbours out of order share their geometric mean.

    Pool adjacent violators on log time (Ayer et al. 1955).
    """
    pools: list[list[float]] = []
    for point in sorted(points, key=lambda point: point.size_bytes):
        pools.append([math.log(point.time_s), 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value, count = pools.pop()
            total = pools[-1][1] + count
            pools[-1] = [(pools[-1][0] * pools[-1][1] + value * count) / total, total]
    times = [math.exp(value) for value, count in pools for _ in range(int(count))]
    sizes = sorted(point.size_bytes for point in points)
    return tuple(CurvePoint(size, time_s) for size, time_s in zip(sizes, times, strict=True))


def matching(calibration: Calibration | None, placement: Placement, algorithm: str = "auto") -> Curve | None:
    """Return the curve of exactly this machine, rank count and forced algorithm."""
    for curve in calibration.curves if calibration else ():
        if (curve.topology, curve.nodes, curve.gpus_per_node, curve.algorithm) == (
            placement.topology.fingerprint(),
            placement.nodes,
            placement.gpus_per_node,
            algorithm,
        ):
            return curve
    return None
