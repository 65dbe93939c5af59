"""Which gradients share a bucket: torch's `_compute_bucket_assignment_by_size`, in plain Python.

Buckets left open at the end are closed in the order of a libstdc++ `unordered_map` by (dtype, device): mostly the
reverse of that in which the keys were first seen. Keys whose hashes fall on one slot stay together,
though, so from three keys on the order can differ. Sources: `c10::get_hash` and `std::hash<c10::Device>` in torch's
headers; libstdc++'s `_Hashtable`, which puts a node first on its slot, and first of all where the slot is empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from ddpsim.common.documents.fields import STATED, WRITTEN, Bounds, Checked, Index, NotInFile, Text
from ddpsim.common.errors import InputError, shorten

Key = tuple[str, str]

_SLOTS = (13, 29, 59, 127, 257, 541, 1109, 2357)
"""Slots of a libstdc++ table as it grows: primes of its `__prime_list`, each over twice the last."""
_SCALAR_TYPE = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
    "complex32": 8, "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15, "float8_e5m2": 23,
    "float8_e4m3fn": 24,
}  # fmt: skip
_DEVICE_TYPE = {"cpu": 0, "cuda": 1, "hip": 6, "xla": 9, "xpu": 12, "mps": 13, "meta": 14, "hpu": 15, "mtia": 19}
_NO_INDEX = 0xFF
"""What a device without an index hashes with: -1 as a byte."""
_MASK = (1 << 64) - 1
"""Hashes are `size_t`."""


def closing_order(seen: Iterable[Key]) -> list[Key]:
    """Return keys (dtype, device) in the order in which torch closes their open buckets.

    Args:
        seen: the keys in the order of their first sight, each once.
    """
    slots = iter(_SLOTS)
    count = next(slots)
    order: list[Key] = []
    for key in seen:
        if len(order) == count:
            count, before, order = next(slots), order, []
            for each in before:
                _insert(order, each, count)
        _insert(order, key, count)
    return order


def key_hash(key: Key) -> int:
    """Return torch's hash of a key; of an unknown dtype or device, some hash that depends on its name alone."""
    dtype, device = key
    kind, _, index = device.partition(":")
    number = int(index) if index.isdecimal() else _NO_INDEX
    seed = _DEVICE_TYPE.get(kind, 20 + len(kind)) << 16 | number
    value = _SCALAR_TYPE.get(dtype, 50 + len(dtype))
    return (seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2))) & _MASK


def _insert(order: list[Key], key: Key, slots: int) -> None:
    slot = key_hash(key) % slots
    order.insert(next((i for i, other in enumerate(order) if key_hash(other) % slots == slot), 0), key)


DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


_MOST_ELEMENTS = 1 << 63
"""No tensor has as many elements: they are counted in signed 64 bits."""


def _check_shape(value: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(value) >= _MOST_ELEMENTS:
        raise InputError(f"{shorten(str([*value]), 60)} is not the shape of a tensor: too many elements")
    return value


def _check_dtype(value: str) -> str:
    if value not in DTYPE_BYTES:
        raise InputError(f"{shorten(repr(value), 60)} is not one of {', '.join(DTYPE_BYTES)}")
    return value


Shape = Annotated[tuple[Index, ...], Checked(_check_shape)]
Dtype = Annotated[str, Checked(_check_dtype)]


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

    name: Text
    shape: Shape
    dtype: Annotated[Dtype, STATED] = "float32"
    device: Annotated[Text, STATED] = "cpu"
    sparse: Annotated[bool, WRITTEN] = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the parameter, and of its gradient."""
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class FrozenParameter(Parameter):
    """A parameter that takes no gradient (`requires_grad` is False), and so no bucket.

    Attributes:
        before: how many parameters that take one are registered before it.
    """

    sparse: Annotated[bool, NotInFile] = False
    before: Annotated[Index, STATED] = 0


def in_registration_order(parameters: Sequence[Parameter]) -> list[tuple[int, Parameter]]:
    """Return parameters, of which frozen ones stand behind the others, as they are registered, each with its index."""

    def place(pair: tuple[int, Parameter]) -> float:
        return pair[1].before - 0.5 if isinstance(pair[1], FrozenParameter) else pair[0]

    return sorted(enumerate(parameters), key=place)


def repeated_name(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the indices of the first two parameters of one name; None where each has its own."""
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if seen.setdefault(name, index) != index:
            return seen[name], index
    return None


@dataclass(frozen=True, slots=True)
class Bucket:
    """The gradients that are reduced together.

    Attributes:
        parameters: registration indices, in the order in which they lie in the bucket's flat buffer.
        size_bytes: sum of their gradients' bytes; 0 in a plan file that leaves it to the model.
        limit_bytes: the limit in force when the bucket was filled; None where none applied (sparse, or unlimited).
    """

    parameters: Annotated[tuple[int, ...], Bounds(min_length=1)]
    size_bytes: Annotated[int, WRITTEN] = 0
    limit_bytes: Annotated[Index | None, WRITTEN] = None


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
