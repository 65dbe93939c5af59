"""Laws over random jobs: whether a step goes the way that it must, and if not, whether NCCL's choices are why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from random import Random

from ddpsim.common.errors import InputError
from studies.laws import jobs
from studies.laws.forced import CHOICES, chosen_as_for
from studies.laws.jobs import Job, job_of

ROUNDING = 1e-3
"""Of a step: times of chunks and shares of a flow are cut at other places when rates differ; less than is told."""

DIGITS = (1e-6, 1e-6)
"""Of numbers that are the same: sums of times are rounded otherwise."""

PERCENTS = (0.5, 1.0)
"""Of savings of one per cent. Where two resources are nearly as late, each by itself saves less than both; what NCCL's
channels move is of no resource; a collective that meets computation, or does so no more, adds or spares a kernel, half
a millisecond of vgg16. A step that is smooth in all its times, each of a resource, would save exactly as much.
"""


@dataclass(frozen=True, slots=True)
class Law:
    """A law is a change after which a step is no longer than before, or with `equal` as long.

    Attributes:
        before: what is made of a random job first.
        within: share of a step that is allowed for rounding, below and above.
        times_s: what is compared of both jobs; None is their steps, as far as NCCL's choices allow.
        scaled: whether NCCL is to choose as before, whose own table keeps its units, and the step times the job's
            `pace` is compared.
    """

    name: str
    after: Callable[[Job, Random], Job]
    before: Callable[[Job, Random], Job] = lambda job, random: job
    equal: bool = False
    scaled: bool = False
    within: tuple[float, float] = (ROUNDING, ROUNDING)
    times_s: Callable[[Job, Job], tuple[float, float]] | None = None

    def holds(self, before_s: float, after_s: float) -> bool:
        """Return whether two steps are as the law has them."""
        below, above = self.within
        if self.equal and after_s < before_s * (1 - below):
            return False
        return after_s <= before_s * (1 + above)

    def compared_s(self, before: Job, after: Job) -> tuple[float, float]:
        """Return what the law compares of a job and the changed one."""
        if self.times_s is not None:
            return self.times_s(before, after)
        before_s = before.step_s()
        with chosen_as_for(before.placement(), CHOICES) if self.scaled else nullcontext():
            return before_s, after.step_s() * (after.pace or 1.0)


LAWS = (
    Law("more bandwidth", jobs.more_bandwidth),
    Law("less latency", jobs.less_latency),
    Law("faster device", jobs.faster_device),
    Law("more memory", jobs.more_memory, jobs.short_of_memory),
    Law("fewer nodes", jobs.fewer_nodes),
    Law("fewer GPUs", jobs.fewer_gpus),
    Law("permuted nodes", jobs.slow_other_node, jobs.slow_first_node, equal=True),
    Law("scaled units", jobs.all_faster, jobs.of_known_constants, equal=True, scaled=True),
    Law("same file", jobs.same_file, equal=True),
    Law("one stage", jobs.one_stage, jobs.accumulating, equal=True, within=DIGITS),
    Law("one rank", jobs.unchanged, jobs.one_rank, equal=True, within=DIGITS, times_s=jobs.hidden_and_whole_s),
    Law("one per cent", jobs.unchanged, jobs.of_resources, equal=True, within=PERCENTS, times_s=jobs.percents_s),
    Law("calibrated row", jobs.unchanged, equal=True, within=DIGITS, times_s=jobs.rows_s),
    Law("same number", jobs.unchanged, jobs.of_any_workload, equal=True, within=DIGITS, times_s=jobs.told_s),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        what: `holds`, `broken`, or `choice` where the law holds once NCCL's choices are forced to be the same.
        cause: which of its choices.
    """

    law: str
    what: str
    case: str
    before_s: float = 0.0
    after_s: float = 0.0
    cause: str = ""


def judged(seed: int, number: int) -> Outcome:
    """Return what became of one case; seed and number make the same one each time."""
    random = Random(f"{seed} {number}")
    law = LAWS[number % len(LAWS)]
    while True:
        try:
            before = law.before(job_of(random), random)
            after = law.after(before, random)
            before_s, after_s = law.compared_s(before, after)
            break
        except InputError:
            continue
    if law.holds(before_s, after_s):
        return Outcome(law.name, "holds", str(before), before_s, after_s)
    cause = next((cause for cause, pair in _forced(law, before, after, before_s, after_s) if law.holds(*pair)), "")
    return Outcome(law.name, "choice" if cause else "broken", str(before), before_s, after_s, cause)


def _forced(
    law: Law, before: Job, after: Job, before_s: float, after_s: float
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield each of NCCL's choices with the steps before and after once it is the same in both.

    First the earlier machine's is forced on the later one, then the other way round; of nodes that change places, a
    ring on both, for a node's place in NCCL's trees is by its number (`src/graph/trees.cc`). Of fewer GPUs of a node
    other channels are found: links are made as much faster as the earlier ones carry more.
    """
    if law.scaled or law.within != (ROUNDING, ROUNDING):
        return
    if law.name == "permuted nodes" and before.options.algorithm != "ring":
        ring = (replace(job, options=replace(job.options, algorithm="ring")) for job in (before, after))
        earlier, later = (job.step_s() for job in ring)
        yield "a node's place in trees", (earlier, later)
        return
    if before.gpus != after.gpus:
        yield "channels that carry as much", (before_s, jobs.with_channels_as_fast(after, before).step_s())
    other = (before.nodes, before.gpus) != (after.nodes, after.gpus)
    for choices in CHOICES[:1] if other else (CHOICES[:1], CHOICES[1:], CHOICES):
        choices = (choices,) if isinstance(choices, str) else choices
        cause = " and ".join(choices)
        with chosen_as_for(before.placement(), choices, per_rank=other):
            yield f"{cause} of before", (before_s, after.step_s())
        with chosen_as_for(after.placement(), choices, per_rank=other):
            yield f"{cause} of after", (before.step_s(), after_s)
