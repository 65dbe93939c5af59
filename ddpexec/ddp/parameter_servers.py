"""Parameter servers over gloo: what a training rank sends and receives, and what a server does with it.

A server has a rank of its own, or is a thread of one that trains. Each message is cut into one part for each server,
which goes there and comes back by sends and receives. Before the first push of an iteration a rank tells each server
that it goes on, and by which learning rate; at the end of training, that it does not. A server sends parameters in the
order of the pulls: an updated part waits until all parts before it are updated.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.ddp.updates import MakeOptimizer
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import Communicator, Work, timeout_of, wait
from ddpexec.groups.threads import in_thread
from ddpexec.groups.timeouts import wait_within
from ddpsim.common.operation import Operation
from ddpsim.schedules.servers import count_sendable

CONTROL_TAG = 0
"""Tag of what says whether a rank goes on; messages have their number plus one."""
GOES_ON, ENDS = 1.0, 0.0
WHAT = "a message between server and rank"
"""What errors call the message that failed."""


class ServerStream:
    """A server lane sends a training rank's pushes to the servers, and receives its pulls from them.

    Args:
        groups: of all ranks, one for each stream.
        hosts: the ranks that serve.
    """

    def __init__(self, group: PointToPoint, hosts: Sequence[int], messages: int) -> None:
        self.group, self.servers, self._messages = group, hosts, messages
        self._timeout = timeout_of(group) if isinstance(group, dist.ProcessGroup) else group.timeout
        self.rate = 0.0
        self.launched = 0
        self.sent_bytes = 0
        self._last: dict[int, Work] = {}
        self._control: list[tuple[Tensor, list[Work]]] = []

    def launch(self, operation: Operation, tensor: Tensor, after: Sequence[Work], delay_s: float = 0.0) -> Work:
        """Begin to push or pull `tensor`; what comes before it on the servers is for them to see to."""
        number = self.launched % self._messages
        self.launched += 1
        pushes = operation is Operation.REDUCE
        if pushes and number == 0:
            self.tell(GOES_ON)
        # [Note: works are kept for an iteration] A thread that drops a work of gloo yields until gloo's own thread has
        # let go of the buffer. A rank that replays layers under real-time priority yields to nobody: two of them held
        # both cores of a lab for 0.95 s, until the kernel stopped them. An iteration later gloo has long let go.
        self._last[number] = JoinedWorks(self._push(tensor, number + 1)) if pushes else self._pull(tensor, number + 1)
        return self._last[number]

    def _push(self, tensor: Tensor, tag: int) -> list[Work]:
        parts = list(zip(parts_of(tensor, len(self.servers)), self.servers, strict=True))
        self.sent_bytes += sum(part.nbytes for part, server in parts if server != self.group.rank())
        return [self.group.send([part], server, tag) for part, server in parts]

    def _pull(self, tensor: Tensor, tag: int) -> Work:
        parts = zip(parts_of(tensor, len(self.servers)), self.servers, strict=True)
        return JoinedWorks([self.group.recv([part], server, tag) for part, server in parts])

    def tell(self, flag: float) -> None:
        """Send the servers whether another iteration comes, after the last such message has arrived."""
        # The tensor of a send must live until it has been sent: the last one is held here.
        for _, works in self._control:
            wait_within(JoinedWorks(works), self._timeout)
        control = torch.tensor([flag, self.rate], dtype=torch.float64)
        self._control = [(control, [self.group.send([control], server, CONTROL_TAG) for server in self.servers])]
        if flag == ENDS:
            wait_within(JoinedWorks(self._control[0][1]), self._timeout)
            self._control = []


class JoinedWorks:
    """Several works as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all."""
        for work in self._works:
            wait_within(work, timeout)
        return True


def bounds_of(rows: int, servers: int) -> list[int]:
    """Return where the rows of each server begin, and the end of the last's: as equal as whole rows allow.

    >>> bounds_of(5, 2)
    [0, 2, 5]
    """
    return [rows * number // servers for number in range(servers + 1)]


def parts_of(tensor: Tensor, servers: int) -> list[Tensor]:
    """Return the part of each server: consecutive elements of a flat tensor, rows of another."""
    return [tensor[low:high] for low, high in itertools.pairwise(bounds_of(len(tensor), servers))]


@dataclass(slots=True)
class ServerStatistics:
    """What a server has done.

    Attributes:
        updates: gradients of a bucket that it has updated by: of one rank each where ranks go alone, else of all.
        staleness: by how many updates of its bucket by others a gradient came after its rank's pull, how many did.
    """

    updates: int = 0
    staleness: dict[int, int] = field(default_factory=dict)

    def document(self) -> dict[str, float]:
        """Return the updates, and the mean and the most of the staleness of the gradients that came after a pull."""
        total = sum(self.staleness.values())
        mean = sum(late * times for late, times in self.staleness.items()) / total if total else 0.0
        return {"updates": self.updates, "staleness_mean": mean, "staleness_most": max(self.staleness, default=0)}


class Server:
    """Keeps its part of each bucket's parameters, and updates it by an optimizer of its own.

    Args:
        communicator: of training ranks and servers.
        groups: of both streams, push and pull.
        wholes: all parameters of each push, flat; of sparse gradients the parameter.
        order: of the pulls, as places among the pushes.
        hosts: the ranks that serve, this one among them.
        trainers: the ranks that train, the first ones; where this one does, its part is a copy of the module's.
        make_optimizer: makes an optimizer of a flat part.
    """

    def __init__(
        self,
        communicator: Communicator,
        groups: Sequence[PointToPoint],
        wholes: Sequence[Tensor],
        order: Sequence[int],
        hosts: Sequence[int],
        trainers: int,
        make_optimizer: MakeOptimizer,
    ) -> None:
        self._communicator, self._order = communicator, order
        self._push, self._pull = groups
        self._sendable = count_sendable(order)
        self._workers, number, servers = range(trainers), hosts.index(communicator.rank), len(hosts)
        self._first = [bounds_of(len(whole), servers)[number] for whole in wholes]
        self._of_module = [parts_of(whole.detach(), servers)[number] for whole in wholes]
        # Forward and backward of this rank use the module's while the server updates.
        apart = communicator.rank in self._workers
        self._parts = [nn.Parameter(part.clone() if apart else part) for part in self._of_module]
        self._optimizers = [make_optimizer([part]) for part in self._parts]
        self._locks = [threading.Lock() for _ in self._parts]
        self._versions = [0] * len(self._parts)
        self._coming = [[torch.empty_like(part) for _ in self._workers] for part in self._parts]
        self._sent: list[list[Work]] = [[] for _ in self._parts]
        self.served = ServerStatistics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of its optimizers, and how many updates they made; its parameters are the module's."""
        return {"optimizers": [each.state_dict() for each in self._optimizers], "updates": self.served.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned, and the module's parameters."""
        for part, own in zip(self._parts, self._of_module, strict=True):
            part.data.copy_(own)
        for optimizer, optimizer_state in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_state)
        self.served.updates = state["updates"]

    def serve_all(self) -> ServerStatistics:
        """Update by the mean of all ranks' gradients, iteration by iteration, until all have ended.

        Raises:
            ExecutionError: a rank that ended before another.
            LostRankError: one that is gone.
        """
        while True:
            # Every rank's flag before any gradient: a rank that has ended pushes nothing, and a receive from it would
            # hang.
            controls = [self._receive_control(worker) for worker in self._workers]
            going = [worker for worker, (flag, _) in zip(self._workers, controls, strict=True) if flag == GOES_ON]
            if not going:
                self._settle_sent()
                return self.served
            if len(going) < len(self._workers):
                ended = sorted(set(self._workers).difference(going))
                what = f"rank {ended[0]} has ended and rank {going[0]} goes on"
                raise ExecutionError(what, remedy="let all ranks train as many iterations, or use `async`")
            self._take_all(controls[0][1])

    def _take_all(self, rate: float) -> None:
        """Update by the sums of all training ranks' gradients, and send what is updated to all."""
        # All receives of the iteration are posted at once: ranks push when they are ready, and gloo then has a buffer
        # for each.
        receives = [
            [self._push.recv([into], worker, place + 1) for worker, into in zip(self._workers, buffers, strict=True)]
            for place, buffers in enumerate(self._coming)
        ]
        sent = 0
        for place, buffers in enumerate(self._coming):
            # The update below writes the part which sends of the iteration before may still read: they end first.
            self._settle([*receives[place], *self._sent[place]])
            gradient = buffers[0]
            for other in buffers[1:]:
                gradient.add_(other)
            self._update(place, gradient, rate)
            for number in range(sent, self._sendable[place]):
                self._send(number)
            sent = self._sendable[place]

    def _send(self, number: int) -> None:
        """Send the part that a pull asks for to all training ranks."""
        place = self._order[number]
        self._sent[place] = [self._pull.send([self._parts[place].data], w, number + 1) for w in self._workers]

    def _settle_sent(self) -> None:
        self._settle(work for works in self._sent for work in works)
        self._sent = [[] for _ in self._parts]  # gloo's waits only once

    def serve_each(self) -> ServerStatistics:
        """Update by each rank's gradients as they come, and answer it alone, until all have ended.

        Raises:
            LostRankError: a rank that is gone: it ends all, as under DDP.
        """
        threads = [in_thread(partial(self._serve_one, w), f"ddpexec server of {w}") for w in self._workers]
        for ended in as_completed(threads):
            ended.result()
        return self.served

    def _serve_one(self, worker: int) -> None:
        coming = [torch.empty_like(part) for part in self._parts]
        seen = [0] * len(self._parts)
        pulled = False
        sends: list[Work] = []
        while True:
            flag, rate = self._receive_control(worker)
            # By now the rank has begun its next iteration, so it has received what was sent: this waits for nothing, it
            # lets gloo let go of the copies.
            self._settle(sends)
            if flag != GOES_ON:
                return
            receives = [self._push.recv([into], worker, place + 1) for place, into in enumerate(coming)]
            sends, snapshots = [], []
            for place, gradient in enumerate(coming):
                self._settle([receives[place]])
                # One lock a part, and never two at once: the threads of two ranks cannot wait for each other.
                with self._locks[place]:
                    if pulled:
                        late = self._versions[place] - seen[place]
                        self.served.staleness[late] = self.served.staleness.get(late, 0) + 1
                    self._update(place, gradient, rate)
                for number in range(len(sends), self._sendable[place]):
                    pulled_place = self._order[number]
                    with self._locks[pulled_place]:
                        seen[pulled_place] = self._versions[pulled_place]
                        # A copy, since another rank's thread may update the part while this is being sent; the list
                        # keeps it alive.
                        snapshots.append(self._parts[pulled_place].detach().clone())
                    sends.append(self._pull.send([snapshots[-1]], worker, number + 1))
            pulled = True

    def _update(self, place: int, gradient: Tensor, rate: float) -> None:
        optimizer = self._optimizers[place]
        for group in getattr(optimizer, "param_groups", ()):
            if "lr" in group:
                group["lr"] = rate
        self._parts[place].grad = gradient
        optimizer.step()
        self._versions[place] += 1
        self.served.updates += 1

    def _receive_control(self, worker: int) -> tuple[float, float]:
        control = torch.zeros(2, dtype=torch.float64)
        self._settle([self._push.recv([control], worker, CONTROL_TAG)])
        flag, rate = control.tolist()
        return flag, rate

    def _settle(self, works: Iterable[Work]) -> None:
        for work in works:
            wait(work, self._communicator, WHAT)


class LoopbackWork(Future[None]):
    """A message of a rank to itself, or its receipt; it waits for the other of the two."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has been copied.

        Raises:
            BaseException: what made the other end fail.
            DistBackendError: it was not within `timeout`.
        """
        if timeout is not None and not futures.wait([self], timeout.total_seconds()).done:
            raise dist.DistBackendError(f"timed out: a rank's message to itself took {timeout.total_seconds():g} s")
        self.result()
        return True


class LoopbackGroup:
    """Sends and receives of a gloo group, and those of a rank to itself within its process.

    Args:
        group: of all ranks.

    Attributes:
        timeout: of the group's.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._own, self.timeout = group, group.rank(), timeout_of(group)
        self._lock = threading.Lock()
        self._sends: defaultdict[int, deque[LoopbackWork]] = defaultdict(deque)
        self._receives: defaultdict[int, deque[LoopbackWork]] = defaultdict(deque)
        self._error: BaseException | None = None

    def rank(self) -> int:
        """Return this rank."""
        return self._own

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> Work:
        """Begin to send the one tensor of a list to a rank; it may be changed when the work has ended."""
        if to != self._own:
            work: Work = self._group.send(list(tensors), to, tag)
            return work
        return self._meet(LoopbackWork(tensors[0]), self._sends[tag], self._receives[tag], sends=True)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Work:
        """Begin to receive what a rank sends by `tag`, into the one tensor of a list."""
        if source != self._own:
            work: Work = self._group.recv(list(tensors), source, tag)
            return work
        return self._meet(LoopbackWork(tensors[0]), self._receives[tag], self._sends[tag], sends=False)

    def fail(self, error: BaseException) -> None:
        """Have all that wait for this rank's own messages, and whoever will, raise `error`."""
        with self._lock:
            self._error = error
            for waiting in [*self._sends.values(), *self._receives.values()]:
                while waiting:
                    waiting.popleft().set_exception(error)

    def _meet(
        self, mine: LoopbackWork, own: deque[LoopbackWork], others: deque[LoopbackWork], *, sends: bool
    ) -> LoopbackWork:
        with self._lock:
            if self._error is not None or not others:
                if self._error is None:
                    own.append(mine)
                else:
                    mine.set_exception(self._error)
                return mine
            other = others.popleft()
        # Outside the lock: the two ends have found each other, and nobody else knows of either.
        sent, received = (mine, other) if sends else (other, mine)
        received.tensor.copy_(sent.tensor)
        sent.set_result(None)
        received.set_result(None)
        return mine


PointToPoint = dist.ProcessGroup | LoopbackGroup
"""What sends to a rank, and receives from it, by a tag."""
