"""The tuner: watches some steps, has every cap predicted, tries what is ranked first, keeps what is measured faster.

It lives between steps: whatever it does, it does where `step` is called, which every rank does equally often. A rank on
which it fails leaves it, and trains on; ranks that wait for that one in the tuner's own group hear of it and leave too.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch.distributed as dist
from torch import nn

from ddpexec.errors import OptionError
from ddpexec.tuning.blocks import SETTLING, Measured, compare, kept, turns
from ddpexec.tuning.decision import RoundDecision, write_page
from ddpexec.tuning.observed import Observed, RankSteps
from ddpexec.tuning.observing import Watch
from ddpexec.tuning.predictor import PredictingProcess
from ddpexec.tuning.probing import probes
from ddpexec.tuning.ranking import Candidate, CapRanking, Groups
from ddpexec.tuning.rewrapping import caps_in_force, find_wrapped, refusal, rewrap
from ddpexec.tuning.step_clock import StepClock
from ddpexec.tuning.words import Words
from ddpsim.bucketing import BucketCaps
from ddpsim.files import check_writable_folder
from ddpsim.planning.rows import WORTH_IT

STEPS = 100
"""Steps within which a round is over."""
LEAST_STEPS = 60
"""Fewer leave no room for blocks that tell plans apart."""
WARM_UP, OBSERVED, PROBED = 5, 8, 3
"""Steps that are not looked at, as buckets are rebuilt and caches filled; steps stamped of the present plan, and of
one that probes. By hand: their median leaves the odd one out."""
_ASKED_EVERY = 4
"""Steps between two questions whether the prediction is there."""
_BLOCK, _LEAST_BLOCK = 12, 4
"""Steps of a block that count: at most, and at least for it to be run."""
TRIED = 2
"""Plans that are tried beside the present one."""
HEARD_AFTER = 2
"""Synchronised steps after a window, from which on every rank can see what any has noted of it."""
_Steps = Generator[None, float, Any]
Plan = tuple[BucketCaps, Groups]


class Tuner:
    """Tunes the buckets of one model while it trains; call `step` after each step of its optimizer, on every rank.

    Args:
        model: torch's DDP or ours, or what holds one; it stays the object that it is.
        out: folder for what was decided, which `ddpsim explain` reads; None writes none.
        steps: within which a round is over.

    Attributes:
        refused: why this model is not tuned; None where it is.
        decisions: of the rounds that are over, on rank 0; elsewhere without what was predicted and measured.

    Raises:
        OptionError: a number of steps that leaves no room.
        InputError: a folder that cannot be written.
    """

    def __init__(self, model: nn.Module, *, out: str | Path | None = None, steps: int = STEPS) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < LEAST_STEPS:
            remedy = f"give {LEAST_STEPS} or more"
            raise OptionError(f"`steps={steps!r}` leaves no room for trials", place="ddpexec.tuned", remedy=remedy)
        self._out = None if out is None else Path(out)
        if self._out is not None:
            check_writable_folder(self._out)
        self._steps, self._number, self._own_s = steps, 0, 0.0
        self._words: Words | None = None
        self._predictor: PredictingProcess | None = None
        self._watch: Watch | None = None
        self._trial: Plan | None = None
        self._open: RoundDecision | None = None
        self._wrapped: Any = find_wrapped(model)
        self.decisions: list[RoundDecision] = []
        self.refused = self._agreed_refusal(model)
        self._life: _Steps | None = None
        if self.refused is not None:
            self._say(f"ddpexec.tuned: the buckets stay as they are, for {self.refused}")
            self._leave()
            return
        if self._words is not None and self._words.leads:
            self._predictor = PredictingProcess()
        self._life = self._live()
        next(self._life)
        self._ended_s = time.perf_counter()

    def step(self) -> None:
        """Say that a step is over, its optimizer's included."""
        if self._life is None:
            return
        begin_s = time.perf_counter()
        try:
            self._number += 1
            self._life.send(begin_s - self._ended_s)
        except Exception as error:  # nothing of the tuner's own ends the training
            self._give_up(error)
        self._ended_s = time.perf_counter()
        self._own_s += self._ended_s - begin_s

    def close(self) -> None:
        """Tune no more; a plan that is on trial goes."""
        if self._life is not None and self._trial is not None:
            self._switch(self._trial)
        if self._open is not None:
            self._open.reason, self._open.steps = (
                "the training ended before it was decided",
                self._number - self._open.first_step,
            )
            self._tell(self._open)
        self._life = None
        self._leave()

    def abandon(self) -> None:
        """Tune no more, and leave the model as it is: its training has broken off."""
        self._life = None
        with contextlib.suppress(Exception):
            self._leave()

    # ---- one life: rounds, and the clock between them

    def _live(self) -> _Steps:
        while True:
            decision = yield from self._round()
            self._tell(decision)
            yield from self._keep_time(decision.step_s or decision.present_s or 0.0)

    def _keep_time(self, step_s: float) -> _Steps:
        """Wait until the step has shifted, on whichever rank, and all ranks know."""
        clock = StepClock(step_s)
        while True:
            ended = clock.take((yield))
            if ended is None:
                continue
            window = self._number
            if ended:
                self._group.note_shift(window)
            yield from _pass(HEARD_AFTER, [])
            if self._group.shifted(window):
                return

    def _round(self) -> _Steps:
        """Tune once; return the decision."""
        begun, own_s, taken = self._number, self._own_s, list[float]()
        present = caps_in_force(self._wrapped)
        decision = self._open = RoundDecision(begun, present, present)
        yield from _pass(WARM_UP, [])
        yield from self._decide(decision, taken)
        decision.steps = self._number - begun
        decision.own_s = self._own_s - own_s
        base_s = decision.present_s or (median(taken) if taken else 0.0)
        decision.present_s = base_s
        decision.lost_s = sum(taken) - base_s * len(taken) + decision.own_s
        self._trial = self._open = None
        return decision

    def _decide(self, decision: RoundDecision, taken: list[float]) -> _Steps:
        plans, step_s, groups = yield from self._observe(decision, taken)
        if groups is None:
            return
        present: Plan = decision.present, groups
        candidates = yield from self._predict(decision, taken, plans, step_s)
        if not candidates:
            return
        yield from self._try(decision, taken, present, candidates)

    # ---- observe

    def _observe(self, decision: RoundDecision, taken: list[float]) -> _Steps:
        """Return all ranks' steps by plan (on rank 0), the usual step, and the present buckets."""
        own, seen = yield from self._stamped(OBSERVED, taken)
        heard = self._group.gather((own, seen, self._observer.unfit))
        asked: list[Plan] = []
        present: Groups | None = None
        plans: list[list[RankSteps]] = []
        step_s = 0.0
        unfit = next((why for *_, why in heard if why is not None), None)
        if self._group.leads and unfit is None and all(each is not None for _, each, _ in heard):
            plans.append([each for _, each, _ in heard])
            step_s = median(fmean(each) for each in zip(*(durations for durations, *_ in heard), strict=True))
            present = tuple(tuple(group) for group in plans[0][0].groups)
            asked = probes(self._observer.job, plans[0])
        asked, present, unfit = self._group.follow((asked, present, unfit))
        decision.reason = unfit or "no bucket was seen on its way"
        if present is None or not asked:
            return plans, step_s, present
        self._trial = decision.present, present
        for plan in asked:
            self._switch(plan)
            yield from _pass(SETTLING, taken)
            _, seen = yield from self._stamped(PROBED, taken)
            heard = self._group.gather(seen)
            if heard and all(each is not None for each in heard):
                plans.append(heard)
            decision.probed += 1
        self._switch((decision.present, present))
        self._trial = None
        return plans, step_s, present

    def _stamped(self, steps: int, taken: list[float]) -> _Steps:
        """Return the seconds of so many stamped steps, and what was seen in them."""
        watch = self._observer
        watch.begin()
        durations = []
        for _ in range(steps):
            durations.append((yield))
            watch.step()
        taken += durations
        return durations, watch.end()

    # ---- predict

    def _predict(
        self, decision: RoundDecision, taken: list[float], plans: Sequence[Sequence[RankSteps]], step_s: float
    ) -> _Steps:
        """Return the plans that are worth a trial, the same on every rank."""
        if self._predictor is not None:
            self._predictor.ask(Observed(self._observer.job, step_s, plans))
        least = (SETTLING + _LEAST_BLOCK) * len(turns(2))
        answer: tuple[str, list[Candidate]] | None = None
        while answer is None:
            yield from _pass(_ASKED_EVERY, taken)
            left = self._steps - (self._number - decision.first_step)
            answer = self._group.follow(self._answer(decision, last=left - _ASKED_EVERY < least))
        decision.reason, candidates = answer
        return candidates

    def _answer(self, decision: RoundDecision, *, last: bool) -> tuple[str, list[Candidate]] | None:
        """Return what rank 0 says now: why nothing is tried, or what is; None where it must wait."""
        if self._predictor is None:
            return None
        found = self._predictor.answer()
        if found is None:
            return ("the prediction was not there in time", []) if last else None
        if not isinstance(found, CapRanking):
            return str(found), []
        decision.ranking = found
        worth = [each for each in found.candidates[:TRIED] if (each.gain_high or 0.0) >= WORTH_IT]
        if worth:
            return "tried", worth
        best = max((each.gain_high or each.gain for each in found.candidates[:1]), default=0.0)
        return f"no plan is predicted to gain {WORTH_IT:.0%}: {max(best, 0.0):.1%} at most", []

    # ---- try and keep

    def _try(
        self, decision: RoundDecision, taken: list[float], present: Plan, candidates: Sequence[Candidate]
    ) -> _Steps:
        left = self._steps - (self._number - decision.first_step)
        plans: list[Plan] = [present, *((each.caps, each.groups) for each in candidates)]
        while len(plans) > 2 and left // len(turns(len(plans))) < SETTLING + _LEAST_BLOCK:
            plans.pop()
        order = turns(len(plans))
        length = min(_BLOCK, left // len(order) - SETTLING)
        steps: list[list[float]] = [[] for _ in plans]
        self._trial, running = present, 0
        for plan in order:
            if plan != running:
                self._switch(plans[plan])
                yield from _pass(SETTLING, taken)
                running = plan
            block = yield from _pass(length, taken)
            steps[plan] += block
        heard = self._group.gather(steps)
        measured = compare(_together(heard)) if self._group.leads else []
        stays = self._group.follow(kept(measured) if measured else 0)
        if stays != running:
            self._switch(plans[stays])
        self._judge(decision, candidates[: len(plans) - 1], measured, stays, steps)
        decision.kept = plans[stays][0]

    def _judge(
        self,
        decision: RoundDecision,
        tried: Sequence[Candidate],
        measured: Sequence[Measured],
        stays: int,
        steps: Sequence[Sequence[float]],
    ) -> None:
        decision.tried, decision.measured = tried, measured
        decision.present_s, decision.step_s = median(steps[0]), median(steps[stays])
        if not measured:
            decision.reason = "as rank 0 decided"
            return
        decision.present_s, decision.step_s = measured[0].step_s, measured[stays].step_s
        best = max(measured[1:], key=lambda each: each.saved_s)
        saved = best.saved_s / measured[0].step_s
        if stays:
            saved = measured[stays].saved_s / measured[0].step_s
            decision.reason = f"measured {saved:.1%} faster over {measured[stays].steps} steps, at 95 %"
        else:
            decision.reason = f"what was tried is not surely faster: {saved:+.1%} over {best.steps} steps"

    # ---- of this rank

    @property
    def _group(self) -> Words:
        assert self._words is not None
        return self._words

    @property
    def _observer(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._wrapped)
        return self._watch

    def _switch(self, plan: Plan) -> None:
        rewrap(self._wrapped, *plan)

    def _agreed_refusal(self, model: nn.Module) -> str | None:
        """Return why this model is not tuned, the same on every rank; makes the group by which they agree."""
        if self._wrapped is None:
            return refusal(model)
        group = self._wrapped.process_group
        if dist.get_world_size(group) < 2:
            return "one rank alone sends nothing"
        self._words = Words(group)
        heard = self._words.gather(refusal(model))
        reason: str | None = self._words.follow(next((each for each in heard if each is not None), None))
        return reason

    def _tell(self, decision: RoundDecision) -> None:
        self.decisions.append(decision)
        if self._group.leads:
            self._say(decision.line())
            if self._out is not None:
                write_page(self._out, self.decisions)

    def _say(self, line: str) -> None:
        if self._words is None or self._words.leads:
            print(line, file=sys.stderr, flush=True)

    def _give_up(self, error: Exception) -> None:
        self.abandon()
        text = f"ddpexec.tuned stopped, and the training goes on: {type(error).__name__}: {error}"
        warnings.warn(text, stacklevel=3)

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.end()
        if self._predictor is not None:
            self._predictor.close()
        if self._words is not None:
            self._words.close()


def _pass(steps: int, taken: list[float]) -> _Steps:
    """Let so many steps pass; return their seconds, which are added to `taken` too."""
    seconds = []
    for _ in range(steps):
        one = yield
        seconds.append(one)
    taken += seconds
    return seconds


def _together(heard: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Return each plan's steps, each the mean of all ranks': they leave a step together, but for a moment."""
    return [[fmean(each) for each in zip(*plans, strict=True)] for plans in zip(*heard, strict=True)]
