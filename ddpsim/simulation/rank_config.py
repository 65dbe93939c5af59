"""What a simulated rank runs: what it computes, what it launches and where it waits for that, in each iteration.

`RankConfiguration` has it all; `Launches` says at each point of an iteration which messages may leave there, by the
queue that an executor uses too (`ddpsim.bucketing.LaunchQueue`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ddpsim.bucketing.drop import skipped_buckets
from ddpsim.common.errors import PlanError
from ddpsim.common.options.input_stage import InputStage
from ddpsim.schedules.points import Point
from ddpsim.schedules.schedule import Lane, Schedule, gradient_points, queue_of
from ddpsim.simulation.ddp_costs import ENTER_S, KERNELS, CodecCosts, Costs
from ddpsim.simulation.graph import ExecutionModel, PlannedMessage
from ddpsim.simulation.jobs.plans import Plans
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.stages import ModelPart, StagePart
from ddpsim.simulation.jobs.updates import WHOLE_UPDATE, ForwardWait, OptimizerUpdate
from ddpsim.simulation.linear import Linear
from ddpsim.workload import Workload
from ddpsim.workload.devices import DevicePart, device_numbers, part_shares
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.iteration_profile import IterationProfile
from ddpsim.workload.layer_messages import LayerMessage, ModelParallel
from ddpsim.workload.optimizers import ADDITION


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What one kind of rank sends in an iteration, and where it waits for that: a schedule made ready for it.

    Attributes:
        schedule: with its messages cut into segments.
        messages: one a message, in the same order.
        lanes: groups and streams; of a pipeline, of all its ranks; of DDP's reducer, process groups or devices.
        forward: where forward stops, in order.
        updates: what the optimizer does after backward, in order; none where it updates before use.
        needed: parameters before the computation of whose gradient it waits, or launches.
        filled: parameters whose gradient's hook copies it into a message.
        buffers_lane: number of the lane of module buffers; None is the one whose turn it is.
        layers_lane: of what layers wait for; None where they wait for nothing.
    """

    schedule: Schedule
    messages: tuple[PlannedMessage, ...]
    lanes: tuple[Lane, ...]
    forward: tuple[ForwardWait, ...] = ()
    updates: tuple[OptimizerUpdate, ...] = (WHOLE_UPDATE,)
    needed: frozenset[int] = frozenset()
    filled: frozenset[int] = frozenset()
    buffers_lane: int | None = None
    layers_lane: int | None = None


NOTHING = Scheduled(Schedule(scheme="ddp", messages=()), (), ())
"""What one process without DDP sends."""


class Launches:
    """Says what to launch at each point that a rank passes, and what to wait for before it: what its queue says.

    Args:
        scheduled: what is sent, in this iteration and those after it that send the same.
        iteration: the first of them.
        parameters: how many the model has.

    Attributes:
        scheduled: as given.
    """

    __slots__ = ("_gradients", "_planned", "_queue", "_skipped", "scheduled")

    def __init__(self, scheduled: Scheduled, iteration: int, parameters: int) -> None:
        self.scheduled, self._planned, self._skipped = scheduled, scheduled.messages, list[int]()
        self._queue = queue_of(scheduled.schedule)
        self._queue.resume(iteration)
        self._gradients = gradient_points(tuple(range(parameters)))

    def skip(self, iteration: int, dropped: Collection[int]) -> None:
        """Leave out of an iteration the messages of nothing but parameters that are left out of it."""
        skipped = skipped_buckets([message.parameters for message in self._planned], dropped) if dropped else []
        if skipped or self._skipped:
            self._queue.reset(skipped)
            self._queue.resume(iteration)
        self._skipped = skipped

    def begin(self) -> list[PlannedMessage]:
        """Begin an iteration; return what to launch at its start."""
        return [self._planned[number] for number in self._queue.begin()]

    def gradient(self, parameter: int, unused: Iterable[int] = ()) -> list[PlannedMessage]:
        """Announce a gradient, and before it those that will not come, in whose place zeros are sent.

        Returns:
            What to launch, in order.
        """
        came = self._queue.mark_passed(*(self._gradients[index] for index in unused)) if unused else []
        came += self._queue.mark_passed(self._gradients[parameter])
        return [self._planned[number] for number in came]

    def mark_passed(self, *points: Point) -> list[PlannedMessage]:
        """Announce points; return what to launch, in order."""
        return [self._planned[number] for number in self._queue.mark_passed(*points)]

    def take_waits(self, *points: Point) -> list[PlannedMessage]:
        """Return what must have ended before `points` are passed, in order.

        Raises:
            PlanError: a message that stands behind another which is not possible yet: a rank would wait for ever.
        """
        waited = self._queue.take_waits(*points)
        if held := [number for number in waited if self._queue.is_held(number)]:
            messages = self.scheduled.schedule.messages
            before = messages[self._queue.next_of(held[0])].id
            what = f"{points[0]} waits for it, and it for {before!r} before it, which is not possible yet"
            place = f"message {messages[held[0]].id!r}"
            raise PlanError(what, place=place, remedy="put it first, or on another stream")
        return [self._planned[number] for number in waited]


ADDED = ADDITION.passes / 2
"""Bytes that adding a gradient to one that exists moves on a GPU, read, read and written, over those of a copy.

On a CPU a copy moves as many, for a store reads its cache line first: an addition takes 0.8 to 1.0 of a copy's time
between 1 and 64 MiB (`python -m studies.host_costs.additions`), taken as one.
"""


ForwardStop = tuple[float, float, ForwardWait | LayerMessage | DevicePart]
"""Why forward stops, behind the shares of it on host and device that are over then."""


@dataclass(slots=True)
class RankConfiguration:
    """What a rank runs: the same for every rank of its kind.

    Attributes:
        part: what it has of the model.
        execution: on which resources its work is.
        gpu: that computes; None is a CPU, layers that sleep, or a GPU that is not in the catalogue.
        plans: the buckets of each iteration.
        pace: gives the pace of iteration k.
        dropped: gives the parameters of the layers that iteration k leaves out.
        codec: what buckets send; None is their gradients as they are.
        copies_s: of copying each gradient into its bucket.
        iterations: how many to run.
        ranks: of the job.
        scheduled: gives what iteration k sends, and where it waits for that; the same object while that stays.
        ddp: False for one process without DDP: no hooks, no buckets, no collectives.
        input_stage: how batches are loaded and copied; None where they are there.
        kernel_s: the mean time of a kernel of backward on the device.
        devices: by registration index the number of the device that each parameter is on.
    """

    workload: Workload
    part: ModelPart
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
    scheduled: Callable[[int], Scheduled] = lambda iteration: NOTHING
    ddp: bool = True
    input_stage: InputStage | None = None
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

    def layers_of(self, stage: StagePart) -> ModelParallel | None:
        """Return what the layers of a stage wait for; None of whole ones, and of one process by itself."""
        layers = (self.workload.tensor or self.workload.experts) if self.ddp else None
        return layers if layers is None or len(self.part.stages) == 1 else replace(layers, messages=stage.messages)

    def forward_stops(self, scheduled: Scheduled, stage: StagePart) -> Sequence[ForwardStop]:
        """Return where the forward of a stage stops, for what is sent, in a layer or between devices, in order."""
        stops: list[ForwardStop] = [(each.host, each.work, each) for each in scheduled.forward]
        if self.workload.devices:
            forward = self.workload.forward
            stops += part_shares(self.workload.devices, float(median(forward.host_s)), float(median(forward.device_s)))
        if (layers := self.layers_of(stage)) is None:
            return stops
        stops += [(each.host, each.device, each) for each in layers.forward]
        stops.sort(key=lambda stop: stop[1])
        latest = itertools.accumulate((host for host, _, _ in stops), max)
        return [(host, work, stop) for host, (_, work, stop) in zip(latest, stops, strict=True)]

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
        """Return what an iteration launches and waits for; where messages stay, that of the one `before` goes on."""
        scheduled, dropped = self.scheduled(iteration), self.dropped(iteration)
        if before is None or before.scheduled is not scheduled:
            before = Launches(scheduled, iteration, len(self.workload.parameters))
        before.skip(iteration, () if self.remaps(dropped) else dropped)
        return before

    def remaps(self, dropped: Collection[int]) -> bool:
        """Whether what is left of an iteration without `dropped` moves up into the memory of the first buckets."""
        return bool(dropped) and self.options.drop_buckets == "remapped"

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
