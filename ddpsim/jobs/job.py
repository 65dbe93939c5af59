"""What a user may ask of a training job, simulated or real: the options that both packages understand alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, initial_plan, unused_plan
from ddpsim.bucketing.drop import DropPlan, aligned_plan, layers_named
from ddpsim.bucketing.plan import Assignment
from ddpsim.compression import Scheme, scheme
from ddpsim.errors import InputError
from ddpsim.jobs.checks import check_job
from ddpsim.options.checks import known_choices
from ddpsim.options.option import Option
from ddpsim.options.text import factors, probabilities
from ddpsim.order import OrderPolicy, predictor, rebuild
from ddpsim.order.consensus import Consensus
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.schemes import without_overlap
from ddpsim.schedules.setup import Setup

Backend = Literal["nccl", "gloo"]
Sync = Literal["last", "every"]
DropBuckets = Literal["mixed", "aligned", "remapped"]


def _as_it_is(text: str, name: str) -> str:
    return text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job:
    """A job is what a user asks of one training run, simulated or real.

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
        compression: what `ddpsim.compression.scheme` reads: `fp16`, `powersgd:4`, ...
        drop: dotted name of a layer to the probability that an iteration leaves it out.
        drop_buckets: what buckets do where layers are left out, whose bytes are spared only where a bucket has nothing
            else: `mixed` are as without, `aligned` keep each layer apart, `remapped` move up what is left.
        order: when buckets are rebuilt in arrival order, as `ddpsim.order.rebuild` reads it; None is as torch.
        predictor: which arrivals each rank expects, as `ddpsim.order.predictor` takes it: a name, a class, an object.
        consensus: whose expectation wins: `rank0`, `mean` or `slowest`.
        scheme: what is sent, when, and what waits for it, as `ddpsim.schedules.named.scheme_named` reads it.
        overlap: `off` sends nothing before backward has ended.
        scale_compute: factor on device time.
        seed: of every draw, from 0 to 2^63 - 1.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    caps: BucketCaps = field(default_factory=BucketCaps)
    assignment: Annotated[
        Assignment,
        Option("torch's assignment: after its rebuild, of its first iteration, or of find_unused_parameters."),
    ] = "rebuilt"
    find_unused_parameters: Annotated[
        bool, Option("As torch's option: assignment `unused`, a search and a bitmap each iteration.")
    ] = False
    backend: Annotated[Backend | None, Option("Process group backend. [nccl on GPUs, gloo on CPUs]")] = None
    accumulate: Annotated[
        int, Option("Micro-batches a step: their gradients add up.", "N", also=("no_sync_every",))
    ] = 1
    sync: Annotated[Sync, Option("Which micro-batches reduce gradients: the last alone (no_sync), or every one.")] = (
        "last"
    )
    gradient_as_bucket_view: Annotated[bool, Option("Gradients live in their bucket; no copy out.")] = False
    broadcast_buffers: Annotated[bool, Option("Do not broadcast rank 0's buffers before a forward.")] = True
    process_groups: Annotated[int, Option("Round-robin process groups.", "K")] = 1
    stragglers: Annotated[
        Mapping[int, float],
        Option(
            "Rank and factor on its compute time; may be repeated.",
            "RANK:F",
            name="straggler",
            parse=factors,
            repeated=True,
        ),
    ] = field(default_factory=dict)
    comm: Annotated[Literal["real", "noop"], Option("noop: hooks and copies without communication, the floor.")] = (
        "real"
    )
    compression: Annotated[
        str, Option("none, fp16, bf16, powersgd:RANK, onebit, topk:DENSITY or adaptive[:BITS].", "SCHEME")
    ] = "none"
    drop: Annotated[
        Mapping[str, float],
        Option(
            "Leave a layer out of an iteration with probability P; may be repeated.",
            "LAYER:P",
            parse=probabilities,
            repeated=True,
        ),
    ] = field(default_factory=dict)
    drop_buckets: Annotated[
        DropBuckets,
        Option(
            "With `drop`: mixed, torch's buckets; aligned, none that holds a layer beside anything else; remapped, "
            "what is left moves up into the memory of the first buckets."
        ),
    ] = "mixed"
    order: Annotated[
        str | None,
        Option(
            "When buckets are rebuilt in arrival order; drift:TAU:EVERY looks every so many backwards. "
            "[as torch, and from the first iteration on]",
            "never|once|drift",
        ),
    ] = None
    predictor: Annotated[
        Any,
        Option(
            "With `order`: which arrivals a rank expects; package.module:Class is anybody's own.",
            "last|mean|exponential|branch|context",
            parse=_as_it_is,
            text="last",
        ),
    ] = "last"
    consensus: Annotated[Consensus, Option("With `order`: whose expectation wins.")] = "rank0"
    scheme: Annotated[
        str,
        Option(
            "What is sent, when, and what waits for it: ddp, naive, flat, dataparallel, priority[:SEGMENT], dear, "
            "zero1, zero2, zero3, fsdp2[:noreshard], hsdp:SHARDS, averaging:STEPS, slowmo:STEPS, local-sgd:STEPS, "
            "horovod, multiworker-mirrored, parameter-server[:servers=N,async], parallax, gradientflow, or "
            "package.module:function.",
            "NAME",
        ),
    ] = "ddp"
    overlap: Annotated[Literal["on", "off"], Option("off: nothing is sent before backward has ended.")] = "on"
    scale_compute: Annotated[
        float, Option("Factor on device time; 0.5 is twice as fast, in predictions only.", "F")
    ] = 1.0
    seed: Annotated[int, Option("Of every draw.", "S")] = 0

    def __repr__(self) -> str:
        """Return the options that are not as they are where nobody asks."""
        asked = ", ".join(
            f"{each.name}={value!r}" for each in fields(self) if (value := getattr(self, each.name)) != _default(each)
        )
        return f"{type(self).__name__}({asked})"

    def __post_init__(self) -> None:
        known_choices(self)
        check_job(self)

    @property
    def sync_every(self) -> int:
        """Of how many iterations the last one reduces gradients."""
        return self.accumulate if self.sync == "last" else 1

    def step_times(self, iteration_s: float) -> dict[str, object]:
        """Return what documents say of a step where an iteration, a micro-batch, takes `iteration_s` in the mean."""
        return {
            "accumulate": self.accumulate,
            "sync": self.sync,
            "step_s": self.accumulate * iteration_s,
            "micro_batch_s": iteration_s,
        }

    @property
    def assignment_in_force(self) -> str:
        """The assignment, where torch's search for unused parameters decides on it too."""
        return "unused" if self.find_unused_parameters and self.assignment == "rebuilt" else self.assignment

    @property
    def codec(self) -> Scheme:
        """How buckets are compressed."""
        try:
            return scheme(self.compression)
        except InputError as error:
            error.at("compression")

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
        unused = "first" if self.find_unused_parameters else "last"
        return OrderPolicy(count, rebuild(self.order), predictor(self.predictor), self.consensus, unused)

    def first_plan(self, parameters: Sequence[Parameter], given: BucketPlan | None) -> BucketPlan:
        """Return the buckets of the first iteration, before any rebuild."""
        if given is not None:
            return given
        return (unused_plan if self.find_unused_parameters else initial_plan)(parameters, self.caps)

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

    def trainers(self, world_size: int) -> int:
        """Return how many of the ranks train: all that are no servers.

        Raises:
            PlanError: servers that leave none.
        """
        return scheme_named(self.scheme).trainers(world_size)

    @property
    def asynchronous(self) -> bool:
        """Whether each rank goes on without the others."""
        return scheme_named(self.scheme).asynchronous

    @property
    def periodic(self) -> dict[str, int]:
        """What the provenance of a trace says of the optimizer's steps after which what is sent repeats, if several."""
        steps = scheme_named(self.scheme).steps
        return {"steps": steps} if steps > 1 else {}

    @property
    def scheduled(self) -> bool:
        """Whether a schedule takes the place of DDP as torch has it."""
        return self.scheme != "ddp" or self.overlap == "off"

    def schedule(self, setup: Setup) -> Schedule:
        """Return the schedule of a job with this setup.

        Raises:
            PlanError: one that cannot be carried out; it names the message or the parameter.
        """
        made = scheme_named(self.scheme).schedule(setup)
        return without_overlap(made) if self.overlap == "off" else made


def _default(field_: Field[Any]) -> Any:
    return field_.default if field_.default_factory is MISSING else field_.default_factory()
