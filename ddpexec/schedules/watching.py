"""torch's `fully_shard` watched at work: each of its collectives noted as the message of the schedule that it is."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ddpexec.ddp.compiling import disable_compile
from ddpexec.groups.process_groups import timeout_of
from ddpexec.groups.waiting import wait_within
from ddpexec.timing.observe import Observer
from ddpsim.operations import Operation
from ddpsim.schedules.schedule import Schedule

Unit = tuple[int, ...]


def make_stamp_hook(observer: Observer, index: int) -> Callable[[Tensor], None]:
    """Return a hook that stamps the gradient of parameter `index`."""

    @disable_compile
    def stamp(_: Tensor) -> None:
        begin = observer.now()
        observer.hooks[index] = begin, observer.now()

    return stamp


class CollectiveWatch:
    """Notes each collective, numbered in the order of their launches.

    On a CPU torch's `fully_shard` launches a collective and waits for it in one call. On a GPU its end is an event on
    the stream that torch launched it on; computation's wait for that is not told.
    """

    def __init__(self, observer: Observer | None) -> None:
        self.observer = observer

    @disable_compile
    def around(self, op: Operation, unit: Unit, tensor: Tensor, call: Callable[[], Any]) -> Any:
        """Make a collective of all of `tensor` by `call`, and note it."""
        observer = self.observer
        if observer is None or observer.note is None:
            return call()
        begin = observer.now()
        work = call()
        number = self.number(op, unit, len(observer.note.buckets))
        if work is not None:
            observer.note_launch(number, unit, tensor.nbytes, begin, work, op)
            return work
        end = observer.now()
        note = observer.note_collective(number, unit, tensor.nbytes, begin, end, op)
        if note is not None and tensor.device.type == "cpu":
            observer.note_message_wait(note, begin, end)
        return work

    def number(self, op: Operation, unit: Unit, before: int) -> int:
        """Return the number of a collective that `before` others were launched before."""
        return before


class ScheduleWatch(CollectiveWatch):
    """Notes each collective as the message of the schedule that it is: the n-th of its operation on its unit."""

    def __init__(self, schedule: Schedule, observer: Observer | None) -> None:
        super().__init__(observer)
        self._numbers: dict[tuple[Operation, Unit], list[int]] = {}
        for number, message in enumerate(schedule):
            self._numbers.setdefault((message.op, message.parameters), []).append(number)
        self._seen: Counter[tuple[Operation, Unit]] = Counter()
        self._more = len(schedule.messages)

    def begin(self) -> None:
        """Begin an iteration."""
        self._seen.clear()

    def number(self, op: Operation, unit: Unit, before: int) -> int:
        """Return the message's place in the schedule; one that is not in it comes behind all."""
        key = op, unit
        numbers, place = self._numbers.get(key, []), self._seen[key]
        self._seen[key] += 1
        return numbers[place] if place < len(numbers) else self._more


class WatchedCollective:
    """torch's all-gather or reduce-scatter of one unit, noted.

    Args:
        inner: what torch, or the user, has for it, which is called.
        watch: that notes it.
        op: which of the two.
        unit: whose parameters it carries.
    """

    def __init__(self, inner: Any, watch: CollectiveWatch, op: Operation, unit: Unit) -> None:
        self._inner, self._watch, self._op, self._unit = inner, watch, op, unit
        self.allocate = inner.allocate
        self._whole = "output_tensor" if op is Operation.ALL_GATHER else "input_tensor"

    @disable_compile
    def __call__(self, **arguments: Any) -> Any:
        """Gather or reduce, as torch does; torch names the arguments."""
        call = functools.partial(self._inner, **arguments)
        return self._watch.around(self._op, self._unit, arguments[self._whole], call)


class WatchedReplicas(dist.ProcessGroup):
    """Passes the allreduces of one unit between replicas on to `group`, waits for each as its caller does, notes it."""

    def __init__(self, group: dist.ProcessGroup, watch: CollectiveWatch, unit: Unit) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._inner, self._watch, self._unit = group, watch, unit

    @disable_compile
    def allreduce(self, tensors: Any, options: Any = None) -> Any:  # type: ignore[override]
        """Pass an allreduce on."""
        works = []

        def call() -> None:
            works.append(self._inner.allreduce(tensors, options))
            wait_within(works[0], timeout_of(self._inner))

        self._watch.around(Operation.ALLREDUCE, self._unit, tensors[0], call)
        return works[0]

    @disable_compile
    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return str(dist.get_backend(self._inner))
