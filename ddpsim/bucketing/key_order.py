"""In which order torch closes the buckets left open at the end: a libstdc++ `unordered_map`'s, by (dtype, device).

Mostly the reverse of the order in which the keys were first seen. Keys whose hashes fall on one slot stay together,
though, so from three keys on the order can differ. Sources: `c10::get_hash` and `std::hash<c10::Device>` in torch's
headers; libstdc++'s `_Hashtable`, which puts a node first on its slot, and first of all where the slot is empty.
"""

from __future__ import annotations

from collections.abc import Iterable

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
            count = next(slots)
            order = _inserted(order, count)
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


def _inserted(keys: Iterable[Key], slots: int) -> list[Key]:
    order: list[Key] = []
    for key in keys:
        _insert(order, key, slots)
    return order


def _insert(order: list[Key], key: Key, slots: int) -> None:
    slot = key_hash(key) % slots
    order.insert(next((i for i, other in enumerate(order) if key_hash(other) % slots == slot), 0), key)
