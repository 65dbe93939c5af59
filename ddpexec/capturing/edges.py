"""Bytes that fusion keeps out of memory across each operator of forward: what a graph that began there would add.

A compiler makes one kernel of memory-bound operators and leaves the others to libraries. What a memory-bound operator
makes is never written where all that read it can be in its kernel: memory-bound ones too, none of which waits for a
library's kernel that the tensor went into. A graph that ends between them writes it, and the next one reads it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ddpexec.capturing.live import storage_key


@dataclass(slots=True)
class _Made:
    """A tensor: what made it and what reads it last, and whether all that does can be one kernel.

    Attributes:
        bit: of its own in sets of tensors.
        before: the set of tensors that it rests on, and itself.
        waits: those of them whose way here leads through a library's kernel.
    """

    by: int
    last: int
    size_bytes: int
    fused: bool
    bit: int
    before: int
    waits: int


@dataclass(slots=True)
class Edges:
    """Follows which tensors operators of forward make, and which operator is the last to read each.

    Args:
        element_bytes: of a tensor.
    """

    element_bytes: Callable[[Tensor], int]
    _alive: dict[int, _Made] = field(default_factory=dict)
    """By storage."""
    _all: list[_Made] = field(default_factory=list)

    def note(self, number: int, read: Sequence[Tensor], written: Sequence[Tensor], *, memory: bool = True) -> None:
        """Note operator `number`, which reads and writes tensors; where not `memory` it is a library's kernel."""
        known = [made for each in read if (made := self._alive.get(storage_key(each) or -1)) is not None]
        before, waits = 0, 0
        for made in known:
            before |= made.before
            waits |= made.waits
        for made in known:
            made.last = number
            made.fused &= memory and not waits & made.bit
        for tensor in written:
            key = storage_key(tensor)
            if key is None or key in self._alive:
                continue
            size_bytes, bit = tensor.numel() * self.element_bytes(tensor), 1 << len(self._all)
            made = _Made(number, number, size_bytes, memory, bit, before | bit, waits if memory else before)
            self._alive[key] = made
            self._all.append(made)
            weakref.finalize(tensor.untyped_storage(), self._alive.pop, key, None)

    def crossing(self, operators: int) -> list[float]:
        """Return for each operator the bytes made before it that it or later ones read in the kernel that made them."""
        changes = [0.0] * (operators + 1)
        for made in self._all:
            if made.fused and made.last > made.by:
                changes[made.by + 1] += made.size_bytes
                changes[made.last + 1] -= made.size_bytes
        crossing, now = [], 0.0
        for change in changes[:operators]:
            now += change
            crossing.append(now)
        return crossing
