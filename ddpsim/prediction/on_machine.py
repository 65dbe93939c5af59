"""What scripts call `predict`: the step of a workload at the pace of the machine's own GPU."""

from __future__ import annotations

from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction import predict as simulated
from ddpsim.prediction.models import Model
from ddpsim.prediction.named import taking_names
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation import Options
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Topology
from ddpsim.workload import Workload


@taking_names
def predict(
    workload: Workload | str | Model,
    topology: Topology,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    options: Options | None = None,
    calibration: Calibration | None = None,
    band: bool = True,
    progress: Progress | None = None,
    brief: bool = False,
) -> Prediction:
    """Predict the iteration latency of `workload` on `topology`, at the pace of the GPUs there.

    Args:
        workload: put on the machine's own GPU where it can be estimated for it, as `Model` does; `options.keep_pace`
            keeps its own. `Prediction.pace_kept` says which of both it was.
        topology: the machine.
        nodes: how many of its nodes; None is the machine's own number.
        gpus_per_node: ranks on the first so many GPUs of each node; None is all.
        options: of the job, bucket caps among them.
        calibration: measured constants; None is the documented priors.
        band: whether to tell the 80 % band and the doubts that it comes from. Without, a prediction takes half as
            long, and `low_s` and `high_s` are those of the simulated iterations alone.
        progress: called with iterations done and in all.
        brief: whether to simulate no more iterations than tell the period, where all are alike.

    Raises:
        InputError: what cannot be, with the value, its place and the remedy.
    """
    return simulated.predict(
        Model.of(workload, options).on(topology, options=options),
        topology,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        options=options,
        calibration=calibration,
        band=band,
        progress=progress,
        brief=brief,
    )
