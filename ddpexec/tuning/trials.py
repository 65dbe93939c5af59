"""Plans tried in a running training: every rank runs the blocks that the first one names, and it alone judges."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from statistics import fmean
from typing import Any

from ddpexec.tuning.choosing import neighbours
from ddpexec.tuning.plan import TrialPlan
from ddpexec.tuning.racing import BLOCK, PRESENT, Race
from ddpexec.tuning.ranking import Candidate, CapRanking
from ddpexec.tuning.switching import MADE, PlanSwitch
from ddpexec.tuning.words import Words

Steps = Generator[None, float, Any]
"""What lets steps pass: it is sent each one's seconds."""


def run_steps(steps: int, taken: list[float]) -> Steps:
    """Let so many steps pass; return their seconds, which are added to `taken` too."""
    begin = len(taken)
    for _ in range(steps):
        one = yield
        taken.append(one)
    return taken[begin:]


class Trials:
    """A race of plans over steps that every rank counts alike.

    Args:
        group: by which ranks agree.
        switch: changes the plan.
        present: in force.
        candidates: to be tried, the same on every rank.
        ranking: what was predicted, on the rank that decides: neighbours of a winner come from it.
    """

    def __init__(
        self,
        group: Words,
        switch: PlanSwitch,
        present: TrialPlan,
        candidates: Sequence[Candidate],
        ranking: CapRanking | None,
    ) -> None:
        self._group, self._switch, self._ranking = group, switch, ranking
        self.tried = list(candidates)
        self.plans: list[TrialPlan] = [present, *(each.plan for each in candidates)]
        self.race = Race(len(self.plans))
        self.own_steps: list[list[float]] = [[] for _ in self.plans]

    def run(self, left: Callable[[], int], taken: list[float]) -> Steps:
        """Try all, within so many steps as are `left`; return the number of the plan that stays, which is in force."""
        while (turn := self._group.follow(self._turn(left()))) is not None:
            number, steps, running, added = turn
            if added is not None:
                self._add(added)
            for other, plan in enumerate(self.plans):
                if other not in running and other != number:
                    self._switch.forget(plan)
            yield from run_steps(self._switch.use(self.plans[number]), taken)
            block = yield from run_steps(steps, taken)
            self.own_steps[number] += block
            heard = self._group.gather(block)
            if heard:
                self.race.take(number, [fmean(each) for each in zip(*heard, strict=True)])
        stays: int = self._group.follow(self.race.choose_plan() if self._group.leads else PRESENT)
        self._switch.use(self.plans[stays])
        return stays

    def _turn(self, left: int) -> tuple[int, int, list[int], Candidate | None] | None:
        """Return plan, steps, plans still in the race and a plan that joins it; None where it is over."""
        if not self._group.leads or left < MADE + BLOCK:
            return None
        turn, added = self.race.turn(), None
        if turn is None and left >= 2 * (MADE + BLOCK) and (added := self._neighbour()) is not None:
            self.race.add()
            turn = self.race.turn()
        if turn is None or turn[1] + MADE > left:
            return None
        return *turn, [PRESENT, *self.race.running], added

    def _neighbour(self) -> Candidate | None:
        """Return the next plan beside the one that has won; None where none has, or none is left."""
        stays = self.race.choose_plan()
        if stays == PRESENT or self._ranking is None:
            return None
        tried = [plan.key for plan in self.plans]
        return next(iter(neighbours(self._ranking, self.tried[stays - 1], tried)), None)

    def _add(self, candidate: Candidate) -> None:
        self.tried.append(candidate)
        self.plans.append(candidate.plan)
        self.own_steps.append([])
