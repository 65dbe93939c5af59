"""A transport corrected by rows measured on exactly its machine and rank count."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import simpy

from ddpsim.collectives.calibration import Calibration, Curve
from ddpsim.collectives.interpolation import RowTable
from ddpsim.collectives.network.fairness import Demand, alone_s
from ddpsim.collectives.network.fluid import Network
from ddpsim.collectives.scaled import TransportAround, fit_demand, fit_steps, scale_steps
from ddpsim.collectives.steps import carry_out
from ddpsim.collectives.transport import Steps, Transport
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Placement

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
        found = {correction.operation: correction for correction in self.corrections}
        if operation in found or Operation.ALLREDUCE not in found:
            return found.get(operation)
        asked, measured = (self.inner.choice(size_bytes, each) for each in (operation, Operation.ALLREDUCE))
        return found[Operation.ALLREDUCE] if asked.algorithm == measured.algorithm else None


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
    found = (find_curve(calibration, placement, algorithm, operation) for operation in Operation)
    return [curve for curve in found if curve is not None]
