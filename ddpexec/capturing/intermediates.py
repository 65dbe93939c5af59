"""Bytes that a compiler keeps out of memory: what memory-bound operators in a row write for each other."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ddpexec.capturing.live import fp32_bytes, storage_key


@dataclass(slots=True)
class Intermediates:
    """Follows operators in launch order and knows what the run of memory-bound ones in hand has written.

    A tensor of the run that the next of its operators reads is not read from memory, and at the first such read its
    write is left out too; one that none of them reads stays written.
    """

    _written: dict[int | None, bool] = field(default_factory=dict)
    """By storage, whether a read has been seen."""

    def end_run(self) -> None:
        """Begin a new run."""
        self._written.clear()

    def fused_bytes(self, kind: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> float:
        """Return what fusing the operator with those before it in its run leaves out; see `Operator.fused_bytes`."""
        if kind != "memory":
            self.end_run()
            return 0.0
        left_out = 0.0
        for tensor in {storage_key(each): each for each in read}.values():
            key = storage_key(tensor)
            if key is not None and key in self._written:
                size = float(tensor.numel() * fp32_bytes(tensor))
                left_out += size if self._written[key] else 2 * size
                self._written[key] = True
        for tensor in written:
            if (key := storage_key(tensor)) is not None:
                self._written[key] = False
                weakref.finalize(tensor.untyped_storage(), self._written.pop, key, None)
        return left_out
