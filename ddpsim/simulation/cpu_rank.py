"""A rank on a CPU: host and device are one, so hooks, copies and launches delay the computation itself."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from ddpsim.simulation.processor import Process
from ddpsim.simulation.rank import BITMAP_BYTES, Book, Rank
from ddpsim.simulation.reduction import Reduction
from ddpsim.simulation.rendezvous import Launch
from ddpsim.trace.records import Gradient


@dataclass(slots=True)
class CpuRank(Rank):
    """Runs every step on one host thread; collectives run beside it on the backend's threads."""

    def run(self) -> Process:
        """Run all iterations."""
        for index in range(self.setting.iterations):
            book = Book(index, self.setting.plan(index), self.env.now)
            yield from self._forward(book)
            launches = yield from self._backward(book)
            yield from self._finish(book, launches)
            begin = self.begin_phase()
            if self.setting.optimises(index):
                yield from self.compute(self.setting.pace(index).optimizer_host)
            book.optimizer_s = self.env.now - begin
            self.record(book)

    def begin_phase(self) -> float:
        """Begin forward, backward or the optimizer; return the time."""
        return self.env.now

    def compute(self, seconds: float) -> Process:
        """Compute for `seconds`, on the thread that hooks and launches use too."""
        yield from self.processor.work(seconds)

    def _forward(self, book: Book) -> Process:
        setting = self.setting
        if setting.broadcasts(book.index):
            begin = self.env.now
            yield self.env.timeout(len(setting.workload.buffers) * setting.costs.buffer_s)
            launches = []
            for size in setting.broadcast_bytes():
                yield self.env.timeout(setting.costs.launch_s)
                launches.append(self.communicator.launch(size, operation="broadcast"))
            for launch in launches:
                yield launch.done
            book.buffer_broadcast_s = self.env.now - begin
        begin = self.begin_phase()
        yield from self.compute(setting.pace(book.index).forward_host)
        book.forward_s = self.env.now - begin
        if (cost := setting.forward_host_s()) > 0:
            yield self.env.timeout(cost)

    def _backward(self, book: Book) -> Generator[simpy.Event, Any, dict[int, Reduction]]:
        pace, costs = self.setting.pace(book.index), self.setting.costs
        synced, adds = self.setting.synced(book.index), self.setting.adds(book.index)
        queue, unused = self.queue_for(book, pace)
        launches: dict[int, Reduction] = {}
        self.begin_phase()
        for position, parameter in enumerate(pace.order):
            begin = self.env.now
            yield from self.compute(float(pace.host[position]))
            if adds:
                yield from self.processor.serve(self.setting.add_s(parameter))
            book.backward_compute_s += self.env.now - begin
            book.gradients.append(Gradient(parameter=parameter, hook_s=self.env.now, ready_s=self.env.now))
            if not synced:
                continue
            hook = costs.hook_s + self.setting.copy_s(parameter)
            yield from self.processor.serve(hook)
            complete = queue.start(unused) if position == 0 and unused else []
            for number in complete + queue.ready(parameter):
                book.ready_s[number] = self.env.now
                sends = self.sends(book, number)
                yield from self.processor.serve(sends.encode_s + costs.launch_s)
                launches[number] = Reduction(self.communicator, sends)
        begin = self.env.now
        yield from self.compute(pace.tail_host)
        book.backward_compute_s += self.env.now - begin
        return launches

    def _finish(self, book: Book, launches: dict[int, Reduction]) -> Process:
        if not launches:
            return
        costs, options = self.setting.costs, self.setting.options
        bitmap = None
        if options.find_unused_parameters:
            yield self.env.timeout(costs.launch_s)
            bitmap = self.communicator.launch(BITMAP_BYTES * len(self.setting.workload.parameters))
        for number, launch in launches.items():
            yield from self._wait(book, launch)
            written_s = costs.finish_s + self.setting.write_back_s(book.plan.buckets[number])
            yield from self.processor.serve(written_s, lasting=True)
            book.buckets.append(self.bucket_times(book, number, launch, self.env.now))
        if bitmap is not None:
            yield from self._wait(book, bitmap)

    def _wait(self, book: Book, launch: Launch | Reduction) -> Process:
        if not launch.done.processed:
            begin = self.env.now
            yield launch.done
            book.exposed_comm_s += self.env.now - begin
