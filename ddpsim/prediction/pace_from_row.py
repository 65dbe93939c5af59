"""The pace of a device from a distributed step: which computing time makes the prediction what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import WorkloadError
from ddpsim.common.units import format_time
from ddpsim.prediction.carry import Factors, retimed
from ddpsim.prediction.models import Model
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.graph import Topology
from ddpsim.workload import Phase, Workload
from ddpsim.workload.anchors import GIVEN

_LEAST, _MOST, _PRECISION = 0.05, 20.0, 1e-4
"""Factors tried, and how near the predicted step must come, as a share of it."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A distributed step that somebody measured.

    Attributes:
        step_s: its seconds, of all micro-batches where gradients are accumulated.
        topology, nodes, gpus_per_node: where; None is all of it.
        source: who measured it, for the provenance.
    """

    step_s: float
    topology: Topology
    nodes: int | None = None
    gpus_per_node: int | None = None
    source: str = GIVEN


def anchor_to_row(
    workload: Workload, row: MeasuredStep, options: Options | None = None, calibration: Calibration | None = None
) -> Workload:
    """Return `workload` at the pace at which its prediction is `row`'s step, by bisection over predictions.

    The predicted step grows with the factor on the device's time, so that there is one such pace at most. It is put on
    the GPU of the row's machine first, as a prediction there does.

    The optimizer keeps its time where the estimate named it. `row_floor_share` of the provenance is what part of the
    step would be left with hardly any computation: where that is most of it, the pace is no surer than the collectives.

    Raises:
        WorkloadError: a step shorter than communication and host alone take, or beyond twenty times the pace.
        InputError: as `predict`.
    """

    whole = replace((options or Options()).accumulated, tensor_parallel=1, expert_parallel=1)
    workload = replace(Model.of(workload, whole).on(row.topology, options=whole), operators=workload.operators)

    def predicted_s(factor: float) -> float:
        paced = scale_device_time(workload, factor)
        job = Job(paced, row.topology, row.nodes, row.gpus_per_node, options or Options(), calibration)
        # One rank's period without DDP is not needed, and 0 saves its simulation.
        return predict(job, local_s=0.0, band=False).step_s[0]

    least_s, most_s = predicted_s(_LEAST), predicted_s(_MOST)
    if not least_s < row.step_s < most_s:
        what = f"no pace makes a step of {format_time(row.step_s)} on {row.topology.name}"
        bound = f"it takes {format_time(least_s)} with hardly any computation, {format_time(most_s)} at {_MOST:g} times"
        remedy = "check the time, its unit, the ranks and the buckets; or calibrate the collectives"
        raise WorkloadError(f"{what}: {bound}", place=workload.name, remedy=remedy)
    # Invariant: at `low` the step is shorter than the row's, at `high` it is not. Geometric, for it is a factor.
    low, high = _LEAST, _MOST
    while high / low > 1 + _PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if predicted_s(middle) < row.step_s else (low, middle)
    factor = (low * high) ** 0.5
    paced = scale_device_time(workload, factor)
    ranks = Job(paced, row.topology, row.nodes, row.gpus_per_node).placement.world_size
    where = f"{format_time(row.step_s)} on {row.topology.name}, {ranks} ranks"
    return replace(
        paced,
        provenance={
            **paced.provenance,
            "scaled_to": f"{where}: {row.source}",
            "row_scale": round(factor, 4),
            "row_floor_share": round(least_s / row.step_s, 4),
        },
    )


def scale_device_time(workload: Workload, factor: float) -> Workload:
    """Return `workload` with its device's time times `factor`; the host's stays, and gradients come when both allow.

    On a CPU, and where layers that sleep keep the pace, there is one clock, and all of it is scaled.
    """
    if workload.one_clock:
        use = workload.forward_use_s

        def scaled(phase: Phase) -> Phase:
            return Phase(phase.host_s * factor, phase.device_s * factor)

        return replace(
            workload,
            forward=scaled(workload.forward),
            backward=scaled(workload.backward),
            optimizer=scaled(workload.optimizer),
            gradient_hook_s=workload.gradient_hook_s * factor,
            gradient_ready_s=workload.gradient_ready_s * factor,
            forward_use_s=use and use.scale(factor, factor),
        )
    # An optimizer that the estimate priced by name has its own time already.
    update = 1.0 if "optimizer" in workload.provenance else factor
    return retimed(workload, Factors(factor, np.full(len(workload.parameters), factor), factor, update))
