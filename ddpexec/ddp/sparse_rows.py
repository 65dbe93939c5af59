"""Rows of sparse gradients over gloo, between training ranks and servers: how many, which, and their values.

Each server has an equal part of a parameter's rows. It answers a rank's rows with those that any rank's batch touched,
as it has updated them; others it cannot have moved, which an optimizer is asked to show before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor, nn

from ddpexec.ddp.parameter_servers import WHAT, PointToPoint, Server, ServerStream, bounds_of
from ddpexec.ddp.updates import MakeOptimizer
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Work
from ddpexec.groups.timeouts import wait_within

Rows = tuple[Tensor, Tensor]
"""Indices of rows, ascending, and the values of each."""


class RowStream(ServerStream):
    """A row lane sends the rows of sparse gradients to the servers, and receives rows of parameters from them."""

    def _push(self, tensor: Tensor, tag: int) -> list[Work]:
        """Begin to push the gradient of a whole parameter, which is sparse."""
        indices, values = self._take_rows(tensor)
        works: list[Work] = []
        bounds = itertools.pairwise(bounds_of(len(tensor), len(self.servers)))
        for server, (low, high) in zip(self.servers, bounds, strict=True):
            mine = (indices >= low) & (indices < high)
            rows = indices[mine], values[mine]
            self.sent_bytes += sum(part.nbytes for part in rows)
            works += send_rows(self.group, server, tag, rows)
        return works

    def _pull(self, tensor: Tensor, tag: int) -> Work:
        return Pull(self.group, self.servers, tag, tensor)

    def _take_rows(self, parameter: Tensor) -> Rows:
        """Return the rows of a gradient, divided by the training ranks; none where nothing used it."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return torch.empty(0, dtype=torch.int64), parameter.detach()[:0]
        gradient = gradient.coalesce()
        return gradient.indices()[0], gradient.values() / self.servers[0]


class Pull:
    """Rows of a parameter that servers have updated: received, and put in place, when it is awaited."""

    def __init__(self, group: PointToPoint, servers: Sequence[int], tag: int, parameter: Tensor) -> None:
        self._group, self._servers, self._tag, self._parameter = group, servers, tag, parameter
        self._done = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Receive the rows of all servers."""
        if not self._done:
            with torch.no_grad():
                for server in self._servers:
                    indices, values = receive_rows(self._group, server, self._tag, self._parameter, timeout)
                    self._parameter[indices] = values
            self._done = True
        return True


class RowServer(Server):
    """Keeps its part of each sparse parameter's rows, and updates those that are touched."""

    def _take_all(self, rate: float) -> None:
        """Sum the rows of all training ranks, update those, and send them to all."""
        touched: list[Tensor] = []
        for place, part in enumerate(self._parts):
            rows = [self._receive_rows(worker, place) for worker in self._workers]
            indices, values = (torch.cat(several) for several in zip(*rows, strict=True))
            gradient = torch.sparse_coo_tensor((indices - self._first[place])[None], values, part.shape).coalesce()
            self._update(place, gradient, rate)
            touched.append(gradient.indices()[0])
        self._settle_sent()
        for number, place in enumerate(self._order):
            rows_of = touched[place] + self._first[place], self._parts[place].detach()[touched[place]]
            each = (send_rows(self._pull, worker, number + 1, rows_of) for worker in self._workers)
            self._sent[place] = [work for works in each for work in works]

    def _receive_rows(self, worker: int, place: int) -> Rows:
        with name_lost_ranks(self._communicator, WHAT):
            return receive_rows(self._push, worker, place + 1, self._parts[place], self._communicator.timeout)


def send_rows(group: PointToPoint, to: int, tag: int, rows: Rows) -> list[Work]:
    """Begin to send rows: how many, and where there are any, which and what."""
    count = len(rows[0])
    works = [group.send([torch.tensor([count])], to, tag)]
    if count:
        works += [group.send([part.contiguous()], to, tag) for part in rows]
    return works


def receive_rows(group: PointToPoint, source: int, tag: int, like: Tensor, timeout: timedelta | None) -> Rows:
    """Receive the rows that `send_rows` sends, of a parameter `like` this."""
    count = torch.zeros(1, dtype=torch.int64)
    wait_within(group.recv([count], source, tag), timeout)
    indices = torch.empty(int(count), dtype=torch.int64)
    values = torch.empty(int(count), *like.shape[1:], dtype=like.dtype)
    if int(count):
        for part in (indices, values):
            wait_within(group.recv([part], source, tag), timeout)
    return indices, values


def check_optimizer(make: MakeOptimizer) -> None:
    """Refuse an optimizer that takes no sparse gradients, or moves rows that a gradient does not touch.

    Raises:
        OptionError: as momentum does.
    """
    place, remedy = "scheme 'parallax'", "use SGD without momentum, Adagrad or SparseAdam"
    parameter = nn.Parameter(torch.ones(2, 1, dtype=torch.float64))
    optimizer = make([parameter])
    kept = []
    for row in (0, 1):
        parameter.grad = torch.sparse_coo_tensor(torch.tensor([[row]]), torch.ones(1, 1, dtype=torch.float64), (2, 1))
        try:
            optimizer.step()
        except RuntimeError as error:
            raise OptionError(f"the optimizer takes no sparse gradient: {error}", place=place, remedy=remedy) from error
        kept.append(float(parameter.detach()[0]))
    if kept[0] != kept[1]:
        raise OptionError("the optimizer moves rows that no batch touched", place=place, remedy=remedy)
