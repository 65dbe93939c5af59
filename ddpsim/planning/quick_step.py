"""A step simulated just far enough to rank it: without a band, few of many micro-batches, and buckets only where
another cap could make it a leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError
from ddpsim.common.units import MIB
from ddpsim.planning.best_buckets import rests_on_buckets
from ddpsim.planning.worth import WORTH_IT
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.memory import Memory
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.engine import trace_of
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Workload

CAPS_MB = (5.0, 10.0, 40.0, 100.0, 200.0)
"""Uniform caps a search tries beside torch's default and one bucket, in MiB: every other of those that a plan tries."""

SIMULATED = 4
"""Micro-batches of a step that are simulated at most: each of those between the first and the last takes as long."""


@dataclass(frozen=True, slots=True)
class QuickStep:
    """A candidate after a quick simulation: what it needs and takes, or why it cannot be.

    Attributes:
        memory: of a rank; None where it is not judged, or the candidate cannot be.
        step_s: between two steps of the optimizer, with the best caps; None where it does not fit, or cannot be.
        caps: those; None are torch's.
        refused: why the candidate cannot be: message, place and remedy of the error.
    """

    memory: Memory | None = None
    step_s: float | None = None
    caps: BucketCaps | None = None
    refused: tuple[str, str | None, str | None] | None = None

    def __post_init__(self) -> None:
        if self.memory is None and self.step_s is None and self.refused is None:
            raise ValueError("a quick step that says nothing")  # as a file that was written by others may have it

    @property
    def error(self) -> InputError | None:
        """Why the candidate cannot be."""
        if self.refused is None:
            return None
        message, place, remedy = self.refused
        return InputError(message, place=place, remedy=remedy)


def ask_quick_step(answers: Answers, item: tuple[Job, float], caps: Sequence[BucketCaps] | None = None) -> QuickStep:
    """Return `quick_step` of a candidate, looked up where it was computed before."""
    caps_key = None if caps is None else list(map(repr, caps))
    return answers.ask(QuickStep, lambda: quick_step(item, caps), *item, caps_key, "quick step")


def quick_step(item: tuple[Job, float], caps: Sequence[BucketCaps] | None = None) -> QuickStep:
    """Return what a candidate needs and takes; one that does not fit is not simulated.

    Args:
        item: the job of one of its ranks, and the step in seconds that caps must be able to beat to be tried.
        caps: tried beside torch's default; None are `CAPS_MB`.
    """
    job, beat_s = item
    if job.options.fidelity == "steps":
        job = replace(job, options=replace(job.options, fidelity="flow"))
    try:
        run = SimulatedRun.of(job)
        memory = run.memory()
        if memory is not None and memory.fits is False:
            return QuickStep(memory)
        timed = _TimedBuckets.of(run)
    except InputError as error:
        return QuickStep(refused=(error.message, error.place, error.remedy))
    best_s, best = timed.default_s, None
    # Caps cost a simulation each: only where they can gain enough, and could make this a leader.
    worth = timed.savable_s > WORTH_IT * best_s and best_s - timed.savable_s < beat_s
    if worth and caps != () and rests_on_buckets(run):
        for cap in _caps_of(job.workload, job.options) if caps is None else caps:
            if (step_s := timed.step_s(cap)) < best_s:
                best_s, best = step_s, cap
    return QuickStep(memory, best_s, best)


def _caps_of(workload: Workload, options: Options) -> list[BucketCaps]:
    """Return the caps that are tried; those above all gradients of the largest stage make the same buckets there."""
    total_mb = max(part.workload.gradient_bytes for part in options.parts(workload)) / MIB
    return [BucketCaps(bucket_cap_mb=size) for size in (*(cap for cap in CAPS_MB if cap < total_mb), -(-total_mb // 1))]


@dataclass(slots=True)
class _TimedBuckets:
    """Times a step with other buckets, of many micro-batches by extrapolation.

    Micro-batches between the first and the last are alike, so that a step is linear in their number: steps of two
    counts tell the step of any other (`_whole_s`).

    Attributes:
        runs: of as many micro-batches as are simulated, and of one step of the cut fewer where a step has more.
        whole: micro-batches of a step.
        default_s: of a step with torch's own caps.
        savable_s: how much shorter other buckets can make it, at most: by all that waits for communication, and all
            that is spent on buckets.
    """

    runs: list[SimulatedRun]
    whole: int
    default_s: float
    savable_s: float

    @classmethod
    def of(cls, run: SimulatedRun) -> _TimedBuckets:
        whole = run.options.accumulate * run.options.forwards
        most, step = run.options.cut.tell_by_few(SIMULATED)
        counts = [whole] if whole <= most or (whole - most) % step else [most, most - step]
        runs = [replace(run, options=run.options.of_micro_batches(count)) for count in counts]
        periods_s, waits_s = list[float](), 0.0
        for each in runs:
            summary = summarise(trace_of(each.short()))
            periods_s.append(summary.iteration_s)
            waits_s = max(waits_s, each.options.accumulate * (summary.exposed_comm_s + summary.ddp_overhead_s))
        often = whole / counts[0] if run.options.sync == "every" else 1.0
        step_s = _whole_s([each.options.accumulate for each in runs], counts, periods_s, whole)
        return cls(runs, whole, step_s, waits_s * often)

    def step_s(self, caps: BucketCaps) -> float:
        """Return the time between two steps of the optimizer with other caps."""
        periods_s = [each.with_buckets(caps).plan_and_period()[1] for each in self.runs]
        options = [each.options for each in self.runs]
        counts = [each.accumulate * each.forwards for each in options]
        return _whole_s([each.accumulate for each in options], counts, periods_s, self.whole)


def _whole_s(times: Sequence[int], counts: Sequence[int], periods_s: Sequence[float], whole: int) -> float:
    """Return the step of `whole` micro-batches from steps of `counts`.

    Args:
        times: iterations of each of those.
        periods_s: of their iterations.
    """
    steps_s = [count * period_s for count, period_s in zip(times, periods_s, strict=True)]
    if len(counts) == 1:
        return steps_s[0]
    return steps_s[0] + (whole - counts[0]) * (steps_s[0] - steps_s[1]) / (counts[0] - counts[1])
