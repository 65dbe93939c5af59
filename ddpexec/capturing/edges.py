"""Bytes that cross from each operator of forward to those after it: what a graph that began there would take over."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ddpexec.capturing.live import storage_key


@dataclass(slots=True)
class Edges:
    """Follows which tensors operators of forward make, and which operator is the last to read each.

    Args:
        element_bytes: of a tensor.
    """

    element_bytes: Callable[[Tensor], int]
    _alive: dict[int, list[int]] = field(default_factory=dict)
    """By storage: the operator that made it, the last that read it, its bytes."""
    _spans: list[list[int]] = field(default_factory=list)

    def note(self, number: int, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Note operator `number`, which reads and writes tensors."""
        for tensor in read:
            if (span := self._alive.get(storage_key(tensor) or -1)) is not None:
                span[1] = number
        for tensor in written:
            key = storage_key(tensor)
            if key is None or key in self._alive:
                continue
            span = [number, number, tensor.numel() * self.element_bytes(tensor)]
            self._alive[key] = span
            self._spans.append(span)
            weakref.finalize(tensor.untyped_storage(), self._alive.pop, key, None)

    def crossing(self, operators: int) -> list[float]:
        """Return for each operator the bytes made before it that it or later ones read."""
        changes = [0.0] * (operators + 1)
        for made, last, size in self._spans:
            if last > made:
                changes[made + 1] += size
                changes[last + 1] -= size
        crossing, now = [], 0.0
        for change in changes[:operators]:
            now += change
            crossing.append(now)
        return crossing
