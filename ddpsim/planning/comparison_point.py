"""One point of a comparison: what is kept of its row, and the row again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.planning.bound import Bound, bound_of
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.efficiency import efficiency_of, local_s
from ddpsim.planning.entries import entry_of, read_entry
from ddpsim.prediction.kept import KeptPrediction, restore_prediction
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job, Keys
from ddpsim.simulation.run import Progress
from ddpsim.units import format_count
from ddpsim.workers.journal import JournalEntry
from ddpsim.workers.kept import Task

LinkRate = tuple[str, float]
"""A link, as `with_link_rate` takes it, and its rate in bytes per second."""


@dataclass(frozen=True, slots=True)
class KeptPoint:
    """What is kept of a row."""

    prediction: KeptPrediction
    efficiency: tuple[float, float, float]
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPoint(Job):
    """One row to be predicted.

    Attributes:
        workload: on the machine's GPU.
        topology: with the link's rate set.
        model, machine: as they were asked for.
        rate: the link whose rate was set.
    """

    model: str
    machine: str
    rate: LinkRate | None

    def __str__(self) -> str:
        nodes = "" if self.nodes is None else f", {format_count(self.nodes, 'node')}"
        return f"{self.model} on {self.machine}{nodes}"

    def entry(self, progress: Progress | None = None) -> JournalEntry:
        """Return what is kept of its row, whatever it costs.

        Raises:
            InputError: as `predict`; and a figure that JSON lacks.
        """
        prediction = predict(
            self,
            local_s=local_s(self.workload, self.options) if self.topology.compute_device != "cpu" else None,
            progress=progress,
        )
        bound = bound_of(prediction, self.calibration)
        kept = KeptPoint(KeptPrediction.of(prediction), efficiency_of(prediction), bound)
        return entry_of(kept, prediction, str(self))

    def row(self, entry: JournalEntry) -> ComparisonRow:
        """Return the row of which `entry` was kept, without what it costs.

        Raises:
            ValueError: as `read_entry`.
        """
        kept = read_entry(KeptPoint, entry)
        link, rate = self.rate or (None, None)
        return ComparisonRow(
            prediction=restore_prediction(kept.prediction, self),
            machine=self.machine,
            model=self.model,
            efficiency=kept.efficiency,
            bound=kept.bound,
            link=link,
            link_rate=rate,
        )


def rows_task(points: Sequence[ComparisonPoint]) -> Task[ComparisonPoint]:
    """Return the rows of points as a task."""
    keys = Keys("compare")
    known = [keys.of(point) for point in points]
    return Task(ComparisonPoint.entry, points, known, recall=ComparisonPoint.row)
