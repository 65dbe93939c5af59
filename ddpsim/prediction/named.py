"""`ddpsim.predict`: one job or many, by names, paths or objects. The first file of a prediction's path.

`take_names` (`arguments.py`) has loaded what was given as a name before `predict` below begins. What it does is to tell
one job from many: one goes to `predict.py`, which names the files after it; many go to `answers.py`, which predicts
each once, here or on workers, and comes to the same `predict.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import overload

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.prediction import predict as simulated
from ddpsim.prediction.answers import Answers, computing, name_job
from ddpsim.prediction.arguments import MACHINE, on_own_gpus, take_names
from ddpsim.prediction.models import Model
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Topology
from ddpsim.workload import Workload


@overload
def predict(
    workload: Sequence[Job],
    *,
    band: bool = True,
    executor: Executor | WorkerPool | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Prediction]: ...


@overload
def predict(
    workload: Workload | str | Model | Job,
    topology: Topology | None = None,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    options: Options | None = None,
    calibration: Calibration | None = None,
    band: bool = True,
    progress: Progress | None = None,
) -> Prediction: ...


@take_names
def predict(
    workload: Workload | str | Model | Job | Sequence[Job],
    topology: Topology | None = None,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    options: Options | None = None,
    calibration: Calibration | None = None,
    band: bool = True,
    executor: Executor | WorkerPool | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Prediction | list[Prediction]:
    """Predict the iteration latency of `workload` on `topology`, at the pace of the GPUs there.

    Args:
        workload: put on the machine's own GPU where it can be estimated for it, as `Model` does; `options.keep_pace`
            keeps its own. `Prediction.pace_kept` says which of both it was. Or a whole `Job`, and nothing more of it;
            or several, whose predictions are returned in order: equal jobs are predicted once.
        topology: the machine.
        nodes: how many of its nodes; None is the machine's own number.
        gpus_per_node: ranks on the first so many GPUs of each node; None is all.
        options: of the job, bucket caps among them.
        calibration: measured constants; None is the documented priors.
        band: whether to find the 80 % band and the doubts that it comes from. Without, a prediction takes half as
            long, and `low_s` and `high_s` are those of the simulated iterations alone.
        executor: of several jobs, where they are predicted: processes on one machine, or a cluster's; None is here, one
            by one. The predictions are the same.
        cache: of several jobs, a file in which each prediction is kept, and found again.
        progress: called with iterations done and in all; of several jobs, with predictions done and in all.

    Raises:
        InputError: what cannot be, with the value, its place and the remedy.
    """
    # A job or several: whole already, so that nothing more of a job may be given with them.
    if isinstance(workload, Job | Sequence) and not isinstance(workload, str):
        if (topology, nodes, gpus_per_node, options, calibration) != (None,) * 5:
            remedy = "change the job, e.g. `dataclasses.replace(job, nodes=4)`"
            raise InputError("a `Job` is given, and more of a job beside it", place="workload", remedy=remedy)
        if not isinstance(workload, Job):
            # Next: answers.py.
            with computing(executor, cache, progress) as compute:
                return compute(partial(Answers.predict, band=band), list(on_own_gpus(workload)), name_job)
    if (executor, cache) != (None, None):
        remedy = "give `predict([Job(...), ...], cache=...)`"
        raise InputError("one prediction has no `executor` and no `cache`", place="workload", remedy=remedy)
    if not isinstance(workload, Job):
        if topology is None:
            raise InputError("no machine is given", place="topology", remedy=MACHINE)
        workload = Job(workload, topology, nodes, gpus_per_node, options, calibration)  # type: ignore[arg-type]
    # The workload at the pace of the machine's own GPU (models.py); then predict.py.
    [job] = on_own_gpus([workload])
    return simulated.predict(job, band=band, progress=progress)
