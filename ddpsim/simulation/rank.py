"""What the simulated ranks of both kinds, CPU and GPU, have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import simpy

from ddpsim.bucketing import Bucket, LaunchQueue
from ddpsim.bucketing.drop import skipped_buckets
from ddpsim.simulation.books import Book, Sent
from ddpsim.simulation.inputs import InputFeed
from ddpsim.simulation.pace import Pace
from ddpsim.simulation.processor import Processor
from ddpsim.simulation.reduction import Reduction
from ddpsim.simulation.rendezvous import SimulatedCommunicator
from ddpsim.simulation.setting import Setting
from ddpsim.simulation.traffic import BucketTraffic, Parcel, ScheduleTraffic, Traffic
from ddpsim.trace.records import Iteration

Progress = Callable[[int, int], None]
"""Called with what is done and how much there is in all."""

LATEST = -1
"""Number of the rank that stands for the last of several at every point."""
BITMAP_BYTES = 4
"""torch's used-parameter bitmap is int32."""


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
