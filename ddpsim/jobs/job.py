"""A training job, simulated or real: what follows from its options, for both packages alike, and what it may not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, initial_plan, unused_plan
from ddpsim.bucketing.drop import DropPlan, aligned_plan, layers_named
from ddpsim.errors import InputError
from ddpsim.jobs.exclusions import SHARED, refuse_excluded
from ddpsim.jobs.job_options import JobOptions
from ddpsim.options.input_stage import InputStage, input_stage
from ddpsim.options.option import check_at_least_one, check_choices, positive
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.schemes import without_overlap
from ddpsim.schedules.setup import SchemeInputs

if TYPE_CHECKING:
    from ddpsim.order.policy import OrderPolicy
    from ddpsim.workload import Workload


MOST_GROUPS = 64
"""Process groups that take turns; each has streams and connections of its own."""


def check_job(job: JobOptions) -> None:
    """Refuse a job that cannot be.

    Raises:
        InputError: it names the option, or both of two.
    """
    check_at_least_one("accumulate", job.accumulate)
    if not isinstance(job.caps, BucketCaps):
        what, remedy = f"{job.caps!r} is of type {type(job.caps).__name__}", "give BucketCaps(bucket_cap_mb=25)"
        raise InputError(what, place="caps", remedy=remedy)
    check_at_least_one("process_groups", job.process_groups, MOST_GROUPS)
    slower = {f"stragglers[{rank}]": factor for rank, factor in job.stragglers.items()}
    for name, factor in {"scale_compute": job.scale_compute, **slower}.items():
        positive(name, factor)
    for layer, probability in job.drop.items():
        if not 0 <= probability <= 1:
            remedy = "give a number from 0 to 1"
            raise InputError(f"{probability!r} is not a probability", place=f"drop[{layer}]", remedy=remedy)
    if not 0 <= job.seed < 1 << 63:
        raise InputError(f"{job.seed} is not a seed", place="seed", remedy="give a number from 0 to 2^63 - 1")
    if (job.order, job.predictor, job.consensus) != (None, "last", "rank0"):
        _check_order(job)
    if job.compression != "none":
        _ = job.codec
    scheme_named(job.scheme)
    refuse_excluded(job, SHARED)


def _check_order(job: JobOptions) -> None:
    from ddpsim.order.predictors import predictor
    from ddpsim.order.rebuild import rebuild

    try:
        predictor(job.predictor)
    except InputError as error:
        error.at("predictor")
    if job.order is None:
        remedy = "add `order=once`, or drift"
        raise InputError("`predictor` and `consensus` say nothing without `order`", remedy=remedy)
    try:
        rebuild(job.order)
    except InputError as error:
        error.at("order")


NO_INPUT, RECORDED_INPUT = "none", "recorded"
"""Values of `input_stage` that are no text of one."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job(JobOptions):
    """What a user asks of one training run, simulated or real.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    def __post_init__(self) -> None:
        check_choices(self)
        check_job(self)
        if self.input_stage not in (NO_INPUT, RECORDED_INPUT):
            input_stage(self.input_stage)

    @property
    def sync_every(self) -> int:
        """Of how many iterations the last one reduces gradients."""
        return self.accumulate if self.sync == "last" else 1

    def step_times(
        self, iteration_s: float, low_s: float | None = None, high_s: float | None = None
    ) -> dict[str, object]:
        """Return what documents say of a step where an iteration, a micro-batch, takes `iteration_s` in the mean.

        Args:
            iteration_s: of a micro-batch.
            low_s, high_s: its band, where it has one.
        """
        ends = {} if low_s is None or high_s is None else {"step_low_s": low_s, "step_high_s": high_s}
        return {
            "accumulate": self.accumulate,
            "sync": self.sync,
            "step_s": self.accumulate * iteration_s,
            **{name: self.accumulate * seconds for name, seconds in ends.items()},
            "micro_batch_s": iteration_s,
        }

    @property
    def assignment_in_force(self) -> str:
        """The assignment, where torch's search for unused parameters decides on it too."""
        return "unused" if self.find_unused_parameters and self.assignment == "rebuilt" else self.assignment

    def drop_plan(self, parameters: Sequence[Parameter]) -> DropPlan | None:
        """Return which layers each iteration leaves out; None where none are.

        Raises:
            PlanError: a layer without parameters, or layers inside each other.
        """
        return DropPlan(layers_named(parameters, self.drop), self.seed) if self.drop else None

    def aligned_plan(self, parameters: Sequence[Parameter]) -> BucketPlan | None:
        """Return the plan that keeps droppable layers apart, in the reverse of registration; None where none is asked.

        It is fixed before the first backward, in which an order could be seen.
        """
        if not self.drop or self.drop_buckets != "aligned":
            return None
        order = range(len(parameters) - 1, -1, -1)
        return aligned_plan(parameters, layers_named(parameters, self.drop), self.caps.limits(), order)

    def order_policy(self, count: int) -> OrderPolicy | None:
        """Return one rank's policy for a model of `count` parameters; None where torch's own is in force."""
        if self.order is None:
            return None
        from ddpsim.order.policy import OrderPolicy
        from ddpsim.order.predictors import predictor
        from ddpsim.order.rebuild import rebuild

        unused = "first" if self.find_unused_parameters else "last"
        return OrderPolicy(count, rebuild(self.order), predictor(self.predictor), self.consensus, unused)

    def first_plan(self, parameters: Sequence[Parameter], given: BucketPlan | None) -> BucketPlan:
        """Return the buckets of the first iteration, before any rebuild."""
        if given is not None:
            return given
        return (unused_plan if self.find_unused_parameters else initial_plan)(parameters, self.caps)

    def input_of(self, workload: Workload) -> InputStage | None:
        """Return how batches are loaded and copied; None where they are taken to be there.

        Raises:
            InputError: `recorded`, of a workload that has none.
        """
        if self.input_stage == NO_INPUT:
            return None
        if self.input_stage != RECORDED_INPUT:
            return input_stage(self.input_stage)
        if workload.input_stage is None:
            remedy = "capture a step that has a data loader, or write e.g. load=12ms,workers=4,copy=38MB"
            raise InputError(f"{workload.name} has no input stage recorded", place="input_stage", remedy=remedy)
        return workload.input_stage

    def check_ranks(self, world_size: int) -> None:
        """Raise InputError where a straggler is no rank of a job of `world_size`."""
        for rank in self.stragglers:
            if not 0 <= rank < world_size:
                what, remedy = (
                    f"rank {rank} is not in a world of {world_size}",
                    f"give a rank from 0 to {world_size - 1}",
                )
                raise InputError(what, place="stragglers", remedy=remedy)

    @property
    def period(self) -> int:
        """Iterations after which what is sent repeats: those of a step, times the scheme's steps."""
        return self.accumulate * scheme_named(self.scheme).steps

    @property
    def asynchronous(self) -> bool:
        """Whether each rank goes on without the others."""
        return scheme_named(self.scheme).asynchronous

    @property
    def periodic(self) -> dict[str, int]:
        """What the provenance of a trace says of the optimizer's steps after which what is sent repeats, if several."""
        steps = scheme_named(self.scheme).steps
        return {"steps": steps} if steps > 1 else {}

    def schedule(self, setup: SchemeInputs) -> Schedule:
        """Return the schedule of a job with this setup.

        Raises:
            PlanError: one that cannot be carried out; it names the message or the parameter.
        """
        made = scheme_named(self.scheme).schedule(setup)
        return without_overlap(made) if self.overlap == "off" else made
