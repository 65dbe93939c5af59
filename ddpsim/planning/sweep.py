"""Sweeps: the same question at every bucket cap and node count, whoever computes the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.markup import Markup
from ddpsim.options.option import check_given
from ddpsim.planning.bound import bound_of
from ddpsim.planning.entries import entry_of, read_entry
from ddpsim.prediction.document import check_prediction, flat
from ddpsim.prediction.models import Model
from ddpsim.prediction.named import take_names
from ddpsim.prediction.predict import predict, predict_buckets
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation import Options
from ddpsim.simulation.job import Job, Keys
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Topology
from ddpsim.units import format_count
from ddpsim.workers.crew import WorkerPool, crew_of
from ddpsim.workers.journal import JournalEntry
from ddpsim.workers.kept import Task, show_nothing
from ddpsim.workers.points import Points, sort_results
from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One configuration of a sweep."""

    nodes: int | None
    options: Options

    def __str__(self) -> str:
        nodes = "" if self.nodes is None else f"{format_count(self.nodes, 'node')}, "
        given = next(iter(self.options.caps.torch_arguments().items()), None)
        return nodes + ("the default's buckets" if given is None else f"{given[0]}={given[1]}")


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What every point of a sweep has in common.

    Attributes:
        for_table: whether only a table is made of its entries, which then hold no more than that shows.
    """

    workload: Workload
    topology: Topology
    gpus_per_node: int | None = None
    calibration: Calibration | None = None
    for_table: bool = False
    _first: dict[tuple[int | None, str], Prediction] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def predict(self, point: SweepPoint, progress: Progress | None = None) -> Prediction:
        """Return the prediction of one point; what all buckets of a job share is found for the first of them alone."""
        but_buckets = str(replace(point.options, caps=BucketCaps(), plan=None))
        if (first := self._first.get((point.nodes, but_buckets))) is not None:
            return predict_buckets(first, point.options.caps, point.options.plan, progress)
        # One rank without DDP is the same on any number of nodes.
        local_s = next((each.local_s for (_, options), each in self._first.items() if options == but_buckets), None)
        job = Job(self.workload, self.topology, point.nodes, self.gpus_per_node, point.options, self.calibration)
        return self._first.setdefault((point.nodes, but_buckets), predict(job, local_s=local_s, progress=progress))

    def entry(self, point: SweepPoint, progress: Progress | None = None) -> JournalEntry:
        """Return what is kept of one point: a line of the `sweep -o` file, and its notes.

        Raises:
            InputError: as `predict`; and a figure that JSON lacks.
        """
        prediction = self.predict(point, progress)
        document = _table_document(prediction) if self.for_table else swept_document(prediction, self.calibration)
        return entry_of(document, prediction, str(point))

    def task(self, points: Sequence[SweepPoint]) -> Task[SweepPoint]:
        """Return the entries of points as a task."""
        keys = Keys("sweep", self.workload, self.topology, self.gpus_per_node, self.calibration)
        return Task(
            self.entry, points, [keys.of(point.options, point.nodes) for point in points], recall=_restore_document
        )


@dataclass(frozen=True, slots=True)
class KeptDocument:
    """What a table of a sweep shows of a document, beside what `check_prediction` looks at."""

    nodes: int
    world_size: int
    accumulate: int
    step_s: float
    overlap_ratio: float | None
    scaling_efficiency: float


def _restore_document(point: SweepPoint, entry: JournalEntry) -> dict[str, object]:
    read_entry(KeptDocument, entry)
    return check_prediction(json.loads(entry.document), str(point))


def swept_document(prediction: Prediction, calibration: Calibration | None = None) -> dict[str, object]:
    """Return the `predict` document with what binds, and the cap that was swept.

    The cap is null for torch's default, a list or a plan.
    """
    swept = {"bucket_cap_mb": prediction.options.caps.bucket_cap_mb}
    return prediction.document() | swept | bound_of(prediction, calibration).document()


def _table_document(prediction: Prediction) -> dict[str, object]:
    """Return the keys of the `predict` document that a table of a sweep shows."""
    summary, workload = prediction.summary, prediction.workload
    return {
        **prediction.options.step_times(summary.iteration_s, prediction.low_s, prediction.high_s),
        "iteration_s": summary.iteration_s,
        "iteration_low_s": prediction.low_s,
        "iteration_high_s": prediction.high_s,
        "exposed_comm_s": summary.exposed_comm_s,
        "step_exposed_comm_s": prediction.options.accumulate * summary.exposed_comm_s,
        "overlap_ratio": summary.overlap_ratio,
        "scaling_efficiency": prediction.scaling_efficiency,
        "world_size": summary.world_size,
        "nodes": prediction.nodes,
        "compute_device": workload.device_label,
        "estimated": workload.estimated,
        "pace_kept": prediction.pace_kept,
        "topology": prediction.topology.name,
        "workload": workload.name,
    }


class Sweep(Iterator[Prediction]):
    """An iterator over the predictions of a sweep, each made when it is asked for."""

    def __init__(self, found: Iterator[Prediction], total: int, calibration: Calibration | None = None) -> None:
        self._found, self._left, self._calibration = found, total, calibration

    def __repr__(self) -> str:
        return f"<Sweep: {format_count(self._left, 'prediction')} to come>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how many are left, and how to have them."""
        left = format_count(self._left, "prediction")
        return Markup("<p>Sweep: {} to come; list() or records() makes them</p>").format(left)

    def __next__(self) -> Prediction:
        prediction = next(self._found)
        self._left -= 1
        return prediction

    def records(self) -> list[dict[str, object]]:
        """Return a flat row of each prediction to come, its cap and what binds with it, for `pandas.DataFrame`."""
        return [flat(swept_document(prediction, self._calibration)) for prediction in self]


@take_names
def sweep(
    workload: Workload | str | Model,
    topology: Topology,
    *,
    nodes: Sequence[int | None],
    caps: Sequence[BucketCaps],
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    executor: Executor | WorkerPool | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Predict every cap at every node count, nodes outermost, in the order given.

    Args:
        workload: put on the machine's own GPU, as `Model` does.
        executor: where the predictions are computed: processes on one machine, or a cluster's; None is here, one by
            one. The predictions and their order are the same.
        progress: called with (predictions done, in all), and without an executor now and then while one is made.

    Raises:
        InputError: no node count, or no cap; and as `predict`.
    """
    points = points_of(nodes, caps, options)
    question = SweepRequest(
        Model.of(workload, options).on(topology, options=options), topology, gpus_per_node, calibration
    )
    crew = crew_of(executor)
    show, done = progress or show_nothing, 0
    function: Callable[[SweepPoint], Prediction] = question.predict
    if crew is None:
        function = partial(question.predict, progress=lambda *_: show(done, len(points)))

    def counting() -> Iterator[tuple[int, Prediction]]:
        nonlocal done
        for found in Points(function, points, crew):
            done += 1
            show(done, len(points))
            yield found

    return Sweep(sort_results(counting()), len(points), calibration)


def points_of(
    nodes: Sequence[int | None], caps: Sequence[BucketCaps], options: Options | None = None
) -> list[SweepPoint]:
    """Return the points of a sweep, nodes outermost.

    Raises:
        InputError: no node count, or no cap.
    """
    check_given("nodes", nodes)
    check_given("caps", caps)
    base = options or Options()
    each = [replace(base, caps=cap) for cap in caps]
    return [SweepPoint(count, asked) for count in nodes for asked in each]
