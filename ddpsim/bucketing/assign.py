"""Which gradients share a bucket: torch's `_compute_bucket_assignment_by_size`, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.bucketing.key_order import closing_order

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as the policy sees it.

    Attributes:
        name: dotted name in the model.
        shape: dimensions in elements.
        dtype: torch's name without its prefix, e.g. `float32`; a key of `DTYPE_BYTES`.
        device: torch's device string; only equality matters.
        sparse: whether its *gradient* will be sparse, which gives it a bucket of its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    device: str = "cpu"
    sparse: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the parameter, and of its gradient."""
        return self.numel * DTYPE_BYTES[self.dtype]


def repeated_name(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the indices of the first two parameters of one name; None where each has its own."""
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if seen.setdefault(name, index) != index:
            return seen[name], index
    return None


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket is the gradients that are reduced together.

    Attributes:
        parameters: registration indices, in the order in which they lie in the bucket's flat buffer.
        size_bytes: sum of their gradients' bytes.
        limit_bytes: the limit in force when the bucket was filled; None where none applied (sparse, or unlimited).
    """

    parameters: tuple[int, ...]
    size_bytes: int
    limit_bytes: int | None


def assign_buckets(
    parameters: Sequence[Parameter], limits: Sequence[int | None], order: Sequence[int] | None = None
) -> list[Bucket]:
    """Group gradients into buckets exactly as torch does.

    A limit is soft: the gradient that reaches it is still inside. Each (dtype, device) fills its own open bucket and
    moves its own cursor through `limits`, of which the last repeats. Buckets that never reached their limit are
    closed at the end, in `closing_order`: as a rule the reverse of the first sight of their (dtype, device).

    Args:
        parameters: in registration order.
        limits: bytes, at least one; None is no limit.
        order: registration indices in the order to visit them, each once; None is registration order.

    Returns:
        Buckets in closing order where `order` is given (readiness order), else sorted by their smallest index.
    """
    closed: list[Bucket] = []
    open_buckets: dict[tuple[str, str], list[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    cursors: dict[tuple[str, str], int] = {}
    for index in range(len(parameters)) if order is None else order:
        parameter = parameters[index]
        if parameter.sparse:
            closed.append(Bucket((index,), parameter.size_bytes, None))
            continue
        key = (parameter.dtype, parameter.device)
        members = open_buckets.setdefault(key, [])
        members.append(index)
        sizes[key] = sizes.get(key, 0) + parameter.size_bytes
        cursor = cursors.setdefault(key, 0)
        limit = limits[cursor]
        if limit is not None and sizes[key] >= limit:
            closed.append(Bucket(tuple(members), sizes[key], limit))
            open_buckets[key], sizes[key] = [], 0
            cursors[key] = min(cursor + 1, len(limits) - 1)
    left = (key for key in closing_order(open_buckets) if open_buckets[key])
    closed += [Bucket(tuple(open_buckets[key]), sizes[key], limits[cursors[key]]) for key in left]
    if order is None:
        closed.sort(key=lambda bucket: min(bucket.parameters))
    return closed
