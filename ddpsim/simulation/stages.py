"""What a rank of a pipeline computes in a step, in which order, and on which lanes its stages send and receive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.jobs.stages import RankPart, StagePart
from ddpsim.schedules.pipeline import StageWork, find_before
from ddpsim.workload.iteration_profile import IterationProfile


@dataclass(frozen=True, slots=True, eq=False)
class StagedRank:
    """What one rank of a pipeline computes in a step.

    Attributes:
        part: what it has of the model.
        works: in order.
        last: number of the model's last stage.
        boundary_bytes: of a micro-batch's activations that a stage sends the next, and of their gradient.
        lanes: numbers of those of activations and gradients, by `forward` or `backward` and the stage that sends.
        order: of the works, as a pipeline names it.
    """

    part: RankPart
    works: Sequence[StageWork]
    last: int
    boundary_bytes: int
    lanes: Mapping[tuple[str, int], int]
    order: str

    def stage(self, number: int) -> StagePart:
        """Return a stage of the rank."""
        return next(each for each in self.part.stages if each.stage == number)

    def lane_from(self, kind: str, stage: int, micro_batch: int) -> int | None:
        """Return the lane on which a forward or backward gets what it needs; None where that is the rank's own."""
        before = find_before(kind, micro_batch, stage, self.last)
        return None if before is None or before[1] == stage else self.lanes[before[0], before[1]]

    def pace(self, whole: IterationProfile, stage: StagePart) -> IterationProfile:
        """Return the pace of one stage, of that of all that the rank has."""
        if len(self.part.stages) == 1:
            return whole
        first = stage.stage == self.part.stages[0].stage
        return replace(
            _keep(whole, stage.parameters, ends=first),
            forward_host=whole.forward_host * (stage.host[1] - stage.host[0]),
            forward_work=whole.forward_work * (stage.device[1] - stage.device[0]),
        )


def pace_of_part(whole: IterationProfile, part: RankPart) -> IterationProfile:
    """Return the pace of a rank, of that of the whole model; gradients are numbered among those that it has."""
    if part.size == 1:
        return whole
    own = {index: at for at, index in enumerate(part.indices)}
    kept = _keep(whole, own.keys(), ends=part.place == 0)
    made = replace(
        kept,
        order=tuple(own[index] for index in kept.order),
        forward_host=whole.forward_host * part.host,
        forward_work=whole.forward_work * part.device,
        optimizer_host=whole.optimizer_host * part.size,
        optimizer_work=whole.optimizer_work * part.size,
        idle_s=0.0,
        missed=frozenset(own[index] for index in whole.missed & own.keys()),
    )
    return replace(made, idle_s=made.least_idle_s)


def _keep(pace: IterationProfile, parameters: Collection[int], *, ends: bool) -> IterationProfile:
    """Return the backward of some parameters.

    Args:
        ends: whether what follows the last gradient of all is theirs.
    """
    places = [at for at, index in enumerate(pace.order) if index in parameters]
    host, work, lag = (np.asarray(times)[places] for times in (pace.host, pace.work, pace.lag))
    tail = 1.0 if ends else 0.0
    return replace(
        pace,
        order=tuple(pace.order[at] for at in places),
        host=host,
        work=work,
        lag=lag,
        tail_host=tail * pace.tail_host,
        tail_work=tail * pace.tail_work,
    )
