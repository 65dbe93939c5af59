"""The tuner: observes some steps, has every cap predicted, tries the plans ranked first, keeps what is measured faster.

Start with `Tuner._live` and `_round`. The tuner works between steps, inside `Tuner.step`, which every rank calls
equally often. A rank on which it fails leaves the control channel and trains on; ranks that wait for it there get an
error and leave too.

`probes` makes plans that are run for a few steps to see messages of other sizes, where those of the present plan are
all alike. `StepClock` is what remains once a round is decided: it tells when the step has shifted.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch.distributed as dist
from torch import nn

from ddpexec.errors import OptionError
from ddpexec.tuning.control_channel import ControlChannel
from ddpexec.tuning.decision import RoundDecision, Steps, Trials, run_steps, write_page
from ddpexec.tuning.observation import Observed, ObservedJob, RankSteps
from ddpexec.tuning.observing import Watch
from ddpexec.tuning.plan import DDP, Groups, TrialPlan, call_of
from ddpexec.tuning.predictor import PredictingProcess
from ddpexec.tuning.racing import PRESENT
from ddpexec.tuning.ranking import Candidate, CapRanking, choose
from ddpexec.tuning.rewrapping import caps_in_force, find_wrapped, is_scheduled, refusal
from ddpexec.tuning.switching import PlanSwitch
from ddpexec.tuning.wires import APART, wire_of
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.common.files import check_writable_folder
from ddpsim.common.other_work import ProcessorClock, find_other_work
from ddpsim.common.units import MIB
from ddpsim.planning.worth import WORTH_IT

_SMALLER, _LARGER = 0.45, 2.2
"""Caps of the two probing plans over the largest message of the present one: just as far from it as it takes to tell
bytes from latency (`APART`), since a plan far from the present one is far from the best as often."""


def probes(job: ObservedJob, ranks: Sequence[RankSteps]) -> list[TrialPlan]:
    """Return at most two plans to probe with; none where the present plan's messages tell bytes from latency."""
    wire = wire_of([ranks])
    if wire is None or wire.apart:
        return []
    order = [index for group in ranks[0].groups for index in group]
    sizes = [size for size, _ in wire.seen]
    plans: list[TrialPlan] = []
    for share in (_SMALLER, _LARGER):
        caps = BucketCaps(bucket_cap_mb=share * sizes[-1] / MIB)
        plan = rebuilt_plan(job.parameters, caps, order)
        bucket_bytes = [bucket.size_bytes for bucket in plan.buckets]
        if max(*bucket_bytes, *sizes) >= APART * min(*bucket_bytes, *sizes):
            plans.append(TrialPlan(caps, tuple(tuple(group) for group in plan.groups())))
    return plans


WINDOW = 100
"""Steps of which the median is held against the step as it was decided on."""
SHIFT = 0.05
"""Share by which the step must have changed to be tuned for anew."""


class StepClock:
    """Collects the seconds of each step and reports at the end of a window whether they have shifted.

    Args:
        step_s: usual step when it was decided; the first window that has not shifted takes its place.
    """

    def __init__(self, step_s: float) -> None:
        self._steps: list[float] = []
        self._usual_s, self._settled = step_s, False
        self.windows = 0

    def take(self, seconds: float) -> bool | None:
        """Take one step; return whether the window that it ends has shifted, None where it ends none."""
        self._steps.append(seconds)
        if len(self._steps) < WINDOW:
            return None
        now_s = median(self._steps)
        self._steps.clear()
        self.windows += 1
        if abs(now_s / self._usual_s - 1) > SHIFT:
            return True
        if not self._settled:
            self._usual_s, self._settled = now_s, True
        return False


STEPS = 100
"""Steps within which a round is over."""
LEAST_STEPS = 60
"""Fewer leave no room for blocks that tell plans apart."""
WARM_UP, OBSERVED, PROBED = 5, 6, 3
"""Steps that are not looked at, as buckets are rebuilt and caches filled; steps stamped of the present plan, and of
one that probes. By hand: their median leaves the odd one out."""
_ASKED_EVERY = 2
"""Steps between two questions whether the prediction is there."""
_LEAST_TRIED = 24
"""Steps without which nothing is tried: three blocks of two plans."""
SMALL_BYTES = 64
"""Bytes of a message that takes latency alone."""
HEARD_AFTER = 2
"""Synchronised steps after a window, from which on every rank can see what any has noted of it."""


class Tuner:
    """Tunes the buckets of one model while it trains; call `step` after each step of its optimizer, on every rank.

    Args:
        model: torch's DDP or ours, with or without a scheme, or what holds one; it stays the object that it is.
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
        self._words: ControlChannel | None = None
        self._predictor: PredictingProcess | None = None
        self._watch: Watch | None = None
        self._present: TrialPlan | None = None
        self._switch: PlanSwitch | None = None
        self._open: RoundDecision | None = None
        self._wrapped: Any = find_wrapped(model)
        self.decisions: list[RoundDecision] = []
        self.refused = self._agree_on_refusal(model)
        self._life: Steps | None = None
        if self.refused is not None:
            self._say(f"ddpexec.tuned: the buckets stay as they are, for {self.refused}")
            self._leave()
            return
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
        if self._life is not None and self._present is not None:
            self._use(self._present)
            if self._switch is not None:
                self._switch.settle()
        if self._open is not None:
            self._open.reason = "the training ended before it was decided"
            self._open.steps = self._number - self._open.first_step
            self._tell(self._open)
        self._life = None
        self._leave()

    def abandon(self) -> None:
        """Tune no more, and leave the model as it is: its training has broken off."""
        self._life = None
        with contextlib.suppress(Exception):
            self._leave()

    # ---- one life: rounds, and the clock between them

    def _live(self) -> Steps:
        # The tuner is a coroutine: each `yield` hands control back to the training until its next step is over, whose
        # seconds come back as the value. Every rank runs the same yields, for each message of the control channel is
        # sent between the same two steps on all of them; a rank that took another branch would leave the others
        # waiting. So what branches is decided on rank 0 and told by `follow`.
        while True:
            decision = yield from self._round()
            self._tell(decision)
            yield from self._keep_time(decision.step_s or decision.present_s or 0.0)

    def _keep_time(self, step_s: float) -> Steps:
        """Wait until the step has shifted, on whichever rank, and all ranks know."""
        clock = StepClock(step_s)
        while True:
            ended = clock.take((yield))
            if ended is None:
                continue
            window = self._number
            # A rank alone sees its shift, and a message only for that would be sent in every window. It leaves a note
            # in the store instead, and two synchronised steps later all ranks read the same.
            if ended:
                self._group.note_shift(window)
            yield from run_steps(HEARD_AFTER, [])
            if self._group.is_shifted(window):
                return

    def _round(self) -> Steps:
        """Tune once; return the decision."""
        begun, own_s, taken, clock = self._number, self._own_s, list[float](), ProcessorClock()
        if self._group.leads:
            self._predictor = PredictingProcess()
        line = self._line(caps_in_force(self._wrapped))
        decision = self._open = RoundDecision(begun, line, line, scheduled=self._scheduled)
        yield from run_steps(WARM_UP, [])
        yield from self._decide(decision, taken)
        decision.steps = self._number - begun
        decision.other_work = find_other_work([clock.since()])
        decision.own_s = self._own_s - own_s
        base_s = decision.present_s or (median(taken) if taken else 0.0)
        decision.present_s = base_s
        decision.lost_s = sum(taken) - base_s * len(taken) + decision.own_s
        self._open = None
        if self._switch is not None:
            self._switch.settle()
        self._forget()
        return decision

    def _decide(self, decision: RoundDecision, taken: list[float]) -> Steps:
        if self._scheduled and self._wrapped.learns:
            decision.reason = f"it still learns when gradients come: give `learn={WARM_UP - 1}` or less"
            return
        if self._scheduled:
            yield from self._reduce_as_ddp(taken)
        plans, step_s, groups, small_s = yield from self._observe(decision, taken)
        present = self._present
        if groups is not None:
            present = present or TrialPlan(caps_in_force(self._wrapped), groups)
            if self._predictor is not None:
                small = None if small_s is None else (SMALL_BYTES, small_s)
                job = replace(self._observer.job, scheme=present.scheme)
                self._predictor.ask(Observed(job, step_s, plans, small))
            candidates = yield from self._predict(decision, taken, present)
            if candidates:
                yield from self._try(decision, taken, present, candidates)
                return
        if present is not None:
            self._use(present)

    def _reduce_as_ddp(self, taken: list[float]) -> Steps:
        """Let a module under a scheme reduce as DDP does, with its own buckets: that is what is observed."""
        wrapped = self._wrapped
        groups, caps = tuple(map(tuple, wrapped.plan.groups())), wrapped.caps
        schedule = None if wrapped.schedule.scheme == DDP else wrapped.schedule
        self._present = TrialPlan(caps, groups, schedule)
        self._switch = PlanSwitch(wrapped, self._present)
        yield from run_steps(self._switch.use(TrialPlan(caps, groups)), taken)

    def _try(
        self, decision: RoundDecision, taken: list[float], present: TrialPlan, candidates: Sequence[Candidate]
    ) -> Steps:
        """Try what is worth it; what stays is in force then."""
        self._present, self._switch = present, self._switch or PlanSwitch(self._wrapped, present)
        trials = Trials(self._group, self._switch, present, candidates, decision.ranking)
        stays = yield from trials.run(lambda: self._steps - (self._number - decision.first_step), taken)
        winner = trials.plans[stays]
        decision.kept = decision.present if stays == PRESENT else self._line(winner.caps, winner.scheme)
        if self._group.leads:
            decision.judge(trials.tried, trials.race.measure(), stays)
        else:
            decision.follow(trials.tried, trials.own_steps, stays)

    # ---- observe

    def _observe(self, decision: RoundDecision, taken: list[float]) -> Steps:
        """Return all ranks' steps by plan (on rank 0), the usual step, the present buckets, and a small message."""
        with _disable_collection():
            own, seen = yield from self._run_stamped(OBSERVED, taken)
            reports = self._group.gather((own, seen, self._observer.unfit))
        small_s = self._group.measure_small_message_s(SMALL_BYTES) if self._observer.job.backend == "gloo" else None
        to_probe: list[TrialPlan] = []
        present: Groups | None = None
        plans: list[list[RankSteps]] = []
        step_s = 0.0
        # One rank whose stamps are of no use is enough: all keep their plan, for the same reason.
        unfit = next((why for *_, why in reports if why is not None), None)
        if self._group.leads and unfit is None and all(each is not None for _, each, _ in reports):
            plans.append([each for _, each, _ in reports])
            step_s = median(fmean(each) for each in zip(*(durations for durations, *_ in reports), strict=True))
            present = tuple(tuple(group) for group in plans[0][0].groups)
            to_probe = probes(self._observer.job, plans[0]) if small_s is None else []
        to_probe, present, unfit = self._group.follow((to_probe, present, unfit))
        decision.reason = unfit or "no bucket was seen on its way"
        if present is not None and to_probe:
            observed = TrialPlan(caps_in_force(self._wrapped), present)
            yield from self._probe(decision, observed, to_probe, plans, taken)
        return plans, step_s, present, small_s

    def _probe(
        self,
        decision: RoundDecision,
        observed: TrialPlan,
        to_probe: Sequence[TrialPlan],
        plans: list[list[RankSteps]],
        taken: list[float],
    ) -> Steps:
        """Add what is seen of plans that give messages of other sizes."""
        self._present, self._switch = self._present or observed, self._switch or PlanSwitch(self._wrapped, observed)
        for plan in to_probe:
            yield from run_steps(self._switch.use(plan), taken)
            _, seen = yield from self._run_stamped(PROBED, taken)
            reports = self._group.gather(seen)
            if reports and all(each is not None for each in reports):
                plans.append(reports)
            decision.probed += 1
        yield from run_steps(self._switch.use(observed), taken)

    def _run_stamped(self, steps: int, taken: list[float]) -> Steps:
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

    def _predict(self, decision: RoundDecision, taken: list[float], present: TrialPlan) -> Steps:
        """Return the plans that are worth a trial, the same on every rank."""
        answer: tuple[str, list[Candidate]] | None = None
        while answer is None:
            yield from run_steps(_ASKED_EVERY, taken)
            left = self._steps - (self._number - decision.first_step)
            answer = self._group.follow(self._answer(decision, present, last=left - _ASKED_EVERY < _LEAST_TRIED))
        decision.reason, candidates = answer
        return candidates

    def _answer(self, decision: RoundDecision, present: TrialPlan, *, last: bool) -> tuple[str, list[Candidate]] | None:
        """Return what rank 0 says now: why nothing is tried, or what is; None where it must wait."""
        if self._predictor is None:
            return None
        answer = self._predictor.answer()
        if answer is None:
            return ("the prediction was not there in time", []) if last else None
        self._predictor.close()
        if not isinstance(answer, CapRanking):
            return str(answer), []
        decision.ranking = answer
        if worth := choose(answer, present):
            return "tried", worth
        others = [each for each in answer.candidates if each.plan.key != present.key]
        best = max((each.gain_high or each.gain for each in others), default=0.0)
        return f"no plan is predicted to gain {WORTH_IT:.0%}: {max(best, 0.0):.1%} at most", []

    # ---- of this rank

    @property
    def _group(self) -> ControlChannel:
        assert self._words is not None
        return self._words

    @property
    def _observer(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._wrapped)
        return self._watch

    @property
    def _scheduled(self) -> bool:
        """Whether the module is under the schedule of a scheme, for which another may be tried."""
        return is_scheduled(self._wrapped)

    def _line(self, caps: BucketCaps, scheme: str | None = None) -> str:
        """Return the line that gives a plan, by default the one in force."""
        if not self._scheduled:
            return call_of(caps)
        return call_of(caps, scheme or self._wrapped.schedule.scheme)

    def _use(self, plan: TrialPlan) -> None:
        if self._switch is not None:
            self._switch.use(plan)

    def _forget(self) -> None:
        """Let no other plan wait, and no process predict: what is left is the plan in force."""
        if self._switch is not None:
            self._switch.forget()
        self._switch = self._present = None
        if self._predictor is not None:
            self._predictor.close()
            self._predictor = None

    def _agree_on_refusal(self, model: nn.Module) -> str | None:
        """Return why this model is not tuned, the same on every rank; makes the group by which they agree."""
        if self._wrapped is None:
            return refusal(model)
        group = self._wrapped.process_group
        if dist.get_world_size(group) < 2:
            return "one rank alone sends nothing"
        self._words = ControlChannel(group)
        reasons = self._words.gather(refusal(model))
        reason: str | None = self._words.follow(next((each for each in reasons if each is not None), None))
        return reason

    def _tell(self, decision: RoundDecision) -> None:
        self.decisions.append(decision)
        if self._group.leads:
            for line in (decision.line(), *decision.notes()):
                self._say(line)
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
        self._forget()
        if self._words is not None:
            self._words.close()


@contextlib.contextmanager
def _disable_collection() -> Iterator[None]:
    """Disable garbage collection: the objects of stamps trigger a full collection, of 0.4 s with a large model."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
