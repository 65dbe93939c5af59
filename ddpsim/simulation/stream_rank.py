"""What a rank on a GPU launches from its host thread, and what its compute stream then waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import simpy

from ddpsim.schedules.points import BACKWARD_END
from ddpsim.simulation.books import Book, Sent
from ddpsim.simulation.processor import Process, Stream
from ddpsim.simulation.rank import BITMAP_BYTES, Rank
from ddpsim.simulation.reduction import Reduction
from ddpsim.simulation.rendezvous import Launch
from ddpsim.simulation.traffic import Parcel, Traffic


@dataclass(slots=True)
class StreamRank(Rank):
    """A rank with a compute stream: launching costs the host's time, waiting and copying the stream's.

    A subclass says when, in the phases of a step.
    """

    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = Stream(self.env, self.processor)

    def await_sent(self, book: Book, parcels: Iterable[Parcel]) -> None:
        """Let the stream wait for those of `parcels` that it has not waited for, and write back what they brought."""
        for sent in self.outstanding(parcels):
            self.stream.host_s += self.setting.costs.finish_s
            self._write_back(book, sent)

    def launch_all(self, book: Book, parcels: Iterable[Parcel]) -> Process:
        """Launch `parcels`, in order."""
        for parcel in parcels:
            yield from self.hand_over(book, parcel)

    def hand_over(self, book: Book, parcel: Parcel, owed_s: float = 0.0) -> Process:
        """Launch `parcel`, once the host has waited for what it must; it waits for the end of what blocks it."""
        for reduction in self.before(parcel) if parcel.host_awaits else ():
            yield from self.stream.host_waits(reduction.done)
        self._launch(book, parcel, owed_s)
        if parcel.blocking:
            self.await_sent(book, [parcel])
            yield from self.stream.host_waits(self._sent[parcel.number].reduction.done)

    def finish(self, book: Book, traffic: Traffic, missing: Collection[int]) -> Process:
        """Let the stream wait for what the end of backward waits for, and for the bitmap of unused parameters.

        Args:
            missing: parameters that some rank had no gradient of.
        """
        waited, setting, stream, bitmap = self.outstanding(traffic.waits(BACKWARD_END)), self.setting, self.stream, None
        if waited and setting.options.find_unused_parameters:
            stream.host_s += setting.costs.launch_s
            size_bytes = BITMAP_BYTES * len(setting.workload.parameters)
            bitmap = self.communicator.launch(size_bytes, after=stream.mark(), launched_s=stream.host_s)
        for sent in waited:
            stream.host_s += setting.costs.finish_s
            if bitmap is not None and not frozenset(sent.parcel.parameters).isdisjoint(missing):
                # torch reads the reduced bitmap there, on the host, to leave what no rank used as it is.
                self._wait(book, bitmap)
                bitmap = None
                yield from stream.host_waits(stream.mark())
            self._write_back(book, sent)
        if bitmap is not None:
            self._wait(book, bitmap)

    def _launch(self, book: Book, parcel: Parcel, owed_s: float = 0.0) -> None:
        """Launch `parcel` when the host has spent what it owes, and what launching takes."""
        sends, stream = parcel.sends, self.stream
        stream.host_s += owed_s + sends.host_s + len(sends.messages) * self.setting.costs.launch_s
        ready = stream.mark()

        def note(_: simpy.Event) -> None:
            sent.ready_s = self.env.now

        assert ready.callbacks is not None
        ready.callbacks.append(note)
        if (own_s := parcel.fill_s + sends.encode_s) > 0:
            stream.work(own_s)
            ready = stream.mark()
        stream.work(len(sends.messages) * self.setting.enter_s)
        before = [] if parcel.host_awaits else [reduction.done for reduction in self.before(parcel)]
        after = self.env.all_of([ready, *before]) if before else ready
        reduction = Reduction(
            self.communicator, sends, after, parcel.operation, parcel.lane, stream.host_s, parcel.delay_s
        )
        sent = self.sent(book, parcel, reduction)

    def _write_back(self, book: Book, sent: Sent) -> None:
        self._wait(book, sent.reduction)
        self.stream.work(sent.parcel.write_back_s)

        def written(moment_s: float) -> None:
            sent.written_s = moment_s

        self.stream.note(written)

    def _wait(self, book: Book, launch: Launch | Reduction) -> None:
        def exposed(waited_s: float) -> None:
            book.exposed_comm_s += waited_s

        self.stream.wait(launch.done, exposed)
