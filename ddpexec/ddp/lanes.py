"""Communication streams: each carries its messages in the order in which they are launched, the same on every rank.

gloo has no good reduce-scatter and all-gather: it carries a reduce-scatter out as an allreduce of a copy, and sends and
receives of two ranks share one connection of a process group. For it `RingNeighbours` makes both of sends and receives,
which threads carry out. These rings move (p-1)/p of a message and sum in the order of gloo's allreduce: around the ring
from each rank to the one before, the part of rank r beginning at rank r - 1 and ending at rank r.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, FinishedWork, Work, timeout_of
from ddpexec.groups.timeouts import wait_within
from ddpsim.common.operation import Operation

IN_FLIGHT = 2
"""Messages that a lane of rings keeps in flight, as gloo's own groups do: while one is summed another is sent."""


class CommunicationStream:
    """Process groups of their own, so that nothing else on the ranks' other groups can come in between.

    Operations that torch's gloo has as such, and all of NCCL's, are handed to a group at once. Where a message of the
    lane is a ring's, threads carry its messages out, by turns.

    Args:
        groups: of all ranks, alike; messages take turns where there are several, or for rings two for each thread.
        rings: whether reduce-scatters and all-gathers are rings of sends.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup], *, rings: bool) -> None:
        self.group, self.groups, self._timeout = groups[0], groups, timeout_of(groups[0])
        self._threads = [_Thread(groups[k : k + 2]) for k in range(0, len(groups), 2)] if rings else []
        self._handed = 0

    def launch(self, operation: Operation, tensor: Tensor, after: Sequence[Work], delay_s: float = 0.0) -> Work:
        """Begin `operation` on `tensor`, a whole message, as soon as `after` has ended; return its work.

        Args:
            delay_s: how long after this it begins at the earliest, where threads carry messages out.
        """
        if self.group.size() == 1:
            return FinishedWork()
        # Every rank hands the same messages in by the same order, so a message has the same turn, and group, on all of
        # them. Were it otherwise, ranks would wait for each other in different groups for ever.
        turn = self._handed
        self._handed += 1
        if self._threads:
            thread = self._threads[turn % len(self._threads)]
            return thread.launch(operation, tensor, after, time.monotonic() + delay_s)
        for work in after:
            wait_within(work, self._timeout)
        return begin(self.groups[turn % len(self.groups)], operation, tensor)

    def close(self) -> None:
        """End the threads once they have carried out what was handed in."""
        for thread in self._threads:
            thread.close()

    def destroy(self) -> None:
        """Destroy the groups, once the threads have ended."""
        self.close()
        for thread in self._threads:
            thread.join()
        for group in self.groups:
            dist.destroy_process_group(group)
        # gloo's threads and sockets go with the last name of a group.
        del self.group, self.groups, self._threads


class CommunicationStreams:
    """All communication streams of a run, each constructed once and shared by the schedules that follow each other."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._lanes: dict[tuple[str, bool, int | None], CommunicationStream] = {}

    def of(self, stream: str, *, rings: bool, ranks: int | None = None) -> CommunicationStream:
        """Return the lane of a stream, the same each time; every rank asks for the same lanes in the same order.

        Args:
            rings: whether reduce-scatters and all-gathers are to go on it.
            ranks: so many consecutive ranks have one together; None is all.
        """
        rings = rings and self._communicator.backend == "gloo"
        key = stream, rings, ranks
        if key not in self._lanes:
            groups_in_turn = self._communicator.groups
            count = 2 * IN_FLIGHT if rings else len(groups_in_turn)
            # Making a group is a collective of its ranks: the lanes must be made in the same order on all of them.
            with name_lost_ranks(self._communicator, "the construction of process groups"):
                groups = [_make_group_like(groups_in_turn[turn % len(groups_in_turn)], ranks) for turn in range(count)]
            self._lanes[key] = CommunicationStream(groups, rings=rings)
        return self._lanes[key]

    def keep(self, used: Collection[CommunicationStream]) -> None:
        """Destroy all lanes but those `used`, which nothing is on; every rank does, at the same point."""
        for key in [key for key, lane in self._lanes.items() if lane not in used]:
            self._lanes.pop(key).destroy()

    def close(self) -> None:
        """End what the lanes have running; their groups stay until torch's default group is destroyed."""
        for lane in self._lanes.values():
            lane.close()

    def destroy(self) -> None:
        """End what the lanes have running, and destroy their groups; every rank does."""
        for lane in self._lanes.values():
            lane.destroy()
        self._lanes.clear()


class _Thread:
    """Carries out what it is given, one after the other; after a failure nothing more."""

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._group, self.ring, self._timeout = groups[0], RingNeighbours(groups), timeout_of(groups[0])
        self._jobs: queue.SimpleQueue[tuple[torch.futures.Future[Any], Callable[[], None]] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="ddpexec lane", daemon=True)
        self._thread.start()

    def launch(self, operation: Operation, tensor: Tensor, after: Sequence[Work], not_before_s: float) -> Work:
        work: torch.futures.Future[Any] = torch.futures.Future()

        def carry_out() -> None:
            for before in after:
                wait_within(before, self._timeout)
            if (left_s := not_before_s - time.monotonic()) > 0:
                time.sleep(left_s)
            if operation is Operation.REDUCE_SCATTER:
                self.ring.reduce_scatter(tensor)
            elif operation is Operation.ALL_GATHER:
                self.ring.all_gather(tensor)
            else:
                wait_within(begin(self._group, operation, tensor), self._timeout)

        self._jobs.put((work, carry_out))
        return cast("Work", work)  # waited for by `wait_within`, which knows futures

    def close(self) -> None:
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, carry_out = job
            try:
                # After a failure no later message may be sent: its tags would meet those of the message that failed on
                # other ranks. Each later future gets the same error, so that nobody waits for one that never ends.
                if self._failure is not None:
                    raise self._failure
                carry_out()
                future.set_result(None)
            except Exception as error:
                self._failure = error
                future.set_exception(error)


def begin(group: dist.ProcessGroup, operation: Operation, tensor: Tensor) -> Work:
    """Begin a collective of torch's in place on `tensor`, the whole message of it."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if operation is Operation.ALLREDUCE:
        return cast("Work", group.allreduce([tensor]))
    part = tensor.view(group.size(), -1)[group.rank()]
    if operation is Operation.REDUCE_SCATTER:
        return cast("Work", group._reduce_scatter_base(part, tensor, dist.ReduceScatterOptions()))
    if operation is Operation.ALL_GATHER:
        options: Any = AllgatherOptions()
        return cast("Work", group._allgather_base(tensor, part, options))
    raise AssertionError(operation)


def _make_group_like(group: dist.ProcessGroup, size: int | None = None) -> dist.ProcessGroup:
    """Return a new process group of the ranks of `group`, with its timeout; of `size` consecutive ones with this one.

    Of several that divide the ranks, each is made by its own ranks alone.
    """
    ranks = dist.get_process_group_ranks(group)
    if size is not None:
        first = group.rank() // size * size
        ranks = ranks[first : first + size]
    alone = len(ranks) < dist.get_world_size()
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    backend: Any = group._get_backend(device)
    new_group = dist.new_group(ranks, timeout=backend.options._timeout, use_local_synchronization=alone)
    assert isinstance(new_group, dist.ProcessGroup)
    return new_group


SEGMENT_BYTES = 1 << 20
"""Most bytes of one send, so that a rank passes on the beginning of a part while its end still comes; gloo's too."""
PER_RANK = 2
"""Segments of a rank's part, at least; gloo's too."""


def part_elements(elements: int, item_bytes: int, ranks: int) -> int:
    """Return the elements of each rank's part of a message, the last parts padded: as gloo's allreduce divides it.

    Source: gloo `allreduce.cc`, `ring`: segments of at most 1 MiB, twice as many as ranks at least, a multiple of the
    ranks, all of one size in whole elements.
    """
    if elements == 0:
        return 0
    segments = max(math.ceil(elements * item_bytes / SEGMENT_BYTES), PER_RANK * ranks)
    per_rank = math.ceil(segments / ranks)
    return per_rank * math.ceil(elements / (per_rank * ranks))


class RingNeighbours:
    """A ring sends to the rank before and receives from the rank after, by tags that no two messages share.

    Args:
        groups: process groups of the same ranks; two of two ranks, whose messages to each other then go at once, else
            one.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._groups = groups
        self.rank, self.ranks, self._timeout = groups[0].rank(), groups[0].size(), timeout_of(groups[0])
        self._tag = 0

    def reduce_scatter(self, whole: Tensor) -> None:
        """Sum `whole`, one part a rank, over the ranks; this rank's part of it then holds its sum, the others nothing
        to be relied on."""
        parts = whole.view(self.ranks, -1)
        steps = self.ranks - 1
        # In step s the part of rank r + s + 2 comes, to be summed and passed on, the last one being this rank's own.
        coming = [parts[(self.rank + 2 + step) % self.ranks] for step in range(steps)]
        came = [part.new_empty(part.shape) for part in coming]
        self._send_around(parts[(self.rank + 1) % self.ranks], coming, came)

    def all_gather(self, whole: Tensor) -> None:
        """Send this rank's part of `whole` to all, and put theirs in their places."""
        parts = whole.view(self.ranks, -1)
        coming = [parts[(self.rank + 1 + step) % self.ranks] for step in range(self.ranks - 1)]
        self._send_around(parts[self.rank], coming, None)

    def _send_around(self, first: Tensor, coming: list[Tensor], came: list[Tensor] | None) -> None:
        """Send `first`, then what comes in each step but the last, added to `coming` where it came elsewhere."""
        segments = list(_cut(first.numel(), first.element_size()))
        tags = {(step, k): self._next_tag() for step in range(len(coming)) for k in range(len(segments))}
        into = coming if came is None else came
        # All receives are posted before the first send, so that what a neighbour sends early has its buffer at hand.
        receives = {
            (step, k): self._receive(into[step][begin:end], tags[step, k])
            for step in range(len(coming))
            for k, (begin, end) in enumerate(segments)
        }
        sends = [self._send(first[begin:end], tags[0, k]) for k, (begin, end) in enumerate(segments)]
        # A part goes on segment by segment: while its end still comes, its beginning is summed and sent to the next
        # rank.
        for step, part in enumerate(coming):
            for k, (begin, end) in enumerate(segments):
                wait_within(receives[step, k], self._timeout)
                if came is not None:
                    part[begin:end].add_(came[step][begin:end])
                if step + 1 < len(coming):
                    sends.append(self._send(part[begin:end], tags[step + 1, k]))
        for send in sends:
            wait_within(send, self._timeout)

    def _send(self, tensor: Tensor, tag: int) -> dist.Work:
        group = self._groups[0 if self.ranks > 2 else self.rank]
        return group.send([tensor], (self.rank - 1) % self.ranks, tag)

    def _receive(self, tensor: Tensor, tag: int) -> dist.Work:
        source = (self.rank + 1) % self.ranks
        group = self._groups[0 if self.ranks > 2 else source]
        return group.recv([tensor], source, tag)

    def _next_tag(self) -> int:
        # Counted alike on every rank, for all carry the same messages out in the same order.
        self._tag = (self._tag + 1) % (1 << 30)
        return self._tag


def _cut(elements: int, item_bytes: int) -> list[tuple[int, int]]:
    count = max(PER_RANK, math.ceil(elements * item_bytes / SEGMENT_BYTES)) if elements else 0
    step = math.ceil(elements / count) if count else 1
    return [(begin, min(begin + step, elements)) for begin in range(0, elements, step)]
