"""A rank on a GPU: a host thread that launches, a compute stream that works, communication streams beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from ddpsim.simulation.processor import Process, Stream
from ddpsim.simulation.rank import BITMAP_BYTES, Book, Rank
from ddpsim.simulation.reduction import Reduction, Sends
from ddpsim.simulation.rendezvous import Launch
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
                yield from self.stream.host_waits(self._ends[index - RUN_AHEAD])
            book = Book(index, self.setting.plan(index), 0.0)
            self._at_start(book, previous)
            yield from self._forward(book)
            yield from self._backward(book)
            yield from self._optimizer(book)
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

    def _forward(self, book: Book) -> Process:
        setting, pace, stream = self.setting, self.setting.pace(book.index), self.stream
        if setting.broadcasts(book.index):
            stream.host_s += len(setting.workload.buffers) * setting.costs.buffer_s
            copies = setting.costs.copies_s(len(setting.workload.buffers), setting.workload.buffer_bytes)
            stream.work(copies)
            for size in setting.broadcast_bytes():
                stream.host_s += setting.costs.launch_s
                stream.wait(self.communicator.launch(size, stream.mark(), "broadcast", stream.host_s).done)
            stream.work(copies)

            def broadcast_done() -> None:
                book.buffer_broadcast_s = self.env.now - book.start_s

            stream.call(broadcast_done)
        stream.work(pace.forward_work)
        stream.host_s += pace.forward_host + setting.forward_host_s()

        def forward_done() -> None:
            book.forward_s = self.env.now - book.start_s - book.buffer_broadcast_s

        stream.call(forward_done)
        if "after_forward" in setting.workload.synchronises:
            yield from stream.host_waits(stream.mark())

    def _backward(self, book: Book) -> Process:
        setting, stream, pace, costs = self.setting, self.stream, self.setting.pace(book.index), self.setting.costs
        synced, adds = setting.synced(book.index), setting.adds(book.index)
        queue, unused = self.queue_for(book, pace)
        launches: dict[int, Reduction] = {}
        spent = self._watch(book, pace.idle_s)
        owed = copied = 0.0
        gradients = zip(pace.order, pace.host.tolist(), pace.work.tolist(), pace.lag.tolist(), strict=True)
        for position, (parameter, host_s, work_s, lag_s) in enumerate(gradients):
            stream.work(work_s)
            owed += host_s + (costs.hook_s if adds else 0.0)
            stream.host_s += owed
            if lag_s > 0:
                stream.not_before(stream.host_s + lag_s)
            if adds:
                stream.work(setting.add_s(parameter))
            stream.call(self._note_gradient, book, parameter, stream.host_s)
            owed = 0.0
            if not synced:
                continue
            owed = costs.hook_s
            copy = setting.copy_s(parameter)
            stream.work(copy)
            copied += copy
            complete = queue.start(unused) if position == 0 and unused else []
            for number in complete + queue.ready(parameter):
                sends = self.sends(book, number)
                stream.host_s += owed + sends.host_s + len(sends.messages) * costs.launch_s
                owed = 0.0
                copied += sends.encode_s
                launches[number] = self._launch(book, number, sends)
        stream.work(pace.tail_work)
        stream.host_s += owed + pace.tail_host
        stream.call(spent, copied)
        yield from self._finish(book, launches, unused)
        if "after_backward" in setting.workload.synchronises:
            yield from stream.host_waits(stream.mark())

    def _finish(self, book: Book, launches: dict[int, Reduction], unused: list[int]) -> Process:
        """Wait for every bucket and write it back."""
        setting, stream = self.setting, self.stream
        bitmap = None
        if launches and setting.options.find_unused_parameters:
            stream.host_s += setting.costs.launch_s
            size_bytes = BITMAP_BYTES * len(setting.workload.parameters)
            bitmap = self.communicator.launch(size_bytes, after=stream.mark(), launched_s=stream.host_s)
        missing = set(unused)
        for number, launch in launches.items():
            stream.host_s += setting.costs.finish_s
            if bitmap is not None and missing.intersection(book.plan.buckets[number].parameters):
                # torch reads the reduced bitmap there, on the host, to leave what no rank used as it is.
                self._wait(book, bitmap)
                bitmap = None
                yield from stream.host_waits(stream.mark())
            self._write_back(book, number, launch)
        if bitmap is not None:
            self._wait(book, bitmap)

    def _watch(self, book: Book, idle_s: float) -> Callable[[float], None]:
        """Note backward's computing time: its interval less copies and less what DDP made the device idle."""
        at: dict[str, float] = {}

        def begin() -> None:
            at.update(now=self.env.now, idle=self.stream.idle_s)

        def end(copied: float) -> None:
            stretched = max(0.0, self.stream.idle_s - at["idle"] - idle_s)
            book.backward_compute_s = self.env.now - at["now"] - copied - stretched

        self.stream.call(begin)
        return end

    def _note_gradient(self, book: Book, parameter: int, hook_s: float) -> None:
        book.gradients.append(Gradient(parameter=parameter, hook_s=hook_s, ready_s=self.env.now))

    def _launch(self, book: Book, number: int, sends: Sends) -> Reduction:
        ready = self.stream.mark()

        def note(_: simpy.Event) -> None:
            book.ready_s[number] = self.env.now

        ready.callbacks.append(note)
        if sends.encode_s > 0:
            self.stream.work(sends.encode_s)
            ready = self.stream.mark()
        self.stream.work(len(sends.messages) * self.setting.enter_s)
        return Reduction(self.communicator, sends, after=ready, launched_s=self.stream.host_s)

    def _write_back(self, book: Book, number: int, launch: Reduction) -> None:
        self._wait(book, launch)
        self.stream.work(self.setting.write_back_s(book.plan.buckets[number]))

        def written() -> None:
            book.buckets.append(self.bucket_times(book, number, launch, self.env.now))

        self.stream.call(written)

    def _wait(self, book: Book, launch: Launch | Reduction) -> None:
        waited: list[float] = []
        self.stream.call(lambda: waited.append(self.stream.waited_s))
        self.stream.wait(launch.done)

        def done() -> None:
            book.exposed_comm_s += self.stream.waited_s - waited[0]

        self.stream.call(done)

    def _optimizer(self, book: Book) -> Process:
        pace = self.setting.pace(book.index)

        def begin() -> None:
            book.optimizer_s = -self.env.now

        self.stream.call(begin)
        if self.setting.optimises(book.index):
            self.stream.work(pace.optimizer_work)
            self.stream.host_s += pace.optimizer_host
        self.stream.not_before(self.stream.host_s)
        if "after_optimizer" in self.setting.workload.synchronises:
            yield from self.stream.host_waits(self.stream.mark())
