"""The schedule of a simulated job: what its scheme is told of it, and the ranks that carry out what it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.jobs.simulated import Options
from ddpsim.operations import Operation
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.pace import IterationProfile
from ddpsim.simulation.scheduled import Scheduled
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload

REPLICATE_S = 27e-6
"""Host seconds, by parameter and replica, in which a module is copied for its replicas before each forward.

`python -m studies.host_costs.replicas` measures it: 29.5 us of ResNet-50 and 25.5 us of BERT on an AMD EPYC.
"""


def in_one_process(setting: RankConfiguration, ranks: int) -> RankConfiguration:
    """Return `setting` where `ranks` of them are threads of one process.

    Their forwards launch through one interpreter, whose lock one thread has at a time, so that the host's time is all
    of theirs together, and each forward's replicas are copied before. Backward is the autograd engine's own threads',
    one a device, which need no lock. One thread loads the batches of all.
    """
    alone, stage = setting.pace, setting.input_stage
    copied_s = REPLICATE_S * len(setting.workload.parameters) if ranks > 1 else 0.0

    def pace(iteration: int) -> IterationProfile:
        own = alone(iteration)
        return replace(own, forward_host=ranks * (own.forward_host + copied_s))

    return replace(setting, pace=pace, input_stage=None if stage is None else stage.in_one_process(ranks))


SEGMENT_ALIGNMENT = 16
"""Bytes at multiples of which messages are cut, as NCCL aligns what it copies fastest."""


def schedule_of(
    options: Options,
    workload: Workload,
    plan: BucketPlan,
    placement: Placement,
    backend: str,
    calibration: Calibration | None,
) -> Schedule:
    """Return the schedule of a job with the buckets of `plan`, its messages cut into segments.

    Args:
        workload: of rank 0.

    Raises:
        PlanError: a schedule that cannot be carried out.
    """
    ours = replace(options.collective, rings=True)
    transport = make_transport(placement, backend, calibration, ours)
    setup = setup_of(options, workload, plan, placement, transport.time_s, blocking=backend == "gloo")

    def control_s(library: str, size_bytes: int) -> float:
        known = calibration if backend == library else None
        return make_transport(placement, library, known).time_s(Operation.ALLREDUCE, size_bytes)

    setup = replace(setup, control_s=control_s)
    return options.schedule(setup).in_segments(SEGMENT_ALIGNMENT)


def carrying_out(
    schedule: Schedule, settings: Sequence[RankConfiguration], world_size: int, backend: str
) -> list[RankConfiguration]:
    """Return `settings` of ranks that carry out `schedule`, made ready once for all that compute alike."""
    found = [in_one_process(each, world_size) for each in settings] if schedule.one_process else settings
    carried: list[RankConfiguration] = []
    for each in found:
        alike = (one.scheduled for one in carried if one.workload is each.workload and one.costs == each.costs)
        made = next(alike, None) or Scheduled.of(
            schedule, each.workload, each.costs, each.options, gloo=backend == "gloo"
        )
        carried.append(replace(each, scheduled=made))
    return carried


def setup_of(
    options: Options,
    workload: Workload,
    plan: BucketPlan,
    placement: Placement,
    time_s: Callable[[Operation, int], float] | None,
    *,
    blocking: bool,
) -> SchemeInputs:
    """Return what a scheme is told of a job: its buckets, and when gradients come and parameters are needed."""
    ready = np.nanmax(workload.gradient_ready_s, axis=0, initial=0.0) * options.scale_compute
    shares = workload.forward_shares().device_s
    forward_s = float(median(workload.forward.device_s)) * options.scale_compute
    known = workload.forward_use_known
    return SchemeInputs(
        parameters=workload.parameters,
        buckets=plan.groups(),
        world_size=placement.world_size,
        every=options.sync_every,
        accumulate=options.accumulate,
        ranks_per_node=placement.gpus_per_node,
        update_s=float(median(workload.optimizer.device_s)) * options.scale_compute,
        ready_s={index: float(seconds) for index, seconds in enumerate(ready)},
        use_s={i: float(s) * forward_s for i, s in enumerate(shares) if not np.isnan(s)} if known else {},
        time_s=time_s,
        blocking=blocking,
    )
