"""What a simulated rank runs: what it computes, what it launches and where it waits for that, in each iteration.

Which message may leave where, a bucket of DDP's or one of a schedule, is asked of the queue that an executor asks,
`LaunchQueue`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ddpsim.bucketing import Bucket, BucketPlan, LaunchQueue
from ddpsim.bucketing.drop import remap_gradients, skipped_buckets
from ddpsim.errors import PlanError
from ddpsim.jobs.plans import Plans
from ddpsim.jobs.simulated import Options
from ddpsim.jobs.stages import RankPart
from ddpsim.jobs.updates import WHOLE_UPDATE, ForwardWait, OptimizerUpdate
from ddpsim.options.input_stage import InputStage
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.pipeline import StageWork
from ddpsim.schedules.points import Point
from ddpsim.schedules.schedule import Lane, Schedule, gradient_points, queue_of, queue_of_buckets
from ddpsim.simulation.codec_costs import CodecCosts, Encoding
from ddpsim.simulation.ddp_costs import ENTER_S, KERNELS, Costs
from ddpsim.simulation.graph import ExecutionModel, PlannedMessage
from ddpsim.simulation.linear import Linear
from ddpsim.workload import Workload
from ddpsim.workload.devices import DevicePart, device_numbers, part_shares
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.iteration_profile import IterationProfile
from ddpsim.workload.layer_messages import LayerMessage, ModelParallel
from ddpsim.workload.optimizers import ADDITION

BUCKETS = Schedule(scheme="ddp", messages=())
"""Of DDP's own buckets, which are those of each iteration's plan."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What one kind of rank sends, and where it waits for that: a schedule's messages, or DDP's own buckets.

    Attributes:
        schedule: with its messages cut into segments; `BUCKETS` is DDP's own.
        messages: one a message, in the same order; None are the buckets of each iteration's plan.
        lanes: groups and streams; of a pipeline, of all its ranks; of DDP's buckets, process groups or devices.
        forward: where forward stops, in order.
        updates: what the optimizer does after backward, in order; none where it updates before use.
        needed: parameters before the computation of whose gradient it waits, or launches.
        filled: parameters whose gradient's hook copies it into a message.
        buffers_lane: number of the lane of module buffers; None is the one whose turn it is.
        layers_lane: of what layers wait for; None where they wait for nothing.
    """

    schedule: Schedule
    messages: tuple[PlannedMessage, ...] | None
    lanes: tuple[Lane, ...]
    forward: tuple[ForwardWait, ...]
    updates: tuple[OptimizerUpdate, ...]
    needed: frozenset[int]
    filled: frozenset[int]
    buffers_lane: int | None = None
    layers_lane: int | None = None

    @classmethod
    def of_buckets(cls, parameters: int, lanes: int) -> Scheduled:
        """Return DDP's own buckets, of a model of so many parameters, on so many process groups or devices."""
        world = tuple((WORLD, str(number)) for number in range(lanes))
        return cls(BUCKETS, None, world, (), (WHOLE_UPDATE,), frozenset(), frozenset(range(parameters)))

    @property
    def by_plan(self) -> bool:
        """Whether its messages are the buckets of each iteration's plan."""
        return self.messages is None


class Launches:
    """Says what to launch at each point that a rank passes, and what to wait for before it: what its queue says.

    Args:
        queue: of the messages; `begin` begins its next iteration.
        planned: message of each number.
        ids: of the messages, for errors.
        parameters: how many the model has.

    Attributes:
        queue, planned: as given.
    """

    __slots__ = ("_gradients", "_ids", "planned", "queue")

    def __init__(
        self, queue: LaunchQueue[Point], planned: Sequence[PlannedMessage], ids: Sequence[str], parameters: int
    ) -> None:
        self.queue, self.planned, self._ids = queue, planned, ids
        self._gradients = gradient_points(tuple(range(parameters)))

    def begin(self) -> list[PlannedMessage]:
        """Begin an iteration; return what to launch at its start."""
        return [self.planned[number] for number in self.queue.begin()]

    def gradient(self, parameter: int, unused: Iterable[int] = ()) -> list[PlannedMessage]:
        """Announce a gradient, and before it those that will not come, in whose place zeros are sent.

        Returns:
            What to launch, in order.
        """
        came = self.queue.mark_passed(*(self._gradients[index] for index in unused)) if unused else []
        came += self.queue.mark_passed(self._gradients[parameter])
        return [self.planned[number] for number in came]

    def mark_passed(self, *points: Point) -> list[PlannedMessage]:
        """Announce points; return what to launch, in order."""
        return [self.planned[number] for number in self.queue.mark_passed(*points)]

    def take_waits(self, *points: Point) -> list[PlannedMessage]:
        """Return what must have ended before `points` are passed, in order.

        Raises:
            PlanError: a message that stands behind another which is not possible yet: a rank would wait for ever.
        """
        waited = self.queue.take_waits(*points)
        if held := [number for number in waited if self.queue.is_held(number)]:
            before = self._ids[self.queue.next_of(held[0])]
            what = f"{points[0]} waits for it, and it for {before!r} before it, which is not possible yet"
            place = f"message {self._ids[held[0]]!r}"
            raise PlanError(what, place=place, remedy="put it first, or on another stream")
        return [self.planned[number] for number in waited]


@dataclass(frozen=True, slots=True, eq=False)
class StagedRank:
    """What one rank of a pipeline computes in a step.

    Attributes:
        part: what it has of the model.
        works: in order.
        last: number of the model's last stage.
        boundary_bytes: of a micro-batch's activations that a stage sends the next, and of their gradient.
        lanes: numbers of those of activations and gradients, by `forward` or `backward` and the stage that sends.
    """

    part: RankPart
    works: Sequence[StageWork]
    last: int
    boundary_bytes: int
    lanes: Mapping[tuple[str, int], int]


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
        plans: the buckets of each iteration.
        pace: gives the pace of iteration k.
        dropped: gives the parameters of the layers that iteration k leaves out.
        codec: what buckets send; None is their gradients as they are.
        copies_s: of copying each gradient into its bucket.
        iterations: how many to run.
        ranks: of the job.
        scheduled: what it sends, and where it waits for that.
        ddp: False for one process without DDP: no hooks, no buckets, no collectives.
        input_stage: how batches are loaded and copied; None where they are there.
        stages: what it computes in a step of a pipeline; None of a whole model.
        kernel_s: the mean time of a kernel of backward on the device.
        devices: by registration index the number of the device that each parameter is on.
    """

    workload: Workload
    execution: ExecutionModel
    gpu: AchievedGpu | None
    options: Options
    costs: Costs
    plans: Plans
    pace: Callable[[int], IterationProfile]
    dropped: Callable[[int], frozenset[int]]
    codec: CodecCosts | None
    copies_s: Sequence[float]
    iterations: int
    ranks: int
    scheduled: Scheduled
    ddp: bool = True
    input_stage: InputStage | None = None
    stages: StagedRank | None = None
    kernel_s: float = field(init=False, repr=False)
    devices: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        backward_s = float(self.workload.backward.device_s.mean()) * self.options.scale_compute
        self.kernel_s = backward_s / len(self.workload.parameters) / KERNELS
        parts, parameters = self.workload.devices, self.workload.parameters
        self.devices = device_numbers(parts, parameters) if parts else (0,) * len(parameters)

    def with_input(self, factor: float) -> RankConfiguration:
        """Return it with an input stage that takes `factor` of its time."""
        stage = self.input_stage
        return self if stage is None else replace(self, input_stage=stage.scale(factor))

    @property
    def collectives_take(self) -> bool:
        """Whether collectives have kernels, which take something of a device: nothing is sent in a world of one."""
        return self.options.comm != "noop" and not (self.ddp and self.ranks == 1)

    @property
    def layers(self) -> ModelParallel | None:
        """What layers wait for; None of whole ones, and of one process by itself."""
        return (self.workload.tensor or self.workload.experts) if self.ddp else None

    @property
    def forward_stops(self) -> Sequence[tuple[float, float, ForwardWait | LayerMessage | DevicePart]]:
        """Where forward stops, for a schedule, in a layer or between devices: the shares of it on host and device that
        are over then."""
        stops: list[tuple[float, float, ForwardWait | LayerMessage | DevicePart]]
        stops = [(each.host, each.work, each) for each in self.scheduled.forward]
        if self.workload.devices:
            forward = self.workload.forward
            stops += part_shares(self.workload.devices, float(median(forward.host_s)), float(median(forward.device_s)))
        if self.layers is None:
            return stops
        stops += [(each.host, each.device, each) for each in self.layers.forward]
        stops.sort(key=lambda stop: stop[1])
        hosts = itertools.accumulate((host for host, _, _ in stops), max)
        return [(host, work, stop) for host, (_, work, stop) in zip(hosts, stops, strict=True)]

    @property
    def enter_s(self) -> float:
        """Time that the start of a collective takes from the computation beside it."""
        if not self.collectives_take:
            return 0.0
        enter_s = self.costs.entering_s(self.kernel_s)
        return Linear.of(ENTER_S, enter_s) if isinstance(self.costs.launch_s, Linear) else enter_s

    @property
    def late_s(self) -> float:
        """How long a collective's blocks wait for those of the computation beside it."""
        return self.costs.late_kernels * self.kernel_s if self.collectives_take else 0.0

    def is_synced(self, iteration: int) -> bool:
        """Whether gradients are reduced in `iteration`."""
        return self.ddp and (iteration + 1) % self.options.sync_every == 0

    def add_s(self, parameter: int) -> float:
        """Return the time of adding one gradient, in place, to that of the micro-batches before."""
        share = 1.0 if self.execution.one_thread else ADDED
        return self.costs.copies_s(1, share * self.workload.parameters[parameter].size_bytes)

    def find_unused(self, pace: IterationProfile, iteration: int) -> list[int]:
        """Return the parameters of buckets that get no gradient in an iteration, at `pace`."""
        used, dropped = set(pace.order), self.dropped(iteration)
        if self.remaps(dropped):
            used |= dropped
        return [i for i in range(len(self.workload.parameters)) if i not in used]

    def launches(self, iteration: int, before: Launches | None) -> Launches:
        """Return what an iteration launches and waits for; where messages stay, that of the one `before` goes on.

        Of DDP they are the buckets of its plan. Those of nothing but layers that are left out are skipped.
        """
        scheduled, count = self.scheduled, len(self.workload.parameters)
        if scheduled.messages is not None:
            schedule = scheduled.schedule
            ids = () if before else [message.id for message in schedule]
            return before or Launches(queue_of(schedule), scheduled.messages, ids, count)
        dropped, plan = self.dropped(iteration), self.plans.plan(iteration)
        remaps = self.remaps(dropped)
        buckets = self._remap(plan, dropped) if remaps else plan.buckets
        groups = [bucket.parameters for bucket in buckets]
        if before is None or [message.parameters for message in before.planned] != groups:
            planned = [self._plan_bucket(number, bucket) for number, bucket in enumerate(buckets)]
            before = Launches(queue_of_buckets(groups), planned, (), count)
        before.queue.reset(skipped_buckets(groups, dropped) if dropped and not remaps else ())
        return before

    def _plan_bucket(self, number: int, bucket: Bucket) -> PlannedMessage:
        """Return a bucket as a message; it is copied out on the device, but where gradients are its views."""
        view, parameters = self.options.gradient_as_bucket_view, bucket.parameters
        copy_s = 0.0 if view else self.costs.copies_s(len(parameters), bucket.size_bytes)
        encoding = Encoding(((0.0, bucket.size_bytes),)) if self.codec is None else self.codec.encoding(bucket)
        device = self.devices[parameters[0]]
        return PlannedMessage(number, bucket.size_bytes, parameters, encoding, copy_s, device=device)

    def remaps(self, dropped: Collection[int]) -> bool:
        """Whether what is left of an iteration without `dropped` moves up into the memory of the first buckets."""
        return bool(dropped) and self.options.drop_buckets == "remapped"

    def _remap(self, plan: BucketPlan, dropped: Collection[int]) -> list[Bucket]:
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
