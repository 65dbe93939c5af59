"""What a simulated rank runs, and what that says of each iteration: what is synchronised, added, copied, broadcast.

The buckets in force in each iteration: fixed, or rebuilt as an order policy says; and when ranks confer on it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddpsim.bucketing import Bucket, BucketPlan, rebuilt_plan
from ddpsim.bucketing.drop import remap_gradients
from ddpsim.jobs.simulated import Options
from ddpsim.operations import Operation
from ddpsim.options.input_stage import InputStage
from ddpsim.order import Arrivals, OrderExchange, conferences
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.contention import GpuCapacity
from ddpsim.simulation.costs import ENTER_S, KERNELS, Costs
from ddpsim.simulation.graph import BUFFERS_PART, ExecutionModel, Linear
from ddpsim.simulation.messages import CodecCosts
from ddpsim.simulation.pace import IterationProfile
from ddpsim.simulation.scheduling import ForwardWait, Scheduled
from ddpsim.simulation.stages import RankStages
from ddpsim.workload import Workload
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.layer_messages import LayerMessage, ModelParallel
from ddpsim.workload.optimizers import ADDITION

if TYPE_CHECKING:
    from ddpsim.workload.order_trace import Context


@dataclass(frozen=True, slots=True)
class OrderAgreement:
    """Conferring is a message among all ranks, and work of the host before and after it.

    Attributes:
        operation, size_bytes: the message.
        host_s: of the predictor and the consensus.
        rebuild_s: of building the buckets anew; 0 where they stay.
    """

    operation: Operation
    size_bytes: int
    host_s: float
    rebuild_s: float


TIME_BYTES = 8
"""An expected time travels as a float64."""


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What the policy of one rank sees: the pace of each iteration, and the context of its batch where it is known."""

    pace: Callable[[int], IterationProfile]
    context: Callable[[int], Context] = lambda iteration: None


@dataclass(frozen=True, slots=True)
class Plans:
    """Plans are buckets by iteration, and the conferences that led to them.

    Attributes:
        starts: iterations from which each of `plans` is in force, ascending from 0.
        held: by the iteration before which ranks conferred.
    """

    starts: Sequence[int]
    plans: Sequence[BucketPlan]
    held: Mapping[int, OrderExchange] = field(default_factory=dict)

    def plan(self, iteration: int) -> BucketPlan:
        """Return the buckets of an iteration."""
        return self.plans[bisect_right(self.starts, iteration) - 1]

    @property
    def rebuilds(self) -> int:
        """How many conferences built anew."""
        return sum(held.decision.order is not None for held in self.held.values())

    def agreement_costs(self, iteration: int, options: Options, costs: Costs, ranks: int) -> OrderAgreement | None:
        """Return what conferring before an iteration takes of each rank; None where nobody confers.

        Rank 0 tells the others where its word is law; else every rank tells every other. The executor does it so
        (`ddpexec.ddp.bucket_schedule`).
        """
        held = self.held.get(iteration)
        if held is None:
            return None
        everybody = options.consensus != "rank0" or options.find_unused_parameters
        count, told = len(held.decision.expected), ranks if everybody else 1
        host_s = count * (costs.expect_s + costs.agree_s * told)
        rebuild_s = 0.0 if held.decision.order is None else count * costs.rebuild_s
        operation = Operation.ALL_GATHER if everybody else Operation.BROADCAST
        return OrderAgreement(operation, TIME_BYTES * count * told, host_s, rebuild_s)


def plans_of(
    options: Options, workload: Workload, seen: Sequence[PolicyView], synced: Iterable[int], total: int
) -> Plans:
    """Return the plans of all iterations.

    In which order hooks fire is the workload's alone, so that the arrivals of a whole run are known before it is
    simulated, and `ddpsim.order.conferences` says when the policy rebuilds for them.

    Args:
        options: name the policy; without one the plan is the same throughout.
        workload: whose parameters.
        seen: by each rank that has a say.
        synced: iterations whose gradients are reduced, ascending; only these are watched.
        total: iterations in all.

    Raises:
        InputError: a predictor that failed.
    """
    policies = [policy for _ in seen if (policy := options.order_policy(len(workload.parameters))) is not None]
    if not policies:
        return Plans([0], [options.bucket_plan(workload)])

    def assign(order: Sequence[int]) -> list[tuple[int, ...]]:
        return rebuilt_plan(workload.parameters, options.caps, order).groups()

    arrivals = [
        Arrivals(rank, k, each.pace(k).order, context=each.context(k)) for k in synced for rank, each in enumerate(seen)
    ]
    first = options.first_plan(workload.parameters, options.plan)
    starts, plans, held = [0], [first], {}
    for conference in conferences(arrivals, policies, first.groups(), assign):
        if conference.iteration < total:
            held[conference.iteration] = conference
        if (order := conference.decision.order) is not None:
            starts.append(conference.iteration)
            plans.append(rebuilt_plan(workload.parameters, options.caps, order))
    return Plans(starts, plans, held)


ADDED = ADDITION.passes / 2
"""Bytes that adding a gradient to one that exists moves on a GPU, read, read and written, over those of a copy.

On a CPU a copy moves as many, for a store reads its cache line first: an addition takes 0.8 to 1.0 of a copy's time
between 1 and 64 MiB (`python -m studies.host_costs.additions`), taken as one.
"""


@dataclass(slots=True)
class RankConfiguration:
    """What a rank runs: the same for every rank of its kind.

    Attributes:
        execution: on which resources its work is.
        gpu: that computes; None is a CPU, layers that sleep, or a GPU that nobody described.
        capacity: of the GPU, what collectives take parts of.
        plan: gives the buckets of iteration k.
        pace: gives the pace of iteration k.
        dropped: gives the parameters of the layers that iteration k leaves out.
        codec: what buckets send.
        copies_s: of copying each gradient into its bucket.
        iterations: how many to run.
        ddp: False for one process without DDP: no hooks, no buckets, no collectives.
        alone: True for a world of one, whose collectives have no kernel.
        scheduled: the schedule that takes DDP's place; None is DDP's own buckets.
        input_stage: how batches are loaded and copied; None where they are there.
        confers: gives what conferring on the order of gradients takes before iteration k; None where nobody confers.
        stages: what it computes in a step of a pipeline; None of a whole model.
        kernel_s: the mean time of a kernel of backward on the device.
    """

    workload: Workload
    execution: ExecutionModel
    gpu: AchievedGpu | None
    capacity: GpuCapacity
    plan: Callable[[int], BucketPlan]
    options: Options
    costs: Costs
    pace: Callable[[int], IterationProfile]
    dropped: Callable[[int], frozenset[int]]
    codec: CodecCosts
    copies_s: Sequence[float]
    iterations: int
    ddp: bool = True
    alone: bool = False
    scheduled: Scheduled | None = None
    input_stage: InputStage | None = None
    confers: Callable[[int], OrderAgreement | None] = lambda iteration: None
    stages: RankStages | None = None
    kernel_s: float = field(init=False, repr=False)
    _broadcast_bytes: list[int] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        backward_s = float(self.workload.backward.device_s.mean()) * self.options.scale_compute
        self.kernel_s = backward_s / len(self.workload.parameters) / KERNELS

    def with_buckets(self, options: Options, plan: Callable[[int], BucketPlan]) -> RankConfiguration:
        """Return the same with other buckets."""
        other = copy(self)
        other.options, other.plan = options, plan
        return other

    @property
    def layers(self) -> ModelParallel | None:
        """What layers wait for; None of whole ones, and of one process by itself."""
        return (self.workload.tensor or self.workload.experts) if self.ddp else None

    @property
    def forward_stops(self) -> Sequence[tuple[float, float, ForwardWait | LayerMessage]]:
        """Where forward stops, for a schedule or in a layer: the shares of it on host and device that are over then."""
        waits = () if self.scheduled is None else self.scheduled.forward
        stops: list[tuple[float, float, ForwardWait | LayerMessage]] = [(each.host, each.work, each) for each in waits]
        if self.layers is None:
            return stops
        stops += [(each.host, each.device, each) for each in self.layers.forward]
        stops.sort(key=lambda stop: stop[1])
        hosts = itertools.accumulate((host for host, _, _ in stops), max)
        return [(host, work, stop) for host, (_, work, stop) in zip(hosts, stops, strict=True)]

    @property
    def layers_lane(self) -> int:
        """The lane of what layers wait for."""
        assert self.scheduled is not None
        assert self.scheduled.layers_lane is not None
        return self.scheduled.layers_lane

    @property
    def enter_s(self) -> float:
        """Time that the start of a collective takes from the computation beside it."""
        if self.alone or self.options.comm == "noop":
            return 0.0
        return Linear.of(ENTER_S, self.costs.entering_s(self.kernel_s))

    @property
    def late_s(self) -> float:
        """How long a collective's blocks wait for those of the computation beside it."""
        return 0.0 if self.alone or self.options.comm == "noop" else self.costs.late_kernels * self.kernel_s

    def is_synced(self, iteration: int) -> bool:
        """Whether gradients are reduced in `iteration`."""
        return self.ddp and (iteration + 1) % self.options.sync_every == 0

    def add_s(self, parameter: int) -> float:
        """Return the time of adding one gradient, in place, to that of the micro-batches before."""
        share = 1.0 if self.execution.one_thread else ADDED
        return self.costs.copies_s(1, share * self.workload.parameters[parameter].size_bytes)

    def broadcasts(self, iteration: int) -> bool:
        """Whether buffers are broadcast before the forward of `iteration`: where the one before was synced."""
        return (
            self.ddp
            and self.options.broadcast_buffers
            and (self.scheduled is None or self.scheduled.schedule.broadcasts_buffers)
            and self.options.comm == "real"
            and bool(self.workload.buffers)
            and (iteration == 0 or self.is_synced(iteration - 1))
        )

    def remaps(self, dropped: Collection[int]) -> bool:
        """Whether what is left of an iteration without `dropped` moves up into the memory of the first buckets."""
        return bool(dropped) and self.options.drop_buckets == "remapped"

    def remap(self, plan: BucketPlan, dropped: Collection[int]) -> list[Bucket]:
        """Return the buckets of an iteration without `dropped`, in launch order, whose memory is that of `plan`."""
        parameters = self.workload.parameters
        groups = remap_gradients(parameters, plan.groups(), dropped)
        return [Bucket(group, sum(parameters[i].size_bytes for i in group), None) for group in groups if group]

    def forward_host_s(self, iteration: int) -> float:
        """Return the host time that DDP adds to a forward, the broadcast of buffers apart."""
        if not self.ddp:
            return 0.0
        dropped, count = self.dropped(iteration), len(self.workload.parameters)
        spent_s = self.costs.forward_s
        if self.options.find_unused_parameters:
            spent_s += count * self.costs.search_s
        if self.remaps(dropped) and dropped != self.dropped(iteration - 1):
            spent_s += (count - len(dropped)) * self.costs.rebuild_s
        return spent_s

    def broadcast_bytes(self) -> list[int]:
        """Return the messages of a buffer broadcast: torch coalesces the buffers of each dtype."""
        if self._broadcast_bytes is None:
            sizes: dict[str, int] = {}
            for buffer in self.workload.buffers:
                sizes[buffer.dtype] = sizes.get(buffer.dtype, 0) + buffer.size_bytes
            self._broadcast_bytes = list(sizes.values())
        return self._broadcast_bytes

    @property
    def broadcast_s(self) -> tuple[float, float, float]:
        """Host time before a broadcast of buffers and of launching a message of it, device time of one way of copies.

        They are priced by themselves, for without communication there is no broadcast.
        """
        costs, count = self.costs, len(self.workload.buffers)
        found = count * costs.buffer_s, costs.launch_s, costs.copies_s(count, sum(self.broadcast_bytes()))
        flattened_s, launch_s, copies_s = (
            Linear(each, tuple((BUFFERS_PART + name, times) for name, times in each.terms))
            if isinstance(each, Linear)
            else each
            for each in found
        )
        return flattened_s, launch_s, copies_s

    def write_back_s(self, bucket: Bucket) -> float:
        """Return the device time of copying `bucket` out; nothing where gradients are its views."""
        if self.options.gradient_as_bucket_view:
            return 0.0
        return self.costs.copies_s(len(bucket.parameters), bucket.size_bytes)


REPLICATE_S = 27e-6
"""Host seconds, by parameter and replica, in which a module is copied for its replicas before each forward.

`python -m studies.host_costs.replicas` measures it: 29.5 us of ResNet-50 and 25.5 us of BERT on an AMD EPYC.
"""


def merge_ranks(setting: RankConfiguration, ranks: int) -> RankConfiguration:
    """Return `setting` where `ranks` of them are threads of one process.

    Their forwards launch through one interpreter, whose lock one thread has at a time, so that the host's time is all
    of theirs together, and each forward's replicas are copied before. Backward is the autograd engine's own threads',
    one a device, which need no lock. One thread loads the batches of all.
    """
    alone, stage = setting.pace, setting.input_stage
    copied_s = REPLICATE_S * len(setting.workload.parameters) if ranks > 1 else 0.0

    def pace(iteration: int) -> IterationProfile:
        own = alone(iteration)
        return replace(own, forward_host=ranks * (own.forward_host + copied_s))

    return replace(setting, pace=pace, input_stage=None if stage is None else stage.merge_ranks(ranks))


def carry_out(
    schedule: Schedule,
    settings: Sequence[RankConfiguration],
    world_size: int,
    backend: str,
    host_copy_s: float = 0.0,
) -> list[RankConfiguration]:
    """Return `settings` of ranks that carry out `schedule`, made ready once for all that compute alike.

    Args:
        host_copy_s: of a byte between the host and the device of each rank.
    """
    found = [merge_ranks(each, world_size) for each in settings] if schedule.one_process else settings
    carried: list[RankConfiguration] = []
    for each in found:
        alike = (one.scheduled for one in carried if one.workload is each.workload and one.costs == each.costs)
        made = next(alike, None) or Scheduled.of(
            schedule, each.workload, each.costs, each.options, gloo=backend == "gloo",
            host_copy_s=0.0 if each.execution.one_thread else host_copy_s,
        )  # fmt: skip
        carried.append(replace(each, scheduled=made))
    return carried
