"""The ranks of a pipeline made ready: each with its stages, the schedule of its place, and the lanes of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.jobs.plans import Plans
from ddpsim.jobs.stages import RankPart
from ddpsim.schedules.mesh import SENDS, group_of_stage
from ddpsim.schedules.pipeline import works_of
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.representatives import SimulatedRank
from ddpsim.simulation.scheduling import Scheduled, lanes_of, schedule_of
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.simulation.stages import RankStages
from ddpsim.topology.graph import Placement


def in_stages(
    parts: Sequence[RankPart],
    draws: Sequence[SimulatedRank],
    settings: Sequence[RankConfiguration],
    placement: Placement,
    backend: str,
    calibration: Calibration | None,
) -> list[RankConfiguration]:
    """Return `settings` of the ranks of a pipeline, each with its stages and the schedule of its place.

    A pipeline of one rank goes by DDP's own buckets.

    Args:
        parts: what ranks have, by place.
        draws: who is simulated, as `settings`.
    """
    options = settings[0].options
    given = options.pipeline
    assert given is not None
    boundary_bytes = given.boundary_bytes or parts[0].workload.boundary_bytes or 0
    schedules: list[Schedule] = []
    plans = [Plans([0], [options.plan_of_part(each)]) for each in parts]
    for place, each in enumerate(parts if options.staged else ()):
        plan = plans[place].plan(0)
        schedules.append(schedule_of(options, each.workload, plan, placement, backend, calibration, place))
    last = given.stages * given.stages_per_rank - 1
    sends = [("forward", stage) for stage in range(last)] + [("backward", stage) for stage in range(1, last + 1)]
    lanes = [lane for place, each in enumerate(schedules) for lane in lanes_of(each, place)]
    numbers = {send: len(lanes) + at for at, send in enumerate(sends)}
    lanes += [(group_of_stage(SENDS, stage), kind) for kind, stage in sends]
    works = works_of(given.order, given.stages, given.micro_batches, given.stages_per_rank)
    of_workload = {id(each.workload): each for each in parts}
    found = []
    made: dict[int, Scheduled] = {}
    for draw, setting in zip(draws, settings, strict=True):
        part = of_workload[id(draw.workload)]
        if schedules and part.place not in made:
            made[part.place] = Scheduled.of(
                schedules[part.place], part.workload, setting.costs, options, gloo=backend == "gloo",
                pipeline=(lanes, part.place),
            )  # fmt: skip
        stages = RankStages(part, works[part.place], last, boundary_bytes, numbers)
        found.append(replace(setting, plans=plans[part.place], scheduled=made.get(part.place), stages=stages))
    return found
