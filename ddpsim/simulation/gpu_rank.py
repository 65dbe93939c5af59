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
                yield self._ends[index - RUN_AHEAD]
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
        setting, pace = self.setting, self.setting.pace(book.index)
        if setting.broadcasts(book.index):
            yield self.env.timeout(len(setting.workload.buffers) * setting.costs.buffer_s)
            copies = setting.costs.copies_s(len(setting.workload.buffers), setting.workload.buffer_bytes)
            self.stream.work(copies)
            for size in setting.broadcast_bytes():
                yield self.env.timeout(setting.costs.launch_s)
                self.stream.wait(self.communicator.launch(size, self.stream.mark(), "broadcast").done)
            self.stream.work(copies)

            def broadcast_done() -> None:
                book.buffer_broadcast_s = self.env.now - book.start_s

            self.stream.call(broadcast_done)
        self.stream.work(pace.forward_work)
        yield self.env.timeout(pace.forward_host + setting.forward_host_s())
        self.stream.not_before(self.env.now)

        def forward_done() -> None:
            book.forward_s = self.env.now - book.start_s - book.buffer_broadcast_s

        self.stream.call(forward_done)
        if "after_forward" in setting.workload.synchronises:
            yield self.stream.mark()

    def _backward(self, book: Book) -> Process:
        pace, costs, options = self.setting.pace(book.index), self.setting.costs, self.setting.options
        synced, adds = self.setting.synced(book.index), self.setting.adds(book.index)
        queue, unused = self.queue_for(book, pace)
        launches: dict[int, Reduction] = {}
        spent = self._watch(book, pace.idle_s)
        owed = copied = 0.0
        for position, parameter in enumerate(pace.order):
            self.stream.work(float(pace.work[position]))
            owed += float(pace.host[position]) + (costs.hook_s if adds else 0.0)
            yield self.env.timeout(owed)
            self.stream.not_before(self.env.now + float(pace.lag[position]))
            if adds:
                self.stream.work(self.setting.add_s(parameter))
            self._note_gradient(book, parameter, self.env.now)
            owed = 0.0
            if not synced:
                continue
            owed = costs.hook_s
            copy = costs.copies_s(1, self.setting.workload.parameters[parameter].size_bytes)
            self.stream.work(copy)
            copied += copy
            complete = queue.start(unused) if position == 0 and unused else []
            for number in complete + queue.ready(parameter):
                sends = self.sends(book, number)
                yield self.env.timeout(owed + sends.host_s + len(sends.messages) * costs.launch_s)
                owed = 0.0
                copied += sends.encode_s
                launches[number] = self._launch(book, number, sends)
        self.stream.work(pace.tail_work)
        yield self.env.timeout(owed + pace.tail_host)
        self.stream.not_before(self.env.now)
        self.stream.call(lambda: spent(copied))
        bitmap = None
        if launches and options.find_unused_parameters:
            yield self.env.timeout(costs.launch_s)
            bitmap = self.communicator.launch(
                BITMAP_BYTES * len(self.setting.workload.parameters), after=self.stream.mark()
            )
        missing = set(unused)
        for number, launch in launches.items():
            yield self.env.timeout(costs.finish_s)
            if bitmap is not None and missing.intersection(book.plan.buckets[number].parameters):
                # torch reads the reduced bitmap there, on the host, to leave what no rank used as it is.
                self._wait(book, bitmap)
                bitmap = None
                yield self.stream.mark()
            self._write_back(book, number, launch)
        if bitmap is not None:
            self._wait(book, bitmap)
        if "after_backward" in self.setting.workload.synchronises:
            yield self.stream.mark()

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
        def note() -> None:
            book.gradients.append(Gradient(parameter=parameter, hook_s=hook_s, ready_s=self.env.now))

        self.stream.call(note)

    def _launch(self, book: Book, number: int, sends: Sends) -> Reduction:
        ready = self.stream.mark()

        def note(_: simpy.Event) -> None:
            book.ready_s[number] = self.env.now

        ready.callbacks.append(note)
        if sends.encode_s > 0:
            self.stream.work(sends.encode_s)
            ready = self.stream.mark()
        self.stream.work(len(sends.messages) * self.setting.enter_s)
        return Reduction(self.communicator, sends, after=ready)

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
            yield self.env.timeout(pace.optimizer_host)
        self.stream.not_before(self.env.now)
        if "after_optimizer" in self.setting.workload.synchronises:
            yield self.stream.mark()
