"""What the simulated ranks of both kinds, CPU and GPU, have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import simpy

from ddpsim.bucketing import Bucket, BucketPlan, LaunchQueue
from ddpsim.bucketing.drop import remapped, skipped_buckets
from ddpsim.jobs.simulated import Options
from ddpsim.options.input_stage import InputStage
from ddpsim.simulation.conferring import Conferring
from ddpsim.simulation.costs import KERNELS, Costs
from ddpsim.simulation.inputs import InputFeed
from ddpsim.simulation.pace import Pace
from ddpsim.simulation.processor import Processor
from ddpsim.simulation.reduction import CodecCosts, Reduction
from ddpsim.simulation.rendezvous import SimulatedCommunicator
from ddpsim.simulation.scheduled import Scheduled, Stop
from ddpsim.simulation.traffic import BucketTraffic, Parcel, ScheduleTraffic, Traffic
from ddpsim.trace.records import BucketTimes, Gradient, Iteration
from ddpsim.workload import Workload
from ddpsim.workload.optimizers import ADDITION

Progress = Callable[[int, int], None]
"""Called with what is done and how much there is in all."""

LATEST = -1
"""Number of the rank that stands for the last of several at every point."""
ADDED = ADDITION.passes / 2
"""Bytes that adding a gradient to one that exists moves on a GPU, read, read and written, over those of a copy.

On a CPU a copy moves as many, for a store reads its cache line first: an addition takes 0.8 to 1.0 of a copy's time
between 1 and 64 MiB (`python -m tests.accuracy.additions`), taken as one.
"""
BITMAP_BYTES = 4
"""torch's used-parameter bitmap is int32."""


@dataclass(slots=True)
class Setting:
    """What a rank runs: the same for every rank of its kind.

    Attributes:
        plan: gives the buckets of iteration k.
        pace: gives the pace of iteration k.
        dropped: gives the parameters of the layers that iteration k leaves out.
        codec: what buckets send.
        iterations: how many to run.
        ddp: False for one process without DDP: no hooks, no buckets, no collectives.
        alone: True for a world of one, whose collectives have no kernel.
        scheduled: the schedule that takes DDP's place; None is DDP's own buckets.
        input_stage: how batches are loaded and copied; None where they are there.
        confers: gives what conferring on the order of gradients takes before iteration k; None where nobody confers.
        kernel_s: the mean time of a kernel of backward on the device.
    """

    workload: Workload
    plan: Callable[[int], BucketPlan]
    options: Options
    costs: Costs
    pace: Callable[[int], Pace]
    dropped: Callable[[int], frozenset[int]]
    codec: CodecCosts
    iterations: int
    ddp: bool = True
    alone: bool = False
    scheduled: Scheduled | None = None
    input_stage: InputStage | None = None
    confers: Callable[[int], Conferring | None] = lambda iteration: None
    kernel_s: float = field(init=False, repr=False)
    _copies_s: list[float] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        backward_s = float(self.workload.backward.device_s.mean()) * self.options.scale_compute
        self.kernel_s = backward_s / len(self.workload.parameters) / KERNELS

    @property
    def stops(self) -> tuple[Stop, ...]:
        """Where forward stops for a schedule; DDP's never does."""
        return () if self.scheduled is None else self.scheduled.forward

    @property
    def buffers_lane(self) -> int | None:
        """The lane of what belongs to no schedule; DDP's process groups take turns."""
        return None if self.scheduled is None else 0

    @property
    def enter_s(self) -> float:
        """Time that the start of a collective takes from the computation beside it."""
        if self.alone or self.options.comm == "noop":
            return 0.0
        return self.costs.entering_s(self.kernel_s)

    @property
    def late_s(self) -> float:
        """How long a collective's blocks wait for those of the computation beside it."""
        return 0.0 if self.alone or self.options.comm == "noop" else self.costs.late_kernels * self.kernel_s

    def synced(self, iteration: int) -> bool:
        """Whether gradients are reduced in `iteration`."""
        return self.ddp and (iteration + 1) % self.options.sync_every == 0

    def optimises(self, iteration: int) -> bool:
        """Whether the optimizer runs in `iteration`: once a cycle of accumulated gradients, with DDP or without."""
        return (iteration + 1) % self.options.accumulate == 0

    def adds(self, iteration: int) -> bool:
        """Whether gradients of `iteration` are added to those of the micro-batches before it."""
        return iteration % self.options.accumulate != 0

    def add_s(self, parameter: int) -> float:
        """Return the time of adding one gradient, in place, to that of the micro-batches before."""
        share = 1.0 if self.workload.one_clock else ADDED
        return self.costs.copies_s(1, share * self.workload.parameters[parameter].size_bytes)

    def copy_s(self, parameter: int) -> float:
        """Return the time of copying one gradient into its bucket."""
        if not self._copies_s:
            self._copies_s += [self.costs.copies_s(1, each.size_bytes) for each in self.workload.parameters]
        return self._copies_s[parameter]

    def broadcasts(self, iteration: int) -> bool:
        """Whether buffers are broadcast before the forward of `iteration`: where the one before was synced."""
        return (
            self.ddp
            and self.options.broadcast_buffers
            and (self.scheduled is None or self.scheduled.schedule.broadcasts_buffers)
            and self.options.comm == "real"
            and bool(self.workload.buffers)
            and (iteration == 0 or self.synced(iteration - 1))
        )

    def remaps(self, dropped: Collection[int]) -> bool:
        """Whether what is left of an iteration without `dropped` moves up into the memory of the first buckets."""
        return bool(dropped) and self.options.drop_buckets == "remapped"

    def remapped(self, plan: BucketPlan, dropped: Collection[int]) -> list[Bucket]:
        """Return the buckets of an iteration without `dropped`, in launch order, whose memory is that of `plan`."""
        parameters = self.workload.parameters
        groups = remapped(parameters, plan.groups(), dropped)
        return [Bucket(group, sum(parameters[i].size_bytes for i in group), None) for group in groups if group]

    def forward_host_s(self, iteration: int) -> float:
        """Return the host time that DDP adds to a forward, the broadcast of buffers apart."""
        if not self.ddp:
            return 0.0
        dropped = self.dropped(iteration)
        if self.remaps(dropped) and dropped != self.dropped(iteration - 1):
            left = len(self.workload.parameters) - len(dropped)
            return self._forward_host_s() + left * self.costs.rebuild_s
        return self._forward_host_s()

    def _forward_host_s(self) -> float:
        search = len(self.workload.parameters) * self.costs.search_s if self.options.find_unused_parameters else 0.0
        return self.costs.forward_s + search

    def broadcast_bytes(self) -> list[int]:
        """Return the messages of a buffer broadcast: torch coalesces the buffers of each dtype."""
        sizes: dict[str, int] = {}
        for buffer in self.workload.buffers:
            sizes[buffer.dtype] = sizes.get(buffer.dtype, 0) + buffer.size_bytes
        return list(sizes.values())

    def write_back_s(self, bucket: Bucket) -> float:
        """Return the device time of copying `bucket` out; nothing where gradients are its views."""
        if self.options.gradient_as_bucket_view:
            return 0.0
        return self.costs.copies_s(len(bucket.parameters), bucket.size_bytes)


@dataclass(slots=True)
class Rank:
    """One simulated rank; a subclass runs it and fills `records`."""

    env: simpy.Environment
    number: int
    setting: Setting
    processor: Processor
    communicator: SimulatedCommunicator
    books: list[Book] = field(default_factory=list)
    progress: Progress | None = None
    feed: InputFeed | None = None
    owes_update: bool = False
    _sent: dict[int, Sent] = field(default_factory=dict)
    _traffic: ScheduleTraffic | None = None

    @property
    def records(self) -> list[Iteration]:
        """What every iteration has left, once the rank has run."""
        synced, stepped = self.setting.synced, self.setting.optimises
        return [book.close(self.number, synced=synced(book.index), stepped=stepped(book.index)) for book in self.books]

    def record(self, book: Book) -> None:
        """Keep what `book` has noted of an iteration that ends now."""
        book.end_s = self.env.now
        self.books.append(book)
        if self.progress:
            self.progress(len(self.books), self.setting.iterations)

    def traffic(self, book: Book, pace: Pace) -> Traffic:
        """Return what launches and waits in the iteration that begins: of DDP, fresh buckets.

        Buckets of nothing but layers that are left out are skipped.
        """
        scheduled = self.setting.scheduled
        if scheduled is not None:
            if self._traffic is None:
                self._traffic = scheduled.traffic()
            return self._traffic
        dropped = self.setting.dropped(book.index)
        if self.setting.remaps(dropped):
            buckets = self.setting.remapped(book.plan, dropped)
            return BucketTraffic(LaunchQueue([b.parameters for b in buckets]), lambda n: self._parcel(buckets[n], n))
        groups = book.plan.groups()
        queue = LaunchQueue(groups, skipped_buckets(groups, dropped) if dropped else ())
        return BucketTraffic(queue, lambda number: self._parcel(book.plan.buckets[number], number))

    def unused(self, pace: Pace, index: int) -> list[int]:
        """Return the parameters of buckets that get no gradient in iteration `index`, at `pace`."""
        used, dropped = set(pace.order), self.setting.dropped(index)
        if self.setting.remaps(dropped):
            used |= dropped
        return [i for i in range(len(self.setting.workload.parameters)) if i not in used]

    def unsent(self, traffic: Traffic, parameter: int, unused: Sequence[int]) -> list[Parcel]:
        """Return what to launch at a gradient of an iteration that reduces none: what a schedule sends in every one."""
        if self.setting.scheduled is None:
            return []
        return [*(traffic.unused(unused) if unused else ()), *traffic.gradient(parameter)]

    def fills(self, parameter: int) -> bool:
        """Whether the hook of a gradient copies it into a bucket."""
        return self.setting.scheduled is None or parameter in self.setting.scheduled.filled

    def sent(self, book: Book, parcel: Parcel, reduction: Reduction) -> Sent:
        """Note that `parcel` has been launched."""
        self._sent[parcel.number] = found = Sent(parcel, reduction)
        book.sent.append(found)
        return found

    def outstanding(self, parcels: Iterable[Parcel]) -> list[Sent]:
        """Return those of `parcels` that have been launched and not been waited for, as they are from now on."""
        found = [sent for parcel in parcels if not (sent := self._sent[parcel.number]).awaited]
        for sent in found:
            sent.awaited = True
        return found

    def before(self, parcel: Parcel) -> list[Reduction]:
        """Return what was launched last of those that must have ended before `parcel` begins."""
        return [self._sent[number].reduction for number in parcel.after if number in self._sent]

    def _parcel(self, bucket: Bucket, number: int) -> Parcel:
        setting = self.setting
        sends, written_s = setting.codec.sends(bucket), setting.write_back_s(bucket)
        return Parcel(number, bucket.size_bytes, bucket.parameters, sends, written_s)


@dataclass(slots=True)
class Sent:
    """A parcel that was launched, and what has become of it.

    Attributes:
        ready_s: when its last gradient was there.
        awaited: whether the rank has come to where it waits for it.
        written_s: when it had been copied out; None where nothing has waited for it.
    """

    parcel: Parcel
    reduction: Reduction
    ready_s: float = 0.0
    awaited: bool = False
    written_s: float | None = None

    def times(self) -> BucketTimes | None:
        """Return its record; None where the run ended before it did."""
        reduction, written_s = self.reduction, self.written_s
        if written_s is None and (written_s := reduction.finished_s) is None:
            return None
        finished = reduction.finished_s if reduction.finished_s is not None else written_s
        return BucketTimes(
            index=self.parcel.number,
            size_bytes=self.parcel.size_bytes,
            parameters=self.parcel.parameters,
            ready_s=self.ready_s,
            launched_s=reduction.launched_s,
            started_s=finished if reduction.started_s is None else reduction.started_s,
            wire_s=reduction.wire_s,
            finished_s=finished,
            written_s=written_s,
            operation=self.parcel.operation,
        )


@dataclass(slots=True)
class Book:
    """What one iteration has noted so far; becomes an `Iteration` when the run is over.

    `aside_s` is what forward was held up by: waits, copies, the optimizer.
    """

    index: int
    plan: BucketPlan
    start_s: float
    end_s: float = 0.0
    forward_s: float = 0.0
    aside_s: float = 0.0
    backward_compute_s: float = 0.0
    exposed_comm_s: float = 0.0
    buffer_broadcast_s: float = 0.0
    optimizer_s: float = 0.0
    input_s: float | None = None
    gradients: list[Gradient] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def close(self, rank: int, *, synced: bool, stepped: bool) -> Iteration:
        """Return the finished record."""
        return Iteration(
            rank=rank,
            index=self.index,
            start_s=self.start_s,
            end_s=self.end_s,
            forward_s=self.forward_s,
            backward_compute_s=self.backward_compute_s,
            exposed_comm_s=self.exposed_comm_s,
            buffer_broadcast_s=self.buffer_broadcast_s,
            optimizer_s=self.optimizer_s,
            held_up_s=self.aside_s,
            input_s=self.input_s,
            synced=synced,
            stepped=stepped,
            buckets=tuple(times for sent in self.sent if (times := sent.times()) is not None),
            gradients=tuple(self.gradients),
        )
