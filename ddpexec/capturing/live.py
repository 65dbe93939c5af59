"""Bytes of the tensors that a step keeps alive, at their peak."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from ddpsim.workload.operators import Activations

FP32_BYTES = 4
"""Bytes of an element in single precision."""


def storage_key(tensor: Tensor) -> int | None:
    """Return what tensors that share memory have in common; None for sparse ones, which have no storage."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None


def fp32_bytes(tensor: Tensor) -> int:
    """Return the bytes of one element, 16-bit floating-point ones in fp32."""
    return max(FP32_BYTES, tensor.element_size()) if tensor.is_floating_point() else tensor.element_size()


def own_bytes(tensor: Tensor) -> int:
    """Return the bytes of one element as it is."""
    return tensor.element_size()


class LiveBytes:
    """Counts storages from when an operator makes them until the last tensor on them is gone, each once.

    A step on fake tensors holds what a real one holds, as autograd keeps the same tensors for backward. 16-bit
    floating-point tensors count as in fp32, unless they are to count as they are.

    Args:
        as_is: whether they are.
    """

    def __init__(self, *, as_is: bool = False) -> None:
        self._as_is = as_is
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], int, bool, bool]] = {}
        self._bytes = [0, 0]
        self._fixed = 0
        self.peak = Activations(0, 0)

    def count_made(
        self, outputs: Iterable[Tensor], inputs: Iterable[Tensor], *, fp32: bool, fixed: bool = False
    ) -> None:
        """Count what is in `outputs` and not in `inputs`.

        Args:
            fp32: whether 16-bit precisions leave it as wide as it is.
            fixed: whether it is of the same size whatever the batch.
        """
        before = {storage_key(tensor) for tensor in inputs}
        for tensor in outputs:
            key = storage_key(tensor)
            if key is None or key in before or key in self._alive:
                continue
            storage = tensor.untyped_storage()
            size = storage.nbytes() * (1 if self._as_is else fp32_bytes(tensor) // tensor.element_size())
            narrow = tensor.is_floating_point() and not fp32 and not self._as_is
            self._alive[key] = weakref.ref(storage, lambda _, key=key: self.drop(key)), size, narrow, fixed  # type: ignore[misc]
            self._bytes[narrow] += size
            self._fixed += size if fixed else 0
        if sum(self._bytes) > self.peak.narrow_bytes + self.peak.wide_bytes:
            wide, narrow_bytes = self._bytes
            self.peak = Activations(narrow_bytes, wide, fixed_bytes=self._fixed)

    def drop(self, key: int | None) -> None:
        """Count a storage no longer: it is gone, or a parameter's gradient."""
        if key is not None and (size := self._alive.pop(key, None)) is not None:
            self._bytes[size[2]] -= size[1]
            self._fixed -= size[1] if size[3] else 0

    def close(self) -> None:
        """Count nothing any more."""
        self._alive.clear()
