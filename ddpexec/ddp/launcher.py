"""The one launcher: what a rank sends, whether DDP's buckets or any schedule's messages, and the wait for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddpexec.ddp.comm_hooks import HookWork
from ddpexec.groups.lost import raise_lost
from ddpexec.groups.process_groups import Communicator, FinishedWork, Work
from ddpexec.groups.timeouts import wait_within
from ddpexec.timing.observe import BucketNote, Observer
from ddpsim.common.operation import Operation

Send = Callable[[Sequence[Work]], Work]
"""From the works that must have ended before to the work of what is sent."""


@dataclass(slots=True)
class Sending:
    """What the launch of one message does, and its end.

    Attributes:
        what: errors call it.
        indices: registration indices of the parameters that it is of.
        size_bytes: that it carries.
        send: hands it to a backend.
        operation: that moves it.
        after: numbers of the messages that must have ended before it begins.
        fill: puts into its memory what is sent; None where it lies there.
        drain: takes what came out of it, once it has ended; None where it stays there.
        device: of a rank that has several GPUs, the one that it lies on; None is the only one.
        others_code: whether `send` is code of others, such as a hook: of its errors only what a backend signs is one.
    """

    what: str
    indices: tuple[int, ...]
    size_bytes: int
    send: Send
    operation: Operation = Operation.ALLREDUCE
    after: Collection[int] = ()
    fill: Callable[[], None] | None = None
    drain: Callable[[], None] | None = None
    others_code: bool = False
    device: torch.device | None = None


class Launcher:
    """Launches messages by their numbers, and waits for them.

    Args:
        communicator: of the ranks.

    Attributes:
        observer: takes the moments of each message; None takes none.
        sendings: by number, what is sent.
        flying: by number, the work of each message that was launched and not waited for, and what is noted of it.
        launched: numbers, in the order in which this iteration launched them.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.observer: Observer | None = None
        self.sendings: list[Sending] = []
        self.flying: dict[int, tuple[Work, BucketNote | None]] = {}
        self.launched: list[int] = []

    def begin(self) -> None:
        """Begin an iteration, which counts its messages anew."""
        self.launched = []

    def launch(self, numbers: Iterable[int]) -> None:
        """Begin messages, in order, each once the one of the same number before it has ended."""
        for number in numbers:
            device = self.sendings[number].device
            with nullcontext() if device is None else torch.cuda.device(device):
                self._launch(number)

    def _launch(self, number: int) -> None:
        flying, observer, sending = self.flying, self.observer, self.sendings[number]
        # Each number has one buffer. Where its message of the iteration before is still under way, that one ends first.
        if number in flying:
            self._land(number)
        if sending.fill is not None:
            sending.fill()
        # A message of `after` that is not flying has been waited for already.
        before = [flying[other][0] for other in sending.after if other in flying] if sending.after else ()
        begin = observer.now() if observer is not None else None
        try:
            work = sending.send(before)
        except RuntimeError as error:  # it may wait for others, as a hook whose messages come one after another
            raise_lost(self._communicator, sending.what, error, others_code=sending.others_code)
        if observer is None:
            flying[number] = work, None
        else:
            noted = work.future if isinstance(work, HookWork) else work
            note = observer.note_launch(number, sending.indices, sending.size_bytes, begin, noted, sending.operation)
            flying[number] = work, note
        self.launched.append(number)

    def wait(self, numbers: Iterable[int]) -> None:
        """Wait for those of the messages that are on their way."""
        for number in numbers:
            if number in self.flying:
                self._land(number)

    def wait_all(self) -> None:
        """Wait for all messages that were launched."""
        self.wait(list(self.flying))

    def _land(self, number: int) -> None:
        (work, note), sending, observer = self.flying.pop(number), self.sendings[number], self.observer
        begin = observer.now() if observer is not None else None
        timeout = self._communicator.timeout
        try:
            # Of torch's own works the backend keeps the time; a call less for each message counts in steps of many.
            if timeout is not None and isinstance(work, dist.Work):
                work.wait(timeout)
            else:
                wait_within(work, timeout)
        except RuntimeError as error:
            raise_lost(self._communicator, sending.what, error, others_code=sending.others_code)
        if sending.drain is not None:
            sending.drain()
        if observer is not None and note is not None:
            observer.note_message_wait(note, begin, observer.now())


def send_nothing(_: Sequence[Work]) -> Work:
    """Send nothing, as `comm="noop"` has it."""
    return FinishedWork()
