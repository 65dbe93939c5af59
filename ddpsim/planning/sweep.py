"""Sweeps: the same question at every bucket cap and node count, whoever computes the answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.errors import InputError
from ddpsim.markup import element
from ddpsim.options.option import told
from ddpsim.prediction.document import flat
from ddpsim.prediction.notes import pace_notes
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation import Options
from ddpsim.simulation.rank import Progress
from ddpsim.topology.graph import Topology
from ddpsim.units import counted
from ddpsim.version import __version__
from ddpsim.workers.crew import Crew, crew_of
from ddpsim.workers.journal import Entry, Journal
from ddpsim.workers.kept import compute
from ddpsim.workers.points import Points, in_order
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload, workload_document


@dataclass(frozen=True, slots=True)
class Point:
    """A point is one configuration of a sweep."""

    nodes: int | None
    options: Options

    def __str__(self) -> str:
        nodes = "" if self.nodes is None else f"{counted(self.nodes, 'node')}, "
        given = next(iter(self.options.caps.torch_arguments().items()), None)
        return nodes + ("the default's buckets" if given is None else f"{given[0]}={given[1]}")


@dataclass(frozen=True, slots=True)
class Question:
    """A question is what every point of a sweep has in common."""

    workload: Workload
    topology: Topology
    gpus_per_node: int | None = None
    calibration: Calibration | None = None

    def predict(self, point: Point, progress: Progress | None = None) -> Prediction:
        """Return the prediction of one point."""
        return predict(
            self.workload,
            self.topology,
            nodes=point.nodes,
            gpus_per_node=self.gpus_per_node,
            options=point.options,
            calibration=self.calibration,
            progress=progress,
        )

    def entry(self, point: Point, progress: Progress | None = None) -> Entry:
        """Return what is kept of one point: a line of the `sweep -o` file, and its notes.

        Raises:
            InputError: as `predict`; and a figure that JSON lacks.
        """
        prediction = self.predict(point, progress)
        try:
            line = json.dumps(swept_document(prediction), allow_nan=False)
        except ValueError as error:
            remedy = "take options and figures nearer to those of real machines"
            raise InputError("has a number that is not finite", place=str(point), remedy=remedy) from error
        return Entry(line, tuple(pace_notes(prediction)))

    def keys(self, points: Sequence[Point]) -> list[str]:
        """Return what each point is known by in a journal: equal for the same question to the same version."""
        common = hashlib.sha256(json.dumps(self._told(), default=str).encode())
        # Points of one cap have one object of options: thousands of points ask for a few digests of them.
        asked: dict[int, hashlib._Hash] = {}
        keys = []
        for point in points:
            if id(point.options) not in asked:
                plan = point.options.plan
                buckets = None if plan is None else plan.document()
                asked[id(point.options)] = digest = common.copy()
                digest.update(json.dumps([told(point.options), buckets], default=str).encode())
            each = asked[id(point.options)].copy()
            each.update(str(point.nodes).encode())
            keys.append(each.hexdigest()[:24])
        return keys

    def _told(self) -> list[object]:
        """Return everything the answers rest on that the points do not say."""
        topology, calibration = self.topology, self.calibration
        others = sorted({group.template.workload for group in topology.groups if group.template.workload is not None})
        return [
            __version__,
            workload_document(self.workload),
            topology.name,
            topology.fingerprint(),
            [workload_document(load_workload(name)) for name in others],
            self.gpus_per_node,
            None if calibration is None else calibration.document(),
        ]


def swept_document(prediction: Prediction) -> dict[str, object]:
    """Return the `predict` document with the cap that was swept: null for torch's default, a list or a plan."""
    return prediction.document() | {"bucket_cap_mb": prediction.options.caps.bucket_cap_mb}


class Sweep(Iterator[Prediction]):
    """An iterator over the predictions of a sweep, each made when it is asked for."""

    def __init__(self, found: Iterator[Prediction], total: int) -> None:
        self._found, self._left = found, total

    def __repr__(self) -> str:
        return f"<Sweep: {counted(self._left, 'prediction')} to come>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how many are left, and how to have them."""
        return element("p", f"Sweep: {counted(self._left, 'prediction')} to come; list() or records() makes them")

    def __next__(self) -> Prediction:
        prediction = next(self._found)
        self._left -= 1
        return prediction

    def records(self) -> list[dict[str, object]]:
        """Return a flat row of each prediction to come, with its `bucket_cap_mb`, for `pandas.DataFrame`."""
        return [flat(swept_document(prediction)) for prediction in self]


def sweep(
    workload: Workload,
    topology: Topology,
    *,
    nodes: Sequence[int | None],
    caps: Sequence[BucketCaps],
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    executor: Executor | Crew | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Predict every cap at every node count, nodes outermost, in the order given.

    Args:
        executor: where the predictions are computed: processes on one machine, or a cluster's; None is here, one by
            one. The predictions and their order are the same.
        progress: called with (predictions done, in all), and without an executor now and then while one is made.

    Raises:
        InputError: no node count, or no cap; and as `predict`.
    """
    points = points_of(nodes, caps, options)
    question = Question(workload, topology, gpus_per_node, calibration)
    crew = crew_of(executor)
    show, done = progress or _silent, _Count()
    function = _here(question.predict, crew, lambda *_: show(done.value, len(points)))

    def counting() -> Iterator[tuple[int, Prediction]]:
        for found in Points(function, points, crew):
            done.value += 1
            show(done.value, len(points))
            yield found

    return Sweep(in_order(counting()), len(points))


def sweep_entries(
    question: Question,
    points: Sequence[Point],
    found: dict[int, Entry],
    *,
    keys: Sequence[str],
    crew: Crew | None = None,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> None:
    """Put what is kept of every point into `found`, as `ddpsim.workers.kept.compute` does.

    Args:
        keys: of the points, `question.keys(points)`.

    Raises:
        Stopped: by a signal.
        InputError: as `predict`, and where a worker is lost.
    """
    show = progress or _silent
    function = _here(question.entry, crew, lambda *_: show(len(found), len(points)))
    compute(function, points, found, keys=keys, crew=crew, journal=journal, progress=show)


def points_of(nodes: Sequence[int | None], caps: Sequence[BucketCaps], options: Options | None = None) -> list[Point]:
    """Return the points of a sweep, nodes outermost.

    Raises:
        InputError: no node count, or no cap.
    """
    check_given("nodes", nodes)
    check_given("caps", caps)
    base = options or Options()
    each = [replace(base, caps=cap) for cap in caps]
    return [Point(count, asked) for count in nodes for asked in each]


def check_given(what: str, values: Sequence[object]) -> None:
    """Refuse an axis without a value.

    Raises:
        InputError: where there is none.
    """
    if not values:
        raise InputError("nothing is given", place=what, remedy="give at least one")


class _Count:
    value = 0


def _here(function: Callable[..., Any], crew: Crew | None, beat: Progress) -> Callable[[Point], Any]:
    """Return `function`, which shows now and then that it is under way where this process computes."""
    return partial(function, progress=beat) if crew is None else function


def _silent(done: int, total: int) -> None:
    """Show nothing."""
