"""The options of a training job that both packages understand alike, what follows from them, and what they refuse.

Each field of `JobOptions` is an option, with its words for the command line; methods are what follows from several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, initial_plan, unused_plan
from ddpsim.bucketing.drop import DropPlan, aligned_plan, layers_named
from ddpsim.bucketing.order.consensus import Consensus
from ddpsim.bucketing.plan import Assignment
from ddpsim.collectives.conditions import Backend
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.input_stage import InputStage, input_stage
from ddpsim.common.options.option import Option, Section, check_at_least_one, check_choices, default_of, positive
from ddpsim.common.options.text import factors, probabilities
from ddpsim.schedules.compression import CompressionScheme, scheme
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.schemes import without_overlap
from ddpsim.schedules.setup import SchemeInputs

if TYPE_CHECKING:
    from ddpsim.bucketing.order.policy import OrderPolicy
    from ddpsim.workload import Workload

Sync = Literal["last", "every"]
DropBuckets = Literal["mixed", "aligned", "remapped"]

MOST_GROUPS = 64
"""Process groups that take turns; each has streams and connections of its own."""

NO_INPUT, RECORDED_INPUT = "none", "recorded"
"""Values of `input_stage` that are no text of one."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobOptions:
    """What a user asks of one training run, simulated or real.

    Attributes:
        caps: bucket caps as torch's constructor takes them.
        assignment: which of torch's assignments: `rebuilt`, `initial` or `unused`.
        backend: of the process group; None is the natural one.
        accumulate: micro-batches whose gradients are added up before the optimizer's step; an iteration is one of them.
        sync: which of them reduce gradients: the `last` of a step, the others under `no_sync()`, or `every` one.
        find_unused_parameters: search the graph each forward and reduce a bitmap at the end.
        gradient_as_bucket_view: gradients live in their bucket, so that nothing is copied out.
        broadcast_buffers: rank 0's buffers are broadcast before a forward.
        process_groups: round-robin process groups.
        stragglers: rank to factor on its computing time.
        comm: `real`, or `noop` for hooks and copies without any collective.
        compression: what `ddpsim.schedules.compression.scheme` reads: `fp16`, `powersgd:4`, ...
        drop: dotted name of a layer to the probability that an iteration leaves it out.
        drop_buckets: what buckets do where layers are left out, whose bytes are spared only where a bucket has nothing
            else: `mixed` are as without, `aligned` keep each layer apart, `remapped` move up what is left.
        order: when buckets are rebuilt in arrival order, as `bucketing.order.rebuild` reads it; None is as torch.
        predictor: which arrivals each rank expects, as `bucketing.order.predictor` takes it: name, class or object.
        consensus: whose expectation wins: `rank0`, `mean` or `slowest`.
        scheme: what is sent, when, and what waits for it, as `ddpsim.schedules.named.scheme_named` reads it.
        overlap: `off` sends nothing before backward has ended.
        input_stage: `none`, `recorded`, or what `ddpsim.common.options.input_stage.input_stage` reads.
        scale_compute: factor on device time.
        seed: of every draw, from 0 to 2^63 - 1.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    caps: BucketCaps = field(default_factory=BucketCaps)
    assignment: Annotated[
        Assignment,
        Option("torch's assignment: after its rebuild, of its first iteration, or of find_unused_parameters."),
        Section.BUCKETS,
    ] = "rebuilt"
    find_unused_parameters: Annotated[
        bool,
        Option(
            "As torch's option: its buckets where parameters may stay unused, a search and a bitmap each iteration."
        ),
        Section.BUCKETS,
    ] = False
    backend: Annotated[
        Backend | None,
        Option("Process group backend; nccl is RCCL on AMD's GPUs. [nccl on GPUs, gloo on CPUs]"),
        Section.JOB,
    ] = None
    accumulate: Annotated[
        int, Option("Micro-batches a step: their gradients add up.", "N", also=("no_sync_every",)), Section.JOB
    ] = 1
    sync: Annotated[
        Sync, Option("Which micro-batches reduce gradients: the last alone (no_sync), or every one."), Section.JOB
    ] = "last"
    gradient_as_bucket_view: Annotated[
        bool, Option("Gradients live in their bucket; no copy out."), Section.BUCKETS
    ] = False
    broadcast_buffers: Annotated[
        bool,
        Option(
            "Broadcast rank 0's buffers before a forward.", off="Do not broadcast rank 0's buffers before a forward."
        ),
        Section.BUCKETS,
    ] = True
    process_groups: Annotated[int, Option("Round-robin process groups.", "K"), Section.BUCKETS] = 1
    stragglers: Annotated[
        Mapping[int, float],
        Option(
            "Rank and factor on its compute time; may be repeated.",
            "RANK:F",
            name="straggler",
            parse=factors,
            repeated=True,
        ),
        Section.WHAT_IF,
    ] = field(default_factory=dict)
    comm: Annotated[
        Literal["real", "noop"], Option("noop: hooks and copies without communication, the floor."), Section.WHAT_IF
    ] = "real"
    compression: Annotated[
        str,
        Option("none, fp16, bf16, powersgd:RANK, onebit, topk:DENSITY or adaptive[:BITS].", "SCHEME"),
        Section.BUCKETS,
    ] = "none"
    drop: Annotated[
        Mapping[str, float],
        Option(
            "Leave a layer out of an iteration with probability P; may be repeated.",
            "LAYER:P",
            parse=probabilities,
            repeated=True,
        ),
        Section.BUCKETS,
    ] = field(default_factory=dict)
    drop_buckets: Annotated[
        DropBuckets,
        Option(
            "With `drop`: mixed, torch's buckets; aligned, none that holds a layer beside anything else; remapped, "
            "what is left moves up into the memory of the first buckets."
        ),
        Section.BUCKETS,
    ] = "mixed"
    order: Annotated[
        str | None,
        Option(
            "When buckets are rebuilt in arrival order; drift:TAU:EVERY looks every so many backwards. "
            "[as torch, and from the first iteration on]",
            "never|once|drift",
        ),
        Section.BUCKETS,
    ] = None
    predictor: Annotated[
        Any,
        Option(
            "With `order`: which arrivals a rank expects; package.module:Class is anybody's own.",
            "last|mean|exponential|branch|context",
            parse=lambda text, name: text,
            text="last",
        ),
        Section.BUCKETS,
    ] = "last"
    consensus: Annotated[Consensus, Option("With `order`: whose expectation wins."), Section.BUCKETS] = "rank0"
    scheme: Annotated[
        str,
        Option(
            "What is sent, when, and what waits for it: ddp, naive, flat, dataparallel, priority[:SEGMENT], dear, "
            "zero1, zero2, zero3, fsdp2[:noreshard,offload], hsdp:SHARDS, averaging:STEPS, slowmo:STEPS, "
            "local-sgd:STEPS, horovod, multiworker-mirrored, "
            "parameter-server[:servers=N|nodes=M|beside=K,async], parallax, gradientflow, or "
            "package.module:function.",
            "NAME",
        ),
        Section.BUCKETS,
    ] = "ddp"
    overlap: Annotated[
        Literal["on", "off"], Option("off: nothing is sent before backward has ended."), Section.BUCKETS
    ] = "on"
    input_stage: Annotated[
        str,
        Option(
            "How batches are loaded and copied to the GPU before forward: none, recorded (as the workload has it), or "
            "load=TIME,workers=N,copy=SIZE,rate=RATE with pinned, queued or pipelined.",
            "STAGE",
        ),
        Section.JOB,
    ] = "none"
    scale_compute: Annotated[
        float, Option("Factor on device time; 0.5 is twice as fast, in predictions only.", "F"), Section.WHAT_IF
    ] = 1.0
    seed: Annotated[int, Option("Of every draw.", "S"), Section.JOB] = 0

    def __post_init__(self) -> None:
        check_choices(self)
        _check(self)
        if self.input_stage not in (NO_INPUT, RECORDED_INPUT):
            input_stage(self.input_stage)

    def __repr__(self) -> str:
        """Return the options that differ from their defaults."""
        asked = ", ".join(
            f"{each.name}={value!r}" for each in fields(self) if (value := getattr(self, each.name)) != default_of(each)
        )
        return f"{type(self).__name__}({asked})"

    @property
    def codec(self) -> CompressionScheme:
        """How buckets are compressed."""
        try:
            return scheme(self.compression)
        except InputError as error:
            error.at("compression")

    @property
    def scheduled(self) -> bool:
        """Whether a schedule takes the place of DDP as torch has it."""
        return self.scheme != "ddp" or self.overlap == "off"

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
        from ddpsim.bucketing.order.policy import OrderPolicy
        from ddpsim.bucketing.order.predictors import predictor
        from ddpsim.bucketing.order.rebuild import rebuild

        unused = "first" if self.find_unused_parameters else "last"
        return OrderPolicy(count, rebuild(self.order), predictor(self.predictor), self.consensus, unused)

    def first_plan(self, parameters: Sequence[Parameter], plan: BucketPlan | None) -> BucketPlan:
        """Return the buckets of the first iteration, before any rebuild."""
        if plan is not None:
            return plan
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
    def ranks_meet(self) -> bool:
        """Whether ranks wait for each other where they send; else each goes on without the others."""
        return scheme_named(self.scheme).ranks_meet

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
        schedule = scheme_named(self.scheme).schedule(setup)
        return without_overlap(schedule) if self.overlap == "off" else schedule


def _check(job: JobOptions) -> None:
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
    refuse_excluded(job, "every job")


def _check_order(job: JobOptions) -> None:
    from ddpsim.bucketing.order.predictors import predictor
    from ddpsim.bucketing.order.rebuild import rebuild

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
