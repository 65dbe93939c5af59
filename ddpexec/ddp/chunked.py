"""Chunks of a bucket's gradients that are summed, and what is left out of them until it is their turn."""

from __future__ import annotations

import torch
from torch import Tensor

from ddpexec.ddp.memory import FlatGradients
from ddpsim.schedules.chunks import Chunks


class ChunkedBucket:
    """What a rank has not sent of a bucket, the norms of its chunks, and the chunks that are summed.

    Where momentum is corrected it has the rank's velocity too, which is forgotten where it is sent.

    Args:
        flat: the bucket's gradients.
        chunks: how they are cut and how many are summed.
    """

    def __init__(self, flat: FlatGradients, chunks: Chunks) -> None:
        self._buffer = flat.buffer
        self._elements, self._momentum = chunks.elements, chunks.momentum
        count = -(-self._buffer.numel() // chunks.elements)
        self._left = self._buffer.new_zeros(count * chunks.elements)
        self._velocity = torch.zeros_like(self._left) if self._momentum else None
        self.norms = torch.zeros(count, dtype=torch.float32, device=self._buffer.device)
        self._sizes = torch.empty_like(self._rows)
        self._chosen = torch.zeros(0, dtype=torch.int64)
        self._values = self._buffer.new_zeros(chunks.chosen, chunks.elements)
        # All of a bucket are no more than the bucket, whatever its last chunk is padded to.
        self.values = self._values.view(-1)[: min(self._values.numel(), self._buffer.numel())]

    def measure(self) -> None:
        """Add the gradients, or the velocity, to what was left, and take the norm of each chunk."""
        elements = self._buffer.numel()
        if self._velocity is None:
            self._left[:elements].add_(self._buffer)
        else:
            self._velocity[:elements].mul_(self._momentum).add_(self._buffer)
            self._left.add_(self._velocity)
        torch.sum(torch.abs(self._rows, out=self._sizes), dim=1, out=self.norms)

    def choose(self) -> None:
        """Take the chunks of the largest norms, which are summed over the ranks now, out of what is left."""
        order = torch.argsort(self.norms, descending=True, stable=True)
        self._chosen = torch.sort(order[: len(self._values)]).values
        torch.index_select(self._rows, 0, self._chosen, out=self._values)
        self._rows[self._chosen] = 0
        if self._velocity is not None:
            self._velocity.view(-1, self._elements)[self._chosen] = 0

    def write_sums(self) -> None:
        """Let the bucket's gradients be the sums of the chosen chunks, and zero elsewhere."""
        whole = torch.zeros_like(self._left)
        whole.view(-1, self._elements)[self._chosen] = self._values
        self._buffer.copy_(whole[: self._buffer.numel()])

    @property
    def kept(self) -> list[Tensor]:
        """What this rank has not sent yet."""
        return [self._left] if self._velocity is None else [self._left, self._velocity]

    @property
    def _rows(self) -> Tensor:
        return self._left.view(-1, self._elements)
