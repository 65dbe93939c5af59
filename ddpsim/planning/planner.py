"""Which buckets to use where: machines and node counts side by side, each with its best buckets.

`plan` lays out a job a machine and node count; `best_buckets.py` makes the row of each, here or on workers; `rows.py`
is what comes out. Every planner of this room is written so.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.options.option import check_given
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.planning.best_buckets import best_buckets
from ddpsim.planning.rows import PlanReport
from ddpsim.prediction.answers import computing, name_job
from ddpsim.prediction.arguments import take_names
from ddpsim.prediction.models import Model
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Topology
from ddpsim.workload import Workload


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
    cache: str | Path | None = None,
) -> PlanReport:
    """Find the buckets that make an iteration shortest on each topology and node count, as `best_buckets` does.

    Node counts that a topology cannot hold raise as `Topology.place` does.

    Args:
        workload: put on each machine's own GPU, as `Model` does.
        caps: tried beside torch's default, instead of uniform caps and the partition; each with a `bucket_cap_mb`.
        progress: called with (rows done, rows in all), and now and then while a row is made here.
        executor: where the rows are computed; None is here, one by one. The rows are the same.
        cache: file in which answers are kept, and found again.

    Raises:
        InputError: no topology, no node count or no cap; and as `predict`.
    """
    model = Model.of(workload, options)
    jobs = jobs_of(model, places_of(topologies, nodes), options or Options(), gpus_per_node, calibration)
    if caps is not None:
        check_given("caps", caps)
    with computing(executor, cache, progress) as compute:
        return PlanReport(tuple(compute(partial(best_buckets, caps=caps), jobs, name_job)), model.source.name)


def places_of(topologies: Sequence[Topology], nodes: Sequence[int | None]) -> list[tuple[Topology, int | None]]:
    """Return each machine with each node count, machines outermost.

    Raises:
        InputError: no topology, or no node count.
    """
    check_given("topologies", topologies)
    check_given("nodes", nodes)
    return [(topology, count) for topology in topologies for count in nodes]


def jobs_of(
    model: Model,
    places: Sequence[tuple[Topology, int | None]],
    options: Options,
    gpus_per_node: int | None,
    calibration: Calibration | None,
) -> list[Job]:
    """Return the jobs of a model, one a place."""
    return [
        Job(model.on(topology, options=options), topology, count, gpus_per_node, options, calibration)
        for topology, count in places
    ]
