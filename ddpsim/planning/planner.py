"""Which buckets to use where: machines and node counts side by side, each with its best buckets."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.options.option import check_given
from ddpsim.planning.best_buckets import best_buckets
from ddpsim.planning.bound import Bound
from ddpsim.planning.entries import entry_of, read_entry
from ddpsim.planning.host_bound import constants_in_force
from ddpsim.planning.rows import AlternativePlan, PlanReport, PlanRow
from ddpsim.planning.savings import Saving
from ddpsim.planning.worth import Trial
from ddpsim.prediction.kept import KeptPrediction, restore_prediction
from ddpsim.prediction.models import Model
from ddpsim.prediction.named import take_names
from ddpsim.simulation import Options
from ddpsim.simulation.job import Job, Keys
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Topology
from ddpsim.units import format_count
from ddpsim.workers.crew import WorkerPool, crew_of
from ddpsim.workers.journal import JournalEntry
from ddpsim.workers.kept import Task, compute
from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True)
class KeptRow:
    """What is kept of a row; no best plan is where that is the default."""

    default: KeptPrediction
    best: KeptPrediction | None
    sweep: tuple[tuple[float, float], ...]
    fastest_s: float
    bound: Bound | None
    priors: tuple[str, ...]
    best_low: float
    best_high: float
    savings: tuple[Saving, ...]
    others: tuple[AlternativePlan, ...]
    trial: Trial | None

    @classmethod
    def of(cls, row: PlanRow) -> KeptRow:
        """Return what is kept of `row`."""
        return cls(
            default=KeptPrediction.of(row.default),
            best=None if row.best is row.default else KeptPrediction.of(row.best),
            priors=tuple(constant.name for constant in row.priors),
            **{name: getattr(row, name) for name in _AS_THEY_ARE},
        )


_AS_THEY_ARE = ("sweep", "fastest_s", "bound", "best_low", "best_high", "savings", "others", "trial")
"""Fields of a row that are kept as they are."""


@take_names
def plan(
    workload: Workload | str | Model,
    topologies: Sequence[Topology],
    *,
    nodes: Sequence[int | None] = (None,),
    caps: Sequence[BucketCaps] | None = None,
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
    executor: Executor | WorkerPool | None = None,
) -> PlanReport:
    """Find the buckets that make an iteration shortest on each topology and node count, as `best_buckets` does.

    Node counts that a topology cannot hold raise as `Topology.place` does.

    Args:
        workload: put on each machine's own GPU, as `Model` does.
        caps: tried beside torch's default, instead of uniform caps and the partition; each with a `bucket_cap_mb`.
        progress: called with (rows done, rows in all), and now and then while a row is made here.
        executor: where the rows are computed; None is here, one by one. The rows are the same.

    Raises:
        InputError: no topology, no node count or no cap; and as `predict`.
    """
    model = Model.of(workload, options)
    places = places_of(topologies, nodes)
    cells = cells_of(model, places, caps, options or Options(), gpus_per_node, calibration)
    return report_of(model.source.name, cells, compute(task_of(cells), crew=crew_of(executor), progress=progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Job):
    """One machine and node count of a plan, and all that its row rests on."""

    caps: Sequence[BucketCaps] | None

    def __str__(self) -> str:
        return self.topology.name if self.nodes is None else f"{self.topology.name}, {format_count(self.nodes, 'node')}"

    def entry(self, progress: Progress | None = None) -> JournalEntry:
        """Return what is kept of its row.

        Raises:
            InputError: as `predict`; and a figure that JSON lacks.
        """
        row = best_buckets(self, self.caps, progress)
        return entry_of(KeptRow.of(row), row.best, str(self))

    def row(self, entry: JournalEntry) -> PlanRow:
        """Return the row of which `entry` was kept.

        Raises:
            ValueError: as `read_entry`.
        """
        kept = read_entry(KeptRow, entry)
        default = restore_prediction(kept.default, self)
        constants = constants_in_force(self.options.backend_for(default.workload), self.calibration)
        return PlanRow(
            best=default if kept.best is None else restore_prediction(kept.best, self),
            default=default,
            priors=tuple(constants[name] for name in kept.priors),
            **{name: getattr(kept, name) for name in _AS_THEY_ARE},
        )


def places_of(topologies: Sequence[Topology], nodes: Sequence[int | None]) -> list[tuple[Topology, int | None]]:
    """Return each machine with each node count, machines outermost.

    Raises:
        InputError: no topology, or no node count.
    """
    check_given("topologies", topologies)
    check_given("nodes", nodes)
    return [(topology, count) for topology in topologies for count in nodes]


def cells_of(
    model: Model,
    places: Sequence[tuple[Topology, int | None]],
    caps: Sequence[BucketCaps] | None,
    options: Options,
    gpus_per_node: int | None,
    calibration: Calibration | None,
) -> list[Cell]:
    """Return the cells of a plan, one a place.

    Raises:
        InputError: no cap.
    """
    if caps is not None:
        check_given("caps", caps)
    return [
        Cell(model.on(topology, options=options), topology, count, gpus_per_node, options, calibration, caps=caps)
        for topology, count in places
    ]


def task_of(cells: Sequence[Cell]) -> Task[Cell]:
    """Return the rows of cells as a task."""
    keys = Keys("plan")
    return Task(Cell.entry, cells, [keys.of(cell, cell.caps) for cell in cells], recall=Cell.row)


def report_of(name: str, cells: Sequence[Cell], entries: Sequence[JournalEntry]) -> PlanReport:
    """Return the report of the rows that were kept of the cells of one model, which is called `name`."""
    rows = (cell.row(entry) for cell, entry in zip(cells, entries, strict=True))
    return PlanReport(tuple(rows), name)
