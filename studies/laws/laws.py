"""Laws over random jobs: whether a step goes the way that it must, and if not, whether NCCL's choices are why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from random import Random

from ddpsim.errors import InputError
from studies.laws import jobs
from studies.laws.forced import CHOICES, chosen_as_for
from studies.laws.jobs import Job, job_of

ROUNDING = 1e-3
"""Of a step: times of chunks and shares of a flow are cut at other places when rates differ; less than is told."""


@dataclass(frozen=True, slots=True)
class Law:
    """A law is a change after which a step is no longer than before, or with `equal` as long.

    Attributes:
        before: what is made of a random job first.
        scaled: whether NCCL is to choose as before, whose own table keeps its units, and the step times the job's
            `pace` is compared.
    """

    name: str
    after: Callable[[Job, Random], Job]
    before: Callable[[Job, Random], Job] = lambda job, random: job
    equal: bool = False
    scaled: bool = False

    def holds(self, before_s: float, after_s: float) -> bool:
        """Return whether two steps are as the law has them."""
        if self.equal and after_s < before_s * (1 - ROUNDING):
            return False
        return after_s <= before_s * (1 + ROUNDING)

    def after_s(self, before: Job, after: Job) -> float:
        """Return the step of the changed job, as the law compares it."""
        with chosen_as_for(before.placement(), CHOICES) if self.scaled else nullcontext():
            return after.step_s() * (after.pace or 1.0)


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
            before_s, after_s = before.step_s(), law.after_s(before, after)
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
    if law.scaled:
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
