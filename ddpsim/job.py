"""What a user may ask of a training job, simulated or real: the options that both packages understand alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, initial_plan, unused_plan
from ddpsim.bucketing.drop import DropPlan, layers_named
from ddpsim.bucketing.plan import ASSIGNMENTS
from ddpsim.compression import Scheme, scheme
from ddpsim.errors import InputError, UnknownNameError
from ddpsim.order import CONSENSUS, OrderPolicy, predictor, rebuild

COMM = ("real", "noop")

MOST_GROUPS = 64
"""Process groups that take turns; each has streams and connections of its own."""

LARGEST_FACTOR = 1e9
"""On any time; its inverse is the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Options of one job.

    Attributes:
        caps: bucket caps as torch's constructor takes them.
        assignment: which of torch's assignments: `rebuilt`, `initial` or `unused`.
        backend: of the process group; None is the natural one.
        no_sync_every: gradients are reduced in every n-th iteration only.
        find_unused_parameters: search the graph each forward and reduce a bitmap at the end.
        gradient_as_bucket_view: gradients live in their bucket, so that nothing is copied out.
        broadcast_buffers: rank 0's buffers are broadcast before a forward.
        process_groups: round-robin process groups.
        stragglers: rank to factor on its computing time.
        comm: `real`, or `noop` for hooks and copies without any collective.
        compression: what `ddpsim.compression.scheme` reads: `fp16`, `powersgd:4`, ...
        drop: dotted name of a layer to the probability that an iteration leaves it out.
        order: when buckets are rebuilt in arrival order, as `ddpsim.order.rebuild` reads it; None is as torch.
        predictor: which arrivals each rank expects: `last`, `mean` or `exponential`.
        consensus: whose expectation wins: `rank0`, `mean` or `slowest`.
        scale_compute: factor on device time.
        seed: of every draw, from 0 to 2^63 - 1.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    caps: BucketCaps = field(default_factory=BucketCaps)
    assignment: str = "rebuilt"
    backend: str | None = None
    no_sync_every: int = 1
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    process_groups: int = 1
    stragglers: Mapping[int, float] = field(default_factory=dict)
    comm: str = "real"
    compression: str = "none"
    drop: Mapping[str, float] = field(default_factory=dict)
    order: str | None = None
    predictor: str = "last"
    consensus: str = "rank0"
    scale_compute: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("--assignment", self.assignment, ASSIGNMENTS)
        one_of("--comm", self.comm, COMM)
        at_least_one("--no-sync-every", self.no_sync_every)
        at_least_one("--process-groups", self.process_groups, MOST_GROUPS)
        factors = {f"--straggler {rank}": factor for rank, factor in self.stragglers.items()}
        for flag, factor in {"--scale-compute": self.scale_compute, **factors}.items():
            positive(flag, factor)
        for name, probability in self.drop.items():
            if not 0 <= probability <= 1:
                remedy = "give a number from 0 to 1"
                raise InputError(f"{probability!r} is not a probability", place=f"--drop {name}", remedy=remedy)
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"{self.seed} is not a seed", place="--seed", remedy="give a number from 0 to 2^63 - 1")
        self._check_order()
        if self.scheme.name != "none" and self.process_groups > 1:
            raise _both(f"--compression {self.compression}", f"--process-groups {self.process_groups}")
        if self.scheme.name != "none" and self.comm == "noop":
            raise _both(f"--compression {self.compression}", "--comm noop")
        if self.assignment == "initial" and self.find_unused_parameters:
            raise _both("--assignment initial", "--find-unused-parameters")
        if self.drop and self.find_unused_parameters:
            raise _both("--drop", "--find-unused-parameters")

    @property
    def assignment_in_force(self) -> str:
        """The assignment, where torch's search for unused parameters decides on it too."""
        return "unused" if self.find_unused_parameters and self.assignment == "rebuilt" else self.assignment

    @property
    def scheme(self) -> Scheme:
        """How buckets are compressed."""
        try:
            return scheme(self.compression)
        except InputError as error:
            error.at("--compression")

    def drop_plan(self, parameters: Sequence[Parameter]) -> DropPlan | None:
        """Return which layers each iteration leaves out; None where none are.

        Raises:
            PlanError: a layer without parameters, or layers inside each other.
        """
        return DropPlan(layers_named(parameters, self.drop), self.seed) if self.drop else None

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
                raise InputError(what, place="--straggler", remedy=remedy)

    def _check_order(self) -> None:
        if self.consensus not in CONSENSUS:
            raise UnknownNameError.among("consensus", self.consensus, CONSENSUS, place="--consensus")
        try:
            predictor(self.predictor)
        except InputError as error:
            error.at("--predictor")
        if self.order is None:
            if (self.predictor, self.consensus) != ("last", "rank0"):
                remedy = "add --order once, or drift"
                raise InputError("--predictor and --consensus say nothing without --order", remedy=remedy)
            return
        try:
            rebuild(self.order)
        except InputError as error:
            error.at("--order")
        if self.assignment != "rebuilt":
            raise _both(f"--order {self.order}", f"--assignment {self.assignment}")


def one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    """Raise InputError unless `value` is known."""
    if value not in known:
        raise InputError(f"unknown value {value!r}", place=flag, remedy=f"use one of {', '.join(known)}")


def at_least_one(flag: str, count: int, most: int | None = None) -> None:
    """Raise InputError for a count below 1, or above `most`."""
    if count < 1:
        raise InputError(f"{count} is not a count", place=flag, remedy="give 1 or more")
    if most is not None and count > most:
        raise InputError(f"{count} are too many", place=flag, remedy=f"give at most {most}")


def positive(flag: str, factor: float) -> None:
    """Raise InputError for a factor that is not above 0, or is of no real machine."""
    if not 0 < factor < float("inf"):
        raise InputError(f"{factor!r} is not a factor", place=flag, remedy="give a number above 0, e.g. 1.5")
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        remedy = f"give a number from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}, e.g. 1.5"
        raise InputError(f"{factor!r} is out of range", place=flag, remedy=remedy)


def _both(one: str, other: str) -> InputError:
    return InputError(f"{one} and {other} are both given", remedy="keep one")
