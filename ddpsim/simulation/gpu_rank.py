"""A rank on a GPU: a host thread that launches, a compute stream that works, communication streams beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import simpy

from ddpsim.schedules.points import BACKWARD_END
from ddpsim.simulation.processor import Process, Stream
from ddpsim.simulation.rank import BITMAP_BYTES, Book, Rank, Sent
from ddpsim.simulation.reduction import Reduction
from ddpsim.simulation.rendezvous import BUFFERS, Launch
from ddpsim.simulation.scheduled import Stop, Update
from ddpsim.simulation.traffic import Parcel, Traffic
from ddpsim.trace.records import Gradient

RUN_AHEAD = 2
"""Iterations the host may be ahead of the device; the launch queue of a CUDA device holds about one of them."""


@dataclass(slots=True)
class GpuRank(Rank):
    """Its host and its device run on clocks of their own, which meet only where the workload synchronises."""

    stream: Stream = field(init=False)
    _ends: list[simpy.Event] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.stream = Stream(self.env, self.processor)

    def run(self) -> Process:
        """Run all iterations on the host; the device follows."""
        previous: Book | None = None
        for index in range(self.setting.iterations):
            if index >= RUN_AHEAD:
                yield self._ends[index - RUN_AHEAD]
            book = Book(index, self.setting.plan(index), 0.0)
            traffic = self.traffic(book, self.setting.pace(index))
            self._at_start(book, previous)
            yield from self._forward(book, traffic)
            yield from self._backward(book, traffic)
            yield from self._optimizer(book, traffic)
            self._ends.append(self.stream.mark())
            previous = book
        end = self.stream.mark()
        yield end
        if previous is not None:
            self._close(previous)

    def _at_start(self, book: Book, previous: Book | None) -> None:
        def start() -> None:
            if previous is not None:
                self._close(previous)
            book.start_s = self.env.now

        self.stream.call(start)

    def _close(self, book: Book) -> None:
        book.optimizer_s += self.env.now
        self.record(book)

    def _forward(self, book: Book, traffic: Traffic) -> Process:
        setting, pace = self.setting, self.setting.pace(book.index)
        if setting.broadcasts(book.index):
            yield self.env.timeout(len(setting.workload.buffers) * setting.costs.buffer_s)
            copies = setting.costs.copies_s(len(setting.workload.buffers), setting.workload.buffer_bytes)
            self.stream.work(copies)
            for size in setting.broadcast_bytes():
                yield self.env.timeout(setting.costs.launch_s)
                launch = self.communicator.launch(size, self.stream.mark(), BUFFERS, setting.main_lane)
                self.stream.wait(launch.done)
            self.stream.work(copies)

            def broadcast_done() -> None:
                book.buffer_broadcast_s = self.env.now - book.start_s

            self.stream.call(broadcast_done)
        yield from self._launch_all(book, traffic.begin())
        host, work = 0.0, 0.0
        for stop in setting.stops:
            self.stream.work(pace.forward_work * (stop.work - work))
            yield self.env.timeout(pace.forward_host * (stop.host - host))
            yield from self._stop(book, traffic, stop)
            host, work = stop.host, stop.work
        self.owes_update = False
        self.stream.work(pace.forward_work * (1.0 - work))
        yield self.env.timeout(pace.forward_host * (1.0 - host) + setting.forward_host_s())
        self.stream.not_before(self.env.now)

        def forward_done() -> None:
            book.forward_s = self.env.now - book.start_s - book.buffer_broadcast_s - book.aside_s

        self.stream.call(forward_done)
        if "after_forward" in setting.workload.synchronises:
            yield self.stream.mark()

    def _stop(self, book: Book, traffic: Traffic, stop: Stop) -> Process:
        """Let the device wait for what forward needs from here on, and update it; launch what comes then."""
        began: list[float] = []
        self.stream.call(lambda: began.append(self.env.now))
        for update in stop.updates if self.owes_update else ():
            yield from self._await(book, traffic.waits(*update.before))
            yield from self._update(book, traffic, update)
        yield from self._await(book, traffic.waits(*stop.points))

        def ended() -> None:
            book.aside_s += self.env.now - began[0]

        self.stream.call(ended)
        yield from self._launch_all(book, traffic.passed(*stop.points))

    def _backward(self, book: Book, traffic: Traffic) -> Process:
        setting, costs = self.setting, self.setting.costs
        pace = setting.pace(book.index)
        synced, adds = setting.synced(book.index), setting.adds(book.index)
        unused = self.unused(pace) if synced else []
        spent = self._watch(book, pace.idle_s)
        owed = copied = 0.0
        for position, parameter in enumerate(pace.order):
            if setting.scheduled is not None and (needed := setting.scheduled.needed[parameter]):
                yield from self._await(book, traffic.waits(*needed))
                yield from self._launch_all(book, traffic.passed(*needed))
            self.stream.work(float(pace.work[position]))
            owed += float(pace.host[position]) + (costs.hook_s if adds else 0.0)
            yield self.env.timeout(owed)
            self.stream.not_before(self.env.now + float(pace.lag[position]))
            if adds:
                self.stream.work(setting.add_s(parameter))
            self._note_gradient(book, parameter, self.env.now)
            owed = 0.0
            if not synced:
                continue
            if self.fills(parameter):
                owed = costs.hook_s
                copy = costs.copies_s(1, setting.workload.parameters[parameter].size_bytes)
                self.stream.work(copy)
                copied += copy
            parcels = traffic.unused(unused) if position == 0 and unused else []
            for parcel in parcels + traffic.gradient(parameter):
                yield from self._launch(book, parcel, owed)
                owed = 0.0
                copied += parcel.sends.encode_s
        self.stream.work(pace.tail_work)
        yield self.env.timeout(owed + pace.tail_host)
        self.stream.not_before(self.env.now)
        self.stream.call(lambda: spent(copied))
        yield from self._finish(book, traffic, unused)
        yield from self._launch_all(book, traffic.passed(BACKWARD_END))
        if "after_backward" in setting.workload.synchronises:
            yield self.stream.mark()

    def _finish(self, book: Book, traffic: Traffic, unused: Sequence[int]) -> Process:
        """Let the device wait for what the end of backward waits for."""
        waited, costs, bitmap = self.outstanding(traffic.waits(BACKWARD_END)), self.setting.costs, None
        if waited and self.setting.options.find_unused_parameters:
            yield self.env.timeout(costs.launch_s)
            bitmap = self.communicator.launch(
                BITMAP_BYTES * len(self.setting.workload.parameters), after=self.stream.mark()
            )
        missing = set(unused)
        for sent in waited:
            yield self.env.timeout(costs.finish_s)
            if bitmap is not None and missing.intersection(sent.parcel.parameters):
                # torch reads the reduced bitmap there, on the host, to leave what no rank used as it is.
                self._wait(book, bitmap)
                bitmap = None
                yield self.stream.mark()
            self._write_back(book, sent)
        if bitmap is not None:
            self._wait(book, bitmap)

    def _await(self, book: Book, parcels: Iterable[Parcel]) -> Process:
        for sent in self.outstanding(parcels):
            yield self.env.timeout(self.setting.costs.finish_s)
            self._write_back(book, sent)

    def _launch_all(self, book: Book, parcels: Iterable[Parcel]) -> Process:
        for parcel in parcels:
            yield from self._launch(book, parcel)

    def _watch(self, book: Book, idle_s: float) -> Callable[[float], None]:
        """Note backward's computing time: its interval less copies and less what DDP made the device idle."""
        at: dict[str, float] = {}

        def begin() -> None:
            at.update(now=self.env.now, idle=self.stream.idle_s, waited=self.stream.waited_s)

        def end(copied: float) -> None:
            stretched = max(0.0, self.stream.idle_s - at["idle"] - idle_s)
            waited = self.stream.waited_s - at["waited"]
            book.backward_compute_s = self.env.now - at["now"] - copied - stretched - waited

        self.stream.call(begin)
        return end

    def _note_gradient(self, book: Book, parameter: int, hook_s: float) -> None:
        def note() -> None:
            book.gradients.append(Gradient(parameter=parameter, hook_s=hook_s, ready_s=self.env.now))

        self.stream.call(note)

    def _launch(self, book: Book, parcel: Parcel, owed_s: float = 0.0) -> Process:
        """Launch `parcel` when the host has spent what it owes, and what launching takes."""
        sends = parcel.sends
        before = [reduction.done for reduction in self.before(parcel)]
        if self.setting.host_awaits:
            for done in before:
                if not done.processed:
                    yield done
        yield self.env.timeout(owed_s + sends.host_s + len(sends.messages) * self.setting.costs.launch_s)
        ready = self.stream.mark()

        def note(_: simpy.Event) -> None:
            sent.ready_s = self.env.now

        assert ready.callbacks is not None
        ready.callbacks.append(note)
        if (own_s := parcel.fill_s + sends.encode_s) > 0:
            self.stream.work(own_s)
            ready = self.stream.mark()
        self.stream.work(len(sends.messages) * self.setting.enter_s)
        after = self.env.all_of([ready, *before]) if before else ready
        sent = self.sent(book, parcel, Reduction(self.communicator, sends, after, parcel.operation, parcel.lane))

    def _write_back(self, book: Book, sent: Sent) -> None:
        self._wait(book, sent.reduction)
        self.stream.work(sent.parcel.write_back_s)

        def written() -> None:
            sent.written_s = self.env.now

        self.stream.call(written)

    def _wait(self, book: Book, launch: Launch | Reduction) -> None:
        waited: list[float] = []
        self.stream.call(lambda: waited.append(self.stream.waited_s))
        self.stream.wait(launch.done)

        def done() -> None:
            book.exposed_comm_s += self.stream.waited_s - waited[0]

        self.stream.call(done)

    def _optimizer(self, book: Book, traffic: Traffic) -> Process:
        setting, scheduled = self.setting, self.setting.scheduled
        pace, optimises = setting.pace(book.index), setting.optimises(book.index)
        update = None if scheduled is None else scheduled.update
        if update is not None and optimises:
            yield from self._await(book, traffic.waits(*update.before))

        def begin() -> None:
            book.optimizer_s -= self.env.now

        self.stream.call(begin)
        if optimises and (scheduled is None or update is not None):
            share = 1.0 if update is None else update.share
            self.stream.work(pace.optimizer_work * share)
            yield self.env.timeout(pace.optimizer_host * share)
        self.stream.not_before(self.env.now)
        self.owes_update = optimises and scheduled is not None and update is None
        if update is not None and optimises:
            yield from self._launch_all(book, traffic.passed(*update.after))
        if "after_optimizer" in setting.workload.synchronises:
            yield self.stream.mark()

    def _update(self, book: Book, traffic: Traffic, update: Update) -> Process:
        """Let the device update parameters before forward needs them."""
        pace, began = self.setting.pace(book.index), []
        self.stream.call(lambda: began.append(self.env.now))
        self.stream.work(pace.optimizer_work * update.share)
        yield self.env.timeout(pace.optimizer_host * update.share)
        self.stream.not_before(self.env.now)

        def ended() -> None:
            book.optimizer_s += self.env.now - began[0]

        self.stream.call(ended)
        yield from self._launch_all(book, traffic.passed(*update.after))
