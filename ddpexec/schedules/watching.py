"""torch's `fully_shard` watched at work: each of its collectives noted as the message of the schedule that it is."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ddpexec.timing.observe import Observer
from ddpsim.operations import Operation
from ddpsim.schedules.schedule import Schedule

Unit = tuple[int, ...]


def make_stamp_hook(observer: Observer, index: int) -> Callable[[Tensor], None]:
    """Return a hook that stamps the gradient of parameter `index`."""

    def stamp(_: Tensor) -> None:
        begin = observer.now()
        observer.hooks[index] = begin, observer.now()

    return stamp


class CollectiveWatch:
    """Notes each collective as the message of the schedule that it is: the n-th of its operation on its unit.

    On a CPU torch's `fully_shard` launches a collective and waits for it in one call.
    """

    def __init__(self, schedule: Schedule, observer: Observer | None) -> None:
        self.observer = observer
        self._numbers: dict[tuple[Operation, Unit], list[int]] = {}
        for number, message in enumerate(schedule):
            self._numbers.setdefault((message.op, message.parameters), []).append(number)
        self._seen: Counter[tuple[Operation, Unit]] = Counter()
        self._more = len(schedule.messages)

    def begin(self) -> None:
        """Begin an iteration."""
        self._seen.clear()

    def around(self, op: Operation, unit: Unit, tensor: Tensor, call: Callable[[], Any]) -> Any:
        """Make a collective of all of `tensor` by `call`, and note it."""
        observer = self.observer
        if observer is None or observer.note is None:
            return call()
        begin = observer.now()
        work = call()
        note = observer.note_launch(self._number(op, unit), unit, tensor.nbytes, begin, work, op)
        if work is None and note is not None:
            observer.note_message_wait(note, begin)
        return work

    def _number(self, op: Operation, unit: Unit) -> int:
        """Return the message's place in the schedule; one that is not in it comes behind all."""
        key = op, unit
        numbers, place = self._numbers.get(key, []), self._seen[key]
        self._seen[key] += 1
        return numbers[place] if place < len(numbers) else self._more


class WatchedCollective:
    """torch's all-gather or reduce-scatter of one unit, noted.

    Args:
        inner: torch's own, which is called.
        watch: that notes it.
        op: which of the two.
        unit: whose parameters it carries.
    """

    def __init__(self, inner: Any, watch: CollectiveWatch, op: Operation, unit: Unit) -> None:
        self._inner, self._watch, self._op, self._unit = inner, watch, op, unit
        self.allocate = inner.allocate
        self._whole = "output_tensor" if op is Operation.ALL_GATHER else "input_tensor"

    def __call__(self, **arguments: Any) -> Any:
        """Gather or reduce, as torch does; torch names the arguments."""
        call = functools.partial(self._inner, **arguments)
        return self._watch.around(self._op, self._unit, arguments[self._whole], call)


class WatchedReplicas(dist.ProcessGroup):
    """Passes the allreduces of one unit between replicas on to `group`, waits for each as its caller does, notes it."""

    def __init__(self, group: dist.ProcessGroup, watch: CollectiveWatch, unit: Unit) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._inner, self._watch, self._unit = group, watch, unit

    def allreduce(self, tensors: Any, options: Any = None) -> Any:  # type: ignore[override]
        """Pass an allreduce on."""
        works = []

        def call() -> None:
            works.append(self._inner.allreduce(tensors, options))
            works[0].wait()

        self._watch.around(Operation.ALLREDUCE, self._unit, tensors[0], call)
        return works[0]

    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return str(dist.get_backend(self._inner))
