"""A decision of the tuner as data: what was tried, predicted, measured and kept, what it cost; and its page.

`Trials` tries the plans in a running training: every rank runs the blocks of steps that rank 0 names, and rank 0 alone
judges. `RoundDecision` is what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ddpexec.tuning.control_channel import ControlChannel
from ddpexec.tuning.plan import TrialPlan, call_of
from ddpexec.tuning.racing import BLOCK, PRESENT, Measured, Race
from ddpexec.tuning.ranking import Candidate, CapRanking, neighbours
from ddpexec.tuning.switching import MADE, PlanSwitch
from ddpsim.common.other_work import OtherWork
from ddpsim.explaining.tuned import Tried, Tuning, TuningRound, write_tuning

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
        group: ControlChannel,
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
            # Rank 0's turn names the plan, how long it runs, which others are still in the race, and a plan that joins:
            # every rank makes the same reducers in the same order, as their construction may be a collective.
            if added is not None:
                self._add(added)
            for other, plan in enumerate(self.plans):
                if other not in running and other != number:
                    self._switch.forget(plan)
            yield from run_steps(self._switch.use(self.plans[number]), taken)
            block = yield from run_steps(steps, taken)
            self.own_steps[number] += block
            blocks = self._group.gather(block)
            if blocks:
                self.race.take(number, [fmean(each) for each in zip(*blocks, strict=True)])
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
        """Return a neighbour of the winning plan to try next; None without a winner or an untried neighbour."""
        stays = self.race.choose_plan()
        if stays == PRESENT or self._ranking is None:
            return None
        tried = [plan.key for plan in self.plans]
        return next(iter(neighbours(self._ranking, self.tried[stays - 1], tried)), None)

    def _add(self, candidate: Candidate) -> None:
        self.tried.append(candidate)
        self.plans.append(candidate.plan)
        self.own_steps.append([])


@dataclass(slots=True)
class RoundDecision:
    """One round of tuning, from its first step to the plan that stays.

    Attributes:
        first_step, steps: of the round, counted from the tuner's first.
        present: the line that gives the plan at its beginning.
        kept: that of the plan at its end.
        reason: why those were kept, in words.
        step_s: usual step with the kept plan; None where no step was measured.
        lost_s: what the round's steps took beyond as many of the present plan's, the tuner's own time included.
        own_s: the tuner's own time between steps, of rank 0.
        scheduled: whether the wrapper is the one that carries out schemes.
        other_work: that this machine did meanwhile; None where it does not tell.
    """

    first_step: int
    present: str
    kept: str
    reason: str = "not decided yet"
    steps: int = 0
    step_s: float | None = None
    present_s: float | None = None
    lost_s: float = 0.0
    own_s: float = 0.0
    probed: int = 0
    scheduled: bool = False
    ranking: CapRanking | None = None
    tried: Sequence[Candidate] = ()
    measured: Sequence[Measured] = field(default_factory=tuple)
    other_work: OtherWork | None = None

    def judge(self, tried: Sequence[Candidate], measured: Sequence[Measured], stays: int) -> None:
        """Write down what was measured of each plan, the present one first, and why the one that stays does."""
        self.tried, self.measured = tried, measured
        present = measured[PRESENT]
        self.present_s, self.step_s = present.step_s, measured[stays].step_s
        best = measured[stays] if stays else max(measured[1:], key=lambda each: each.saved_s)
        saved = best.saved_s / present.step_s
        if stays:
            self.reason = f"measured {saved:.1%} faster over {best.steps} steps, at 95 %"
        else:
            self.reason = f"what was tried is not surely faster: {saved:+.1%} over {best.steps} steps"

    def follow(self, tried: Sequence[Candidate], own_steps: Sequence[Sequence[float]], stays: int) -> None:
        """Write down what this rank has seen of it, where another decides."""
        self.tried, self.reason = tried, "as rank 0 decided"
        self.present_s, self.step_s = median(own_steps[PRESENT]), median(own_steps[stays])

    def line(self) -> str:
        """Return it as one line of log."""
        step = "" if self.step_s is None else f", {self.step_s * 1e3:.4g} ms a step"
        share = ""
        if self.present_s and self.steps:
            share = f" ({self.lost_s / (self.steps * self.present_s):.2%} of those steps)"
        saved = "" if self.kept == self.present else f" instead of {self.present}"
        return (
            f"ddpexec.tuned: {self.kept}{saved}{step}: {self.reason}; decided in {self.steps} steps, "
            f"which cost {self.lost_s * 1e3:.3g} ms{share}"
        )

    def notes(self) -> list[str]:
        """Return what to know of how it was measured: that the machine was busy."""
        lines = [] if self.other_work is None else self.other_work.notes()
        return [f"ddpexec.tuned: note: {line}" for line in lines]

    def describe(self) -> TuningRound:
        """Return it as the page has it."""
        ranking = self.ranking
        tried = {each.plan.key: measured for each, measured in zip(self.tried, self.measured[1:], strict=False)}
        rows = [] if ranking is None else [self._row(each, tried.get(each.plan.key)) for each in ranking.candidates]
        return TuningRound(
            first_step=self.first_step,
            steps=self.steps,
            present=self.present,
            kept=self.kept,
            reason=self.reason,
            present_step_s=self.present_s,
            kept_step_s=self.step_s,
            predicted_step_s=None if ranking is None else ranking.step_s,
            latency_s=None if ranking is None else ranking.wire.latency_s,
            bandwidth=None if ranking is None or ranking.wire.per_byte_s <= 0 else 1 / ranking.wire.per_byte_s,
            probed=self.probed,
            lost_s=self.lost_s,
            own_s=self.own_s,
            other_work_processors=None if self.other_work is None else self.other_work.busy,
            processors=None if self.other_work is None else self.other_work.processors,
            plans=tuple(rows),
        )

    def _row(self, candidate: Candidate, measured: Measured | None) -> Tried:
        return Tried(
            call=call_of(candidate.plan.caps, candidate.plan.scheme if self.scheduled else None),
            buckets=candidate.plan.messages,
            predicted_step_s=candidate.step_s,
            predicted_gain=candidate.gain,
            predicted_gain_low=candidate.gain_low,
            predicted_gain_high=candidate.gain_high,
            measured_step_s=None if measured is None else measured.step_s,
            measured_steps=0 if measured is None else measured.steps,
            saved_s=None if measured is None else measured.saved_s,
            saved_low_s=None if measured is None else measured.saved_low_s,
        )


def write_page(out: Path, decisions: Sequence[RoundDecision]) -> None:
    """Write what was decided into the folder, whole.

    Raises:
        InputError: it cannot be written.
    """
    write_tuning(Tuning(rounds=tuple(each.describe() for each in decisions)), out)
