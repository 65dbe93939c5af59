"""The schedule of a simulated job: what its scheme is told of it, and the ranks that carry out what it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.jobs.simulated import Options
from ddpsim.operations import Operation
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import Setup
from ddpsim.simulation.one_process import check_one_process, in_one_process
from ddpsim.simulation.scheduled import Scheduled
from ddpsim.simulation.setting import Setting
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload

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
        InputError: ranks of one process where they cannot be.
    """
    ours = replace(options.collective, rings=True)
    transport = make_transport(placement, backend, calibration, ours)
    setup = setup_of(options, workload, plan, placement, transport.time_s, blocking=backend == "gloo")
    schedule = options.schedule(setup).in_segments(SEGMENT_ALIGNMENT)
    if schedule.one_process:
        check_one_process(schedule, placement, backend, workload)
    return schedule


def carrying_out(schedule: Schedule, settings: Sequence[Setting], world_size: int, backend: str) -> list[Setting]:
    """Return `settings` of ranks that carry out `schedule`, made ready once for all that compute alike."""
    found = [in_one_process(each, world_size) for each in settings] if schedule.one_process else settings
    carried: list[Setting] = []
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
) -> Setup:
    """Return what a scheme is told of a job: its buckets, and when gradients come and parameters are needed."""
    ready = np.nanmax(workload.gradient_ready_s, axis=0, initial=0.0) * options.scale_compute
    shares = workload.forward_shares().device_s
    forward_s = float(np.median(workload.forward.device_s)) * options.scale_compute
    known = workload.forward_use_known
    return Setup(
        parameters=workload.parameters,
        buckets=plan.groups(),
        world_size=placement.world_size,
        every=options.sync_every,
        accumulate=options.accumulate,
        ranks_per_node=placement.gpus_per_node,
        update_s=float(np.median(workload.optimizer.device_s)) * options.scale_compute,
        ready_s={index: float(seconds) for index, seconds in enumerate(ready)},
        use_s={i: float(s) * forward_s for i, s in enumerate(shares) if not np.isnan(s)} if known else {},
        time_s=time_s,
        blocking=blocking,
    )
