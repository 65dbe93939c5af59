"""Which parameters a backward visited: the used map that ranks share, and the counts of a static graph."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from ddpexec.ddp import messages
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.groups.process_groups import Communicator, Work, wait


class UsedMap:
    """The parameters used since the last reduction: on this rank, and after `reduce` on any.

    Args:
        model: its parameters.
        communicator: of the ranks.
        send: sums a tensor over the ranks that train, given its place among the iteration's; None is `communicator`'s.

    Attributes:
        summed: by how many ranks each parameter was used in the last iteration; None before.
    """

    def __init__(
        self, model: ModelParameters, communicator: Communicator, send: Callable[[Tensor, int], Work] | None = None
    ) -> None:
        self._count = len(model.tensors)
        self._communicator, self._send = communicator, send or communicator.all_reduce
        self._device = communicator.device_for(model.tensors[0].device)
        self._used: set[int] = set()
        self._sum: tuple[Tensor, Work] | None = None
        self._counts: list[int] | None = None
        self.summed: Tensor | None = None

    def mark(self, index: int, parameter: Tensor) -> None:
        """Note that `parameter` was visited; it counts as used where it has a gradient."""
        if parameter.grad is not None:
            self._used.add(index)

    def reduce(self, position: int) -> None:
        """Start summing the map over ranks, as the `position`-th collective of the iteration."""
        # Pinned and new each time, as in torch's reducer: the copy waits in the stream behind backward, not the host.
        used = torch.zeros(self._count, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        used[list(self._used)] = 1
        used = used.to(self._device, non_blocking=True)
        self._sum = used, self._send(used, position)

    def untouched(self, indices: Collection[int]) -> set[int]:
        """Return those of `indices` that no rank used; asks the other ranks only where this one used not all."""
        if self._counts is None:
            if self._sum is None or self._used.issuperset(indices):
                return set()
            self._counts = self._read()
        counts = self._counts
        return {index for index in indices if counts[index] == 0}

    def finish(self, *, keep: bool) -> None:
        """End the iteration; `keep` what ranks used for all that follow, as a static graph does."""
        if self._sum is not None:
            wait(self._sum[1], self._communicator, "the allreduce of the used-parameter bitmap")
            self._counts = self._read() if keep else None
            self.summed = self._sum[0]
        elif not keep:
            self._counts = None
        self._used.clear()
        self._sum = None

    def _read(self) -> list[int]:
        assert self._sum is not None
        wait(self._sum[1], self._communicator, "the allreduce of the used-parameter bitmap")
        counts: list[int] = self._sum[0].tolist()
        return counts


class StaticGraph:
    """How often each gradient comes in a backward that is always the same."""

    def __init__(self, model: ModelParameters, rank: int) -> None:
        self._model, self._rank = model, rank
        self._counts = [0] * len(model.tensors)
        self._remaining: list[int] = []
        self.counting = True

    @property
    def waiting(self) -> bool:
        """Whether visits were counted, and the end of that backward has not come."""
        return self.counting and any(self._counts)

    def restart(self) -> None:
        """Expect the counted visits once more."""
        self._remaining = list(self._counts)

    def visit(self, index: int) -> bool:
        """Note a visit and return whether it was this backward's last; always False while counting.

        Raises:
            ExecutionError: more visits than in the first backward.
        """
        if self.counting:
            self._counts[index] += 1
            return False
        if self._remaining[index] == 0:
            raise messages.graph_changed(self._rank, index, self._model.names[index])
        self._remaining[index] -= 1
        return self._remaining[index] == 0

    def finish_counting(self) -> list[int]:
        """Take the counts as they are and return the parameters that were never visited."""
        self.counting = False
        return [index for index, count in enumerate(self._counts) if count == 0]
