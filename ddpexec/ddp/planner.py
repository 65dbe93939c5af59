"""Which schedule a wrapper carries out: the one its scheme makes for this job, the same on every rank.

A scheme may need to know when gradients come and when forward needs which parameter. `ProbeTimes` learns both in the
first iterations. All ranks take rank 0's times, so that all plan the same order.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from ddpexec.ddp.lanes import CommunicationStream
from ddpexec.ddp.memory import keeps_parts
from ddpexec.ddp.parameters import ModelParameters, agree
from ddpexec.ddp.refusals import check_mixable
from ddpexec.ddp.sparse_rows import check_optimizer
from ddpexec.ddp.updates import MakeOptimizer, check_no_momentum
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, timeout_of
from ddpexec.groups.timeouts import wait_within
from ddpexec.timing.stopwatch import seconds_of
from ddpsim.bucketing import BucketCaps, BucketPlan, rebuilt_plan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.operation import Operation
from ddpsim.schedules import schemes
from ddpsim.schedules.schedule import Schedule, check, message_document
from ddpsim.schedules.scheme import Scheme
from ddpsim.schedules.schemes import without_overlap
from ddpsim.schedules.setup import SchemeInputs


@dataclass(kw_only=True)
class SchedulePlanner:
    """Has a scheme make the schedules of one job: its first, and another of what was learned.

    Attributes:
        scheme: makes a schedule of a setup.
        model: its parameters, in registration order.
        communicator: of the ranks.
        make_optimizer: makes an optimizer of some parameters; refused where it cannot take sparse gradients as sent.
        plan: the buckets in force.
        given: whether they are to stay.
        overlap: whether messages may begin before backward has ended.
        every: of how many iterations the last one sends gradients.
        accumulate: iterations of a step of the optimizer.
        find_unused: whether parameters may have no gradient.
        mixed_precision: torch's, in whose `param_dtype` gradients are sent; None leaves them in their parameters'.
        wire: what a message takes, as probed when times were learned; None before.

    Raises:
        OptionError: a scheme that others carry out, or `every` and `accumulate` that do not go together.
    """

    scheme: Scheme
    model: ModelParameters
    communicator: Communicator
    make_optimizer: MakeOptimizer
    plan: BucketPlan
    given: bool
    overlap: bool
    every: int
    accumulate: int
    find_unused: bool
    mixed_precision: Any
    wire: Callable[[Operation, int], float] | None = None

    def __post_init__(self) -> None:
        if self.scheme.runner not in ("ddpexec", "DataParallel"):
            place = f"scheme={self.scheme.name}"
            remedy = "use zero1 or zero2, FullySharded for fsdp2 and hsdp, or simulate"
            raise OptionError(f"{self.scheme.runner} trains by it", place=place, remedy=remedy)
        if self.accumulate % self.every:
            what = f"gradients are sent every {self.every} iterations, and a step is of {self.accumulate}"
            raise OptionError(what, place="every", remedy="let `accumulate` be a multiple of `every`")

    @property
    def fixed(self) -> str | None:
        """Why no other schedule may take the place of this one; None where one may."""
        name = self.scheme.name
        reasons = {
            f"its scheme {name} does more than sum whole gradients for one step": (
                name.partition(":")[0] not in schemes.SAME_SUMS
            ),
            "its buckets are a plan of its own": self.given,
            "it sends nothing before backward has ended (overlap=False)": not self.overlap,
            f"it sends gradients every {self.every} iterations": self.every > 1,
            f"a step is of {self.accumulate} iterations that send gradients": self.accumulate > self.every,
            "mixed_precision lowers its parameters in backward": self.mixed_precision is not None,
            "a gradient of it is sparse": any(each.sparse for each in self.model.policy),
        }
        return next((reason for reason, so in reasons.items() if so), None)

    def make_other(self, groups: Sequence[Sequence[int]], schedule: Schedule | None) -> tuple[BucketPlan, Schedule]:
        """Return these buckets and their schedule: DDP's, or the one given.

        Raises:
            PlanError: buckets, or messages, that do not hold each parameter once.
        """
        plan = custom_plan(self.model.policy, groups)
        setup = replace(self._setup(), buckets=plan.groups())
        new_schedule = schemes.ddp(setup) if schedule is None else schedule
        check(new_schedule, setup.parameters, setup.world_size)
        return plan, new_schedule

    def make_first(self, *, learns: bool) -> Schedule:
        """Return the schedule of the first iterations; while the job learns it is DDP's, which needs no times.

        Raises:
            OptionError: servers, which have no gradients to learn of, or optimizers of flat parts, which have one count
                of steps for all their parameters, where some may have taken fewer while the job learned.
        """
        setup = self._setup()
        own, place = self._make(setup), f"scheme={self.scheme.name}"
        if not learns:
            return own
        if own.sharding.hosts:
            what, remedy = "servers take no part in the iterations in which times are learned", "give `learn=0`"
            raise OptionError(what, place=place, remedy=remedy)
        if keeps_parts(own) and self.find_unused:
            what = "flat parts cannot take over steps that some of their parameters were left out of"
            raise OptionError(what, place=place, remedy="give `learn=0`, or no `find_unused_parameters`")
        first_schedule = schemes.ddp(setup)
        _check_sparse(first_schedule, self.model)
        return first_schedule

    def make_learned(self, learning: ProbeTimes, lane: CommunicationStream, caps: BucketCaps) -> Schedule:
        """Return the schedule of what was learned, and of what `lane` takes; every rank calls this.

        Its buckets are made anew by `caps`, in the order in which gradients came, where none were given.
        """
        communicator, count = self.communicator, len(self.model.tensors)
        device = communicator.device_for(self.model.tensors[0].device)
        learned = torch.tensor([*learning.list_learned(), *probe(lane, self.model)], dtype=torch.float64, device=device)
        # Rank 0's times for all: by times of its own each rank would plan another order, and messages would meet the
        # wrong ones.
        with name_lost_ranks(communicator, "the broadcast of learned times"):
            communicator.broadcast(learned, 0)
        *times, fixed_s, rate = learned.tolist()
        self.wire = ProbedLink(communicator.world_size, fixed_s, rate)
        use_s, ready_s = (
            {index: seconds for index, seconds in enumerate(row) if not math.isnan(seconds)}
            for row in (times[:count], times[count:])
        )
        if not self.given:  # those that never came last
            order = sorted(range(count), key=lambda index: (ready_s.get(index, math.inf), index))
            self.plan = rebuilt_plan(self.model.policy, caps, order)
        return self._make(replace(self._setup(), use_s=use_s, ready_s=ready_s, time_s=self.wire))

    def _setup(self) -> SchemeInputs:
        sent = self.model.policy
        if self.mixed_precision is not None:
            dtype = str(self.mixed_precision.param_dtype).removeprefix("torch.")
            sent = tuple(replace(each, dtype=dtype) for each in sent)
        return SchemeInputs(
            parameters=sent,
            buckets=self.plan.groups(),
            world_size=self.communicator.world_size,
            every=self.every,
            accumulate=self.accumulate,
            ranks_per_node=_ranks_per_node(self.communicator.world_size),
            blocking=self.communicator.backend == "gloo",
        )

    def _make(self, setup: SchemeInputs) -> Schedule:
        schedule = self.scheme.schedule(setup)
        if schedule.one_process:
            what, remedy = "its ranks are threads of one process", "use torch.nn.DataParallel, or take `ddp`"
            raise OptionError(what, place=f"scheme={schedule.scheme}", remedy=remedy)
        _check_sparse(schedule, self.model)
        if any(message.sparse for message in schedule):
            check_optimizer(self.make_optimizer)
        if any(message.chunks is not None and message.chunks.momentum for message in schedule):
            check_no_momentum(self.make_optimizer)
        if self.mixed_precision is not None:
            check_mixable(schedule, self.accumulate, self.mixed_precision)
        return schedule if self.overlap else without_overlap(schedule)


def check_agreement(schedule: Schedule, communicator: Communicator, device: torch.device) -> None:
    """Raise on every rank unless all have the same schedule.

    Raises:
        ModelMismatchError: names the first rank that differs from rank 0, and its first message that does.
    """
    outer = None if schedule.outer is None else asdict(schedule.outer)
    common = {"update": schedule.update, "sharding": asdict(schedule.sharding), "outer": outer}
    rows = [json.dumps({**message_document(message), **common}) for message in schedule]
    agree(rows, [f"message {number} ({message.id})" for number, message in enumerate(schedule)], communicator, device)


def _ranks_per_node(world_size: int) -> int:
    """Return the ranks of a node as the launcher says, 1 where it does not or where they do not divide all."""
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(local_size) if local_size.isascii() and local_size.isdigit() else 1
    return ranks if ranks and world_size % ranks == 0 else 1


def _check_sparse(schedule: Schedule, model: ModelParameters) -> None:
    """Raise OptionError where a gradient is sparse that the schedule has dense, or the other way round."""
    carried = {index for message in schedule if message.sparse for index in message.parameters}
    for index, parameter in enumerate(model.policy):
        place = f"parameter {parameter.name}"
        if parameter.sparse and index not in carried:
            remedy = "use `scheme=ddp`, `parallax`, or a dense one"
            raise OptionError("its gradient is sparse", place=place, remedy=remedy)
        if index in carried and not parameter.sparse:
            raise OptionError("its gradient is dense", place=place, remedy="build its embedding with sparse=True")


PROBES = (1 << 20, 8 << 20)
"""Bytes of the allreduces that tell what a message takes, the fixed part and the rate; chosen by hand: buffers on the
way take up hundreds of KiB at once, which smaller ones would take for the wire's rate."""
REPEATS = 5
"""Allreduces of each size; the shortest counts, as what disturbs one only adds to it."""


class ProbeTimes:
    """Learning takes the times of a few iterations.

    Args:
        count: of the model's parameters.
        iterations: that are watched; the first of them is not counted where there are more.
    """

    def __init__(self, count: int, iterations: int) -> None:
        self.iterations, self._count = iterations, count
        self._uses: list[dict[int, float]] = []
        self._ready: list[dict[int, float]] = []
        self._begin_s = self._returned_s = 0.0

    @property
    def done(self) -> bool:
        """Whether enough has been seen."""
        return len(self._ready) >= self.iterations

    def begin(self) -> None:
        """Forward begins."""
        self._begin_s = time.perf_counter()
        self._uses.append({})
        self._ready.append({})

    def forward(self, indices: Sequence[int]) -> None:
        """Forward needs parameters."""
        used_s = time.perf_counter() - self._begin_s
        for index in indices:
            self._uses[-1].setdefault(index, used_s)

    def end_forward(self) -> None:
        """Forward is over."""
        self._returned_s = time.perf_counter()

    def gradient(self, index: int) -> None:
        """A gradient comes."""
        self._ready[-1][index] = time.perf_counter() - self._returned_s

    def list_learned(self) -> list[float]:
        """Return when each parameter is needed, then when its gradient is ready; NaN where never."""
        return [*self._medians(self._uses), *self._medians(self._ready)]

    def _medians(self, seen: Sequence[dict[int, float]]) -> list[float]:
        counted = seen[1:] or seen
        by_parameter = ([each[index] for each in counted if index in each] for index in range(self._count))
        return [median(times) if times else math.nan for times in by_parameter]


@dataclass(frozen=True, slots=True)
class ProbedLink:
    """What probes say of the wire: an operation takes `fixed_s`, and what it sends at the rate of an allreduce.

    Attributes:
        ranks: of the job.
        fixed_s: seconds of an allreduce of nothing.
        rate: bytes a second beyond, of allreduces.
    """

    ranks: int
    fixed_s: float
    rate: float

    def __call__(self, operation: Operation, size_bytes: int) -> float:
        """Return the seconds of an operation."""
        share = operation.sent(self.ranks) / Operation.ALLREDUCE.sent(self.ranks) if self.ranks > 1 else 1.0
        return self.fixed_s + size_bytes / self.rate * share


def probe(lane: CommunicationStream, model: ModelParameters) -> tuple[float, float]:
    """Return what is measured of the wire: seconds of an allreduce of nothing, and bytes a second beyond."""
    device = model.tensors[0].device
    taken = []
    for size in PROBES:
        tensor = torch.zeros(size // 4, device=device)

        def once(tensor: torch.Tensor = tensor) -> None:
            wait_within(lane.launch(Operation.ALLREDUCE, tensor, ()), timeout_of(lane.group))

        taken.append(min(seconds_of(once, device) for _ in range(REPEATS)))
    rate = (PROBES[1] - PROBES[0]) / max(taken[1] - taken[0], 1e-9)
    return max(0.0, taken[0] - PROBES[0] / rate), rate
