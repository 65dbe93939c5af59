"""A rank on a GPU: a host thread that launches, a compute stream that works, communication streams beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import simpy

from ddpsim.schedules.points import BACKWARD_END
from ddpsim.simulation.books import Book
from ddpsim.simulation.inputs import InputFeed
from ddpsim.simulation.processor import Process
from ddpsim.simulation.rendezvous import BUFFERS
from ddpsim.simulation.scheduled import Stop, Update
from ddpsim.simulation.stream_rank import StreamRank
from ddpsim.simulation.traffic import Parcel, Traffic
from ddpsim.trace.records import Gradient

RUN_AHEAD = 2
"""Iterations the host may be ahead of the device; the launch queue of a CUDA device holds about one of them."""


@dataclass(slots=True)
class GpuRank(StreamRank):
    """Its host and its device run on clocks of their own, which meet only where the workload synchronises."""

    _ends: list[simpy.Event] = field(init=False, default_factory=list)
    _batch: simpy.Event | None = field(init=False, default=None)

    def run(self) -> Process:
        """Run all iterations on the host; the device follows."""
        previous: Book | None = None
        for index in range(self.setting.iterations):
            if index >= RUN_AHEAD:
                yield from self.stream.host_waits(self._ends[index - RUN_AHEAD])
            book = Book(index, self.setting.plan(index), 0.0)
            traffic = self.traffic(book, self.setting.pace(index))
            self._at_start(book, previous)
            yield from self._input(book)
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

    def _input(self, book: Book) -> Process:
        """Have the batch on the device; where the stage is pipelined, load the next one and copy it meanwhile."""
        feed, stream = self.feed, self.stream
        if feed is None:
            return
        if feed.stage.pipelined:
            batch = self._fetched(feed) if self._batch is None else self._batch
            stream.wait(batch)
            self._batch = self._fetched(feed)
        else:
            stream.host_s = feed.loaded(stream.host_s)
            if feed.copies:
                stream.carry(feed.copy)
                if not feed.stage.queued:
                    yield from stream.host_waits(stream.mark())

        def there() -> None:
            book.input_s = self.env.now - book.start_s

        stream.call(there)

    def _fetched(self, feed: InputFeed) -> simpy.Event:
        """Load a batch on the host and launch its copy; return the event of its end."""
        self.stream.host_s = feed.loaded(self.stream.host_s)
        return feed.copied(self.stream.host_s)

    def _forward(self, book: Book, traffic: Traffic) -> Process:
        setting, pace, stream = self.setting, self.setting.pace(book.index), self.stream
        yield from self._confer(book)
        if setting.broadcasts(book.index):
            stream.host_s += len(setting.workload.buffers) * setting.costs.buffer_s
            copies = setting.costs.copies_s(len(setting.workload.buffers), setting.workload.buffer_bytes)
            stream.work(copies)
            for size in setting.broadcast_bytes():
                stream.host_s += setting.costs.launch_s
                launched = self.communicator.launch(size, stream.mark(), BUFFERS, setting.buffers_lane, stream.host_s)
                stream.wait(launched.done)
            stream.work(copies)

            def broadcast_done() -> None:
                book.buffer_broadcast_s = self.env.now - book.start_s - (book.input_s or 0.0)

            stream.call(broadcast_done)
        yield from self.launch_all(book, traffic.begin())
        host, work = 0.0, 0.0
        for stop in setting.stops:
            stream.work(pace.forward_work * (stop.work - work))
            stream.host_s += pace.forward_host * (stop.host - host)
            yield from self._stop(book, traffic, stop)
            host, work = stop.host, stop.work
        self.owes_update = False
        stream.work(pace.forward_work * (1.0 - work))
        stream.host_s += pace.forward_host * (1.0 - host) + setting.forward_host_s(book.index)

        def forward_done() -> None:
            before_s = (book.input_s or 0.0) + book.buffer_broadcast_s
            book.forward_s = self.env.now - book.start_s - before_s - book.aside_s

        stream.call(forward_done)
        if "after_forward" in setting.workload.synchronises:
            yield from stream.host_waits(stream.mark())

    def _confer(self, book: Book) -> Process:
        """Exchange what ranks expect of the order of gradients: the host reads it, and builds buckets where it says."""
        conferring, stream = self.setting.confers(book.index), self.stream
        if conferring is None:
            return
        began: list[float] = []
        stream.call(lambda: began.append(self.env.now))
        stream.host_s += conferring.host_s + self.setting.costs.launch_s
        marked = stream.mark()
        launch = self.communicator.launch(conferring.size_bytes, marked, conferring.operation, 0, stream.host_s)
        stream.wait(launch.done)
        yield from stream.host_waits(stream.mark())
        stream.host_s += conferring.rebuild_s
        stream.not_before(stream.host_s)

        def ended() -> None:
            book.aside_s += self.env.now - began[0]

        stream.call(ended)

    def _stop(self, book: Book, traffic: Traffic, stop: Stop) -> Process:
        """Let the device wait for what forward needs from here on, and update it; launch what comes then."""
        began: list[float] = []
        self.stream.note(began.append)
        for update in stop.updates if self.owes_update else ():
            self.await_sent(book, traffic.waits(*update.before))
            yield from self._update(book, traffic, update)
        self.await_sent(book, traffic.waits(*stop.points))

        def ended(moment_s: float) -> None:
            book.aside_s += moment_s - began[0]

        self.stream.note(ended)
        yield from self.launch_all(book, traffic.passed(*stop.points))

    def _backward(self, book: Book, traffic: Traffic) -> Process:
        setting, stream, pace, costs = self.setting, self.stream, self.setting.pace(book.index), self.setting.costs
        synced, adds = setting.synced(book.index), setting.adds(book.index)
        unused = self.unused(pace, book.index) if synced or setting.scheduled else []
        needed = None if setting.scheduled is None else setting.scheduled.needed
        spent = self._watch(book, pace.idle_s if setting.ddp else math.inf)
        owed = copied = 0.0
        gradients = zip(pace.order, pace.host.tolist(), pace.work.tolist(), pace.lag.tolist(), strict=True)
        for position, (parameter, host_s, work_s, lag_s) in enumerate(gradients):
            if needed is not None and (here := needed[parameter]):
                self.await_sent(book, traffic.waits(*here))
                yield from self.launch_all(book, traffic.passed(*here))
            stream.work(work_s)
            owed += host_s + (costs.hook_s if adds else 0.0)
            stream.host_s += owed
            if lag_s > 0:
                stream.not_before(stream.host_s + lag_s)
            if adds:
                stream.work(setting.add_s(parameter))
            stream.note(partial(self._note_gradient, book, parameter, stream.host_s))
            owed = 0.0
            if not synced:
                yield from self.launch_all(book, self.unsent(traffic, parameter, unused if position == 0 else ()))
                continue
            if self.fills(parameter):
                owed = costs.hook_s
                copy = setting.copy_s(parameter)
                stream.work(copy)
                copied += copy
            parcels = traffic.unused(unused) if position == 0 and unused else []
            for parcel in parcels + traffic.gradient(parameter):
                yield from self.hand_over(book, parcel, owed)
                owed = 0.0
                copied += parcel.sends.encode_s
        stream.work(pace.tail_work)
        stream.host_s += owed + pace.tail_host
        stream.call(spent, copied)
        yield from self.finish(book, traffic, pace.missed.union(unused))
        yield from self.launch_all(book, traffic.passed(BACKWARD_END))
        if "after_backward" in setting.workload.synchronises:
            yield from stream.host_waits(stream.mark())

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

    def _note_gradient(self, book: Book, parameter: int, hook_s: float, ready_s: float) -> None:
        book.gradients.append(Gradient(parameter=parameter, hook_s=hook_s, ready_s=ready_s))

    def _optimizer(self, book: Book, traffic: Traffic) -> Process:
        setting, scheduled, stream = self.setting, self.setting.scheduled, self.stream
        pace, optimises = setting.pace(book.index), setting.optimises(book.index)
        updates = () if scheduled is None else scheduled.updates
        self.owes_update = optimises and scheduled is not None and not updates
        if updates:
            self.await_sent(book, traffic.waits(*updates[0].before) if optimises else ())

        def begin(moment_s: float) -> None:
            book.optimizer_s -= moment_s

        stream.note(begin)
        if scheduled is None and optimises:
            stream.work(pace.optimizer_work)
            stream.host_s += pace.optimizer_host
        for number, update in enumerate(updates):
            if optimises and number:
                self._paused(book, traffic.waits(*update.before))
            if optimises:
                stream.work(pace.optimizer_work * update.share)
                stream.host_s += pace.optimizer_host * update.share
            if number + 1 < len(updates):
                yield from self.launch_all(book, traffic.passed(*update.after))
        stream.not_before(stream.host_s)
        if updates:
            yield from self.launch_all(book, traffic.passed(*updates[-1].after))
        if "after_optimizer" in setting.workload.synchronises:
            yield from stream.host_waits(stream.mark())

    def _paused(self, book: Book, parcels: Iterable[Parcel]) -> None:
        """Let the device wait between two updates, which is no time of the optimizer's."""

        def pause(moment_s: float) -> None:
            book.optimizer_s += moment_s

        def go_on(moment_s: float) -> None:
            book.optimizer_s -= moment_s

        self.stream.note(pause)
        self.await_sent(book, parcels)
        self.stream.note(go_on)

    def _update(self, book: Book, traffic: Traffic, update: Update) -> Process:
        """Let the device update parameters before forward needs them."""
        pace, stream = self.setting.pace(book.index), self.stream
        began: list[float] = []
        stream.note(began.append)
        stream.work(pace.optimizer_work * update.share)
        stream.host_s += pace.optimizer_host * update.share
        stream.not_before(stream.host_s)

        def ended(moment_s: float) -> None:
            book.optimizer_s += moment_s - began[0]

        stream.note(ended)
        yield from self.launch_all(book, traffic.passed(*update.after))
