"""The buckets of the plan in force: where each gradient goes, and which buckets are written back by one call."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddpexec.ddp.flat import FlatBucket, SparseBucket, copy_all, gradient_of
from ddpexec.ddp.parameters import ModelParameters
from ddpsim.bucketing import BucketCaps, BucketPlan

AnyBucket = FlatBucket | SparseBucket

Eager = tuple[AnyBucket, int] | None
"""The place in a bucket of a gradient that may be copied in as it comes; None where it is copied with others."""

TOGETHER_BYTES = 256 << 10
"""Neighbours of at most this size in sum are written back together, when the last of them has been reduced."""

ALIGN_BYTES = 64
"""Slices begin at multiples of it, a cache line: vector loads and NCCL's copies are slower at odd places."""

Key = tuple[torch.dtype, torch.device]


class Buckets:
    """Holds the buckets of the plan in force, and makes those of the next.

    Args:
        model: its parameters, in registration order.
        options: what buckets hold, and whether gradients become views of them.
        rank: that errors name.
    """

    def __init__(self, model: ModelParameters, options: ReducerOptions, rank: int) -> None:
        self._model, self._options = model, options
        self._called = functools.partial(model.describe, rank=rank)
        self.all: list[AnyBucket] = []
        self.eager: list[Eager] = []
        self.runs: list[BucketRun] = []
        self._divisor = 1
        dense = [tensor for tensor, known in zip(model.tensors, model.policy, strict=True) if not known.sparse]
        self._arena = Arena(dense, options.bucket_dtype)
        self._memory: list[Tensor | None] = []

    def install(self, plan: BucketPlan) -> None:
        """Make the buckets of `plan` in the memory of the former ones, whose gradients move where they lie now."""
        if self.all and self._as_view:
            for tensor in self._model.tensors:
                if tensor.grad is not None:
                    tensor.grad = tensor.grad.clone()
        self._arena.clear()
        tensors, policy = self._model.tensors, self._model.policy
        self._memory = [
            None if policy[group[0]].sparse else self._arena.take([tensors[index] for index in group])
            for group in plan.groups()
        ]
        self._make(zip(plan.groups(), self._memory, strict=True))

    def remap(self, groups: Sequence[Sequence[int]]) -> None:
        """Let gradients lie elsewhere in the memory of the plan's buckets, until the next `remap` or `install`.

        Args:
            groups: registration indices by bucket of the plan, as `ddpsim.bucketing.drop.remap_gradients` returns them;
                where a group is empty there is no bucket.
        """
        self._make(pair for pair in zip(groups, self._memory, strict=True) if pair[0])

    def divide_by(self, divisor: int) -> None:
        """Divide gradients that are copied in from now on."""
        self._divisor = divisor
        for bucket in self.all:
            bucket.divisor = divisor

    @property
    def _as_view(self) -> bool:
        return self._options.gradient_as_bucket_view and self._options.bucket_dtype is None

    def _make(self, groups: Iterable[tuple[Sequence[int], Tensor | None]]) -> None:
        model, options = self._model, self._options
        self.eager = [None] * len(model.tensors)
        self.all.clear()
        for number, (group, memory) in enumerate(groups):
            bucket: AnyBucket
            if memory is None:
                bucket = SparseBucket(number, group[0], model.tensors, self._called)
            else:
                bucket = FlatBucket(
                    number, group, model.tensors, as_view=self._as_view, batched=options.batched_grad_copy,
                    dtype=options.bucket_dtype, called=self._called, memory=memory,
                )  # fmt: skip
            bucket.divisor = self._divisor
            self.all.append(bucket)
        for bucket in self.all:
            for place, index in enumerate(bucket.indices):
                self.eager[index] = (bucket, place) if bucket.eager[place] else None
        self.runs = [BucketRun(run) for run in runs_of(self.all)]


class BucketRun:
    """Neighbouring buckets that are written back together, all of whose parameters have gradients."""

    def __init__(self, buckets: Sequence[AnyBucket]) -> None:
        self.buckets = buckets
        flat = [bucket for bucket in buckets if isinstance(bucket, FlatBucket)]
        self._flat, self._as_view = len(flat) == len(buckets), any(bucket.as_view for bucket in flat)
        self._parameters = [parameter for bucket in flat for parameter in bucket.parameters]
        self._views = [view for bucket in flat for view in bucket.views]

    def write_back(self) -> None:
        """Give the parameters the reduced gradients that lie in the buffers."""
        if not (self._flat and self._write_back()):
            for bucket in self.buckets:
                bucket.write_back(())

    def _write_back(self) -> bool:
        grads = list(map(gradient_of, self._parameters))
        return all(map(operator.is_, grads, self._views)) if self._as_view else copy_all(grads, self._views)


def runs_of(buckets: Sequence[AnyBucket]) -> Iterator[Sequence[AnyBucket]]:
    """Yield stretches of neighbours of at most `TOGETHER_BYTES`; a larger bucket stands alone."""
    run: list[AnyBucket] = []
    size = 0
    for bucket in buckets:
        if run and size + bucket.size_bytes > TOGETHER_BYTES:
            yield run
            run, size = [], 0
        run.append(bucket)
        size += bucket.size_bytes
    if run:
        yield run


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
            needed[key] = needed.get(key, 0) + _align(parameter.numel(), key[0])
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
        self._used[key] = begin + _align(size, key[0])
        return self._whole[key][begin : begin + size]

    def _key(self, parameter: nn.Parameter) -> Key:
        return self._dtype or parameter.dtype, parameter.device


def _align(elements: int, dtype: torch.dtype) -> int:
    step = ALIGN_BYTES // dtype.itemsize
    return -(-elements // step) * step


@dataclass(slots=True, kw_only=True)
class ReducerOptions:
    """These are the constructor's options that the reducer needs.

    `bucket_dtype`: what buckets hold; None is their parameters' type. The gradients that are kept have that type, so
    that they can be views of a bucket only where it is None. `remap_dropped`: where layers are left out, what is left
    moves up into the memory of the first buckets.
    """

    caps: BucketCaps
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    bucket_dtype: torch.dtype | None = None
    skip_all_reduce_unused_params: bool = False
    batched_grad_copy: bool = False
    remap_dropped: bool = False

    @property
    def searching(self) -> bool:
        """Whether the graph is searched for unused parameters in each forward."""
        return self.find_unused_parameters and not self.static_graph
