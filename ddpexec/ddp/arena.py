"""The memory that buckets lie in: one tensor of each dtype and device, of which a plan's buckets are slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

ALIGN_BYTES = 64
"""Slices begin at multiples of it, a cache line: vector loads and NCCL's copies are slower at odd places."""

Key = tuple[torch.dtype, torch.device]


class Arena:
    """Holds the gradients of some parameters in any buckets: another plan is other slices, and no allocation.

    Args:
        parameters: that may lie in buckets.
        dtype: of the buckets; None is the parameters' own.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        needed: dict[Key, int] = {}
        for parameter in parameters:
            key = self._key(parameter)
            needed[key] = needed.get(key, 0) + _aligned(parameter.numel(), key[0])
        self._whole = {key: torch.zeros(elements, dtype=key[0], device=key[1]) for key, elements in needed.items()}
        self._used: dict[Key, int] = {}

    def clear(self) -> None:
        """Let the slices that were taken be taken again."""
        self._used = {}

    def take(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return a slice for the gradients of `parameters`, which have one dtype and device; it holds anything."""
        key = self._key(parameters[0])
        begin = self._used.get(key, 0)
        size = sum(parameter.numel() for parameter in parameters)
        self._used[key] = begin + _aligned(size, key[0])
        return self._whole[key][begin : begin + size]

    def _key(self, parameter: nn.Parameter) -> Key:
        return self._dtype or parameter.dtype, parameter.device


def _aligned(elements: int, dtype: torch.dtype) -> int:
    step = ALIGN_BYTES // dtype.itemsize
    return -(-elements // step) * step
