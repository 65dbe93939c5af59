"""A rank on a CPU: host and device are one, so hooks, copies and launches delay the computation itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddpsim.schedules.points import BACKWARD_END
from ddpsim.simulation.books import Book, Sent
from ddpsim.simulation.processor import Process
from ddpsim.simulation.rank import BITMAP_BYTES, Rank
from ddpsim.simulation.reduction import Reduction
from ddpsim.simulation.rendezvous import BUFFERS, Launch
from ddpsim.simulation.scheduled import Stop, Update
from ddpsim.simulation.traffic import Parcel, Traffic
from ddpsim.trace.records import Gradient


@dataclass(slots=True)
class CpuRank(Rank):
    """Runs every step on one host thread; collectives run beside it on the backend's threads."""

    def run(self) -> Process:
        """Run all iterations."""
        for index in range(self.setting.iterations):
            book = Book(index, self.setting.plan(index), self.env.now)
            traffic = self.traffic(book, self.setting.pace(index))
            yield from self._input(book)
            yield from self._forward(book, traffic)
            yield from self._backward(book, traffic)
            yield from self._finish(book, traffic)
            yield from self._optimizer(book, traffic)
            self.record(book)

    def begin_phase(self) -> float:
        """Begin forward, backward or the optimizer; return the time."""
        return self.env.now

    def compute(self, seconds: float) -> Process:
        """Compute for `seconds`, on the thread that hooks and launches use too."""
        yield from self.processor.work(seconds)

    def optimize(self, seconds: float) -> Process:
        """Let the optimizer of a schedule work for `seconds`."""
        yield from self.processor.work(seconds)

    def held_up(self, since_s: float) -> None:
        """Note that computation has been held up since `since_s`, until now."""

    def _input(self, book: Book) -> Process:
        """Load the batch on this thread, or wait for those that do; there is no device to copy it to."""
        if self.feed is None:
            return
        begin = self.begin_phase()
        ready_s = self.feed.loaded(begin)
        if self.feed.stage.loaders == 0:
            yield from self.compute(ready_s - begin)
        elif ready_s > begin:
            yield self.env.timeout(ready_s - begin)
        book.input_s = self.env.now - begin

    def _forward(self, book: Book, traffic: Traffic) -> Process:
        setting = self.setting
        yield from self._confer(book)
        if setting.broadcasts(book.index):
            begin = self.env.now
            yield self.env.timeout(len(setting.workload.buffers) * setting.costs.buffer_s)
            launches = []
            for size in setting.broadcast_bytes():
                yield self.env.timeout(setting.costs.launch_s)
                launches.append(self.communicator.launch(size, operation=BUFFERS, lane=setting.buffers_lane))
            for launch in launches:
                yield launch.done
            book.buffer_broadcast_s = self.env.now - begin
        yield from self._launch_all(book, traffic.begin())
        self.begin_phase()
        forward_s, over = setting.pace(book.index).forward_host, 0.0
        for stop in setting.stops:
            yield from self._computed_forward(book, forward_s * (stop.host - over))
            yield from self._stop(book, traffic, stop)
            over = stop.host
        self.owes_update = False
        yield from self._computed_forward(book, forward_s * (1.0 - over))
        if (cost := setting.forward_host_s(book.index)) > 0:
            yield self.env.timeout(cost)

    def _confer(self, book: Book) -> Process:
        """Exchange what ranks expect of the order of gradients, and build the buckets anew where they say so."""
        conferring = self.setting.confers(book.index)
        if conferring is None:
            return
        begin = self.env.now
        yield from self.processor.serve(conferring.host_s + self.setting.costs.launch_s)
        launch = self.communicator.launch(conferring.size_bytes, operation=conferring.operation, lane=0)
        yield launch.done
        yield from self.processor.serve(conferring.rebuild_s)
        book.aside_s += self.env.now - begin

    def _computed_forward(self, book: Book, seconds: float) -> Process:
        begin = self.env.now
        yield from self.compute(seconds)
        book.forward_s += self.env.now - begin

    def _stop(self, book: Book, traffic: Traffic, stop: Stop) -> Process:
        """Wait for what forward needs from here on, let the optimizer make it, and launch what comes then."""
        since_s = self.env.now
        for update in stop.updates if self.owes_update else ():
            yield from self._await(book, traffic.waits(*update.before))
            yield from self._update(book, traffic, update)
        yield from self._await(book, traffic.waits(*stop.points))
        self.held_up(since_s)
        book.aside_s += self.env.now - since_s
        yield from self._launch_all(book, traffic.passed(*stop.points))

    def _update(self, book: Book, traffic: Traffic, update: Update) -> Process:
        begin = self.env.now
        yield from self.optimize(self.setting.pace(book.index).optimizer_host * update.share)
        book.optimizer_s += self.env.now - begin
        yield from self._launch_all(book, traffic.passed(*update.after))

    def _backward(self, book: Book, traffic: Traffic) -> Process:
        setting = self.setting
        pace, costs = setting.pace(book.index), setting.costs
        synced, adds = setting.synced(book.index), setting.adds(book.index)
        unused = self.unused(pace, book.index) if synced or setting.scheduled else []
        self.begin_phase()
        for position, parameter in enumerate(pace.order):
            if setting.scheduled is not None and (needed := setting.scheduled.needed[parameter]):
                since_s = self.env.now
                yield from self._await(book, traffic.waits(*needed))
                self.held_up(since_s)
                yield from self._launch_all(book, traffic.passed(*needed))
            begin = self.env.now
            yield from self.compute(float(pace.host[position]))
            if adds:
                yield from self.processor.serve(setting.add_s(parameter))
            book.backward_compute_s += self.env.now - begin
            book.gradients.append(Gradient(parameter=parameter, hook_s=self.env.now, ready_s=self.env.now))
            if not synced:
                yield from self._launch_all(book, self.unsent(traffic, parameter, unused if position == 0 else ()))
                continue
            if self.fills(parameter):
                hook = costs.hook_s + setting.copy_s(parameter)
                yield from self.processor.serve(hook)
            if position == 0 and unused:
                yield from self._launch_all(book, traffic.unused(unused))
            yield from self._launch_all(book, traffic.gradient(parameter))
        begin = self.env.now
        yield from self.compute(pace.tail_host)
        book.backward_compute_s += self.env.now - begin

    def _launch_all(self, book: Book, parcels: Iterable[Parcel]) -> Process:
        for parcel in parcels:
            before = self.before(parcel) if parcel.after else []
            if parcel.host_awaits:
                for reduction in before:
                    yield from self._wait(book, reduction)
                before = []
            ready_s, sends = self.env.now, parcel.sends
            yield from self.processor.serve(parcel.fill_s + sends.encode_s + self.setting.costs.launch_s)
            after = self.env.all_of([reduction.done for reduction in before]) if before else None
            reduction = Reduction(
                self.communicator, sends, after, parcel.operation, parcel.lane, delay_s=parcel.delay_s
            )
            sent = self.sent(book, parcel, reduction)
            sent.ready_s = ready_s
            if parcel.blocking:
                yield from self._take_in(book, self.outstanding([parcel]))
                self.held_up(ready_s)

    def _finish(self, book: Book, traffic: Traffic) -> Process:
        """Wait for what the end of backward waits for, and launch what comes after it."""
        waited = self.outstanding(traffic.waits(BACKWARD_END))
        bitmap = None
        if waited and self.setting.options.find_unused_parameters:
            yield self.env.timeout(self.setting.costs.launch_s)
            bitmap = self.communicator.launch(BITMAP_BYTES * len(self.setting.workload.parameters))
        yield from self._take_in(book, waited)
        if bitmap is not None:
            yield from self._wait(book, bitmap)
        yield from self._launch_all(book, traffic.passed(BACKWARD_END))

    def _optimizer(self, book: Book, traffic: Traffic) -> Process:
        setting = self.setting
        optimises = setting.optimises(book.index)
        if setting.scheduled is not None:
            for update in setting.scheduled.updates:
                if optimises:
                    yield from self._await(book, traffic.waits(*update.before))
                    yield from self._update(book, traffic, update)
                else:
                    yield from self._launch_all(book, traffic.passed(*update.after))
            self.owes_update = optimises and not setting.scheduled.updates
        elif optimises:
            begin = self.begin_phase()
            yield from self.compute(setting.pace(book.index).optimizer_host)
            book.optimizer_s = self.env.now - begin

    def _await(self, book: Book, parcels: Iterable[Parcel]) -> Process:
        yield from self._take_in(book, self.outstanding(parcels))

    def _take_in(self, book: Book, waited: Iterable[Sent]) -> Process:
        """Wait for what was sent, and copy it out."""
        for sent in waited:
            yield from self._wait(book, sent.reduction)
            written_s = self.setting.costs.finish_s + sent.parcel.write_back_s
            yield from self.processor.serve(written_s, lasting=True)
            sent.written_s = self.env.now

    def _wait(self, book: Book, launch: Launch | Reduction) -> Process:
        if not launch.done.processed:
            begin = self.env.now
            yield launch.done
            book.exposed_comm_s += self.env.now - begin
