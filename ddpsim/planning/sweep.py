"""Sweeps: the same question at every bucket cap and node count, whoever computes the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.markup import Markup
from ddpsim.common.options.option import check_given
from ddpsim.common.units import format_count
from ddpsim.common.workers.crew import WorkerPool, crew_of
from ddpsim.common.workers.journal import open_journal
from ddpsim.common.workers.points import sort_results
from ddpsim.planning.bound import Bound, bound_of
from ddpsim.prediction.answers import Answers, Rows
from ddpsim.prediction.arguments import take_names
from ddpsim.prediction.document import flat
from ddpsim.prediction.models import Model
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Topology
from ddpsim.workload import Workload

SweptJob = tuple[int | None, Options]
"""A node count and options: what differs among the jobs of a sweep."""


def swept_prediction(job: Job, answers: Answers, swept: SweptJob) -> Prediction:
    """Return the prediction of `job` on so many nodes, with these options."""
    return answers.predict(_swept(job, swept))


def swept_row(job: Job, answers: Answers, swept: SweptJob, *, whole: bool) -> tuple[Prediction, dict[str, object]]:
    """Return the prediction and its document: the `whole` one with what binds the step, or the part that a table
    shows."""
    prediction = swept_prediction(job, answers, swept)
    if not whole:
        return prediction, prediction.step_document()
    bound = answers.ask(Bound, lambda: bound_of(prediction, job.calibration), _swept(job, swept), "bound")
    return prediction, _document(prediction, bound)


def _swept(job: Job, swept: SweptJob) -> Job:
    nodes, options = swept
    return replace(job, nodes=nodes, options=options)


def name_swept(swept: SweptJob) -> str:
    """Return which job of a sweep it is, in words."""
    count, options = swept
    argument = next(iter(options.caps.torch_arguments().items()), None)
    caps = "the default's buckets" if argument is None else f"{argument[0]}={argument[1]}"
    return caps if count is None else f"{format_count(count, 'node')}, {caps}"


def swept_document(prediction: Prediction, calibration: Calibration | None = None) -> dict[str, object]:
    """Return the `predict` document with what binds, and the cap that was swept.

    The cap is null for torch's default, a list or a plan.
    """
    return _document(prediction, bound_of(prediction, calibration))


def _document(prediction: Prediction, bound: Bound) -> dict[str, object]:
    return prediction.document() | {"bucket_cap_mb": prediction.options.caps.bucket_cap_mb} | bound.document()


class Sweep(Iterator[Prediction]):
    """An iterator over the predictions of a sweep, each made when it is asked for."""

    def __init__(self, predictions: Iterator[Prediction], total: int, calibration: Calibration | None = None) -> None:
        self._found, self._left, self._calibration = predictions, total, calibration

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
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Predict every cap at every node count, nodes outermost, in the order given.

    Args:
        workload: put on the machine's own GPU, as `Model` does.
        executor: where the predictions are computed: processes on one machine, or a cluster's; None is here, one by
            one. The predictions and their order are the same.
        cache: file in which they are kept, and found again.
        progress: called with (predictions done, in all), and without an executor now and then while one is made.

    Raises:
        InputError: no node count, or no cap; and as `predict`.
    """
    every = list_swept(nodes, caps, options)
    paced = Model.of(workload, options).on(topology, options=options)
    function = partial(swept_prediction, Job(paced, topology, None, gpus_per_node, Options(), calibration))

    def computed() -> Iterator[tuple[int, Prediction]]:
        with open_journal(cache) as journal:
            rows = Rows(function, every, name_swept, crew=crew_of(executor), journal=journal, progress=progress)
            for position, prediction in rows:
                del rows.found[position]
                yield position, prediction

    return Sweep(sort_results(computed()), len(every), calibration)


def list_swept(
    nodes: Sequence[int | None], caps: Sequence[BucketCaps], options: Options | None = None
) -> list[SweptJob]:
    """Return what differs among the jobs of a sweep, nodes outermost.

    Raises:
        InputError: no node count, or no cap.
    """
    check_given("nodes", nodes)
    check_given("caps", caps)
    base = options or Options()
    each = [replace(base, caps=cap) for cap in caps]
    return [(count, of_caps) for count in nodes for of_caps in each]
