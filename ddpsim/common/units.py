"""Units at the edges: text with a unit in, one base inside (bytes, seconds, bytes per second), text out.

`bucket_cap_mb` and nccl-tests' `-b`/`-e` keep their field's meaning: MiB, and binary K, M, G.
"""

from __future__ import annotations

import math
import re

from ddpsim.common.errors import UnitError

MIB = 1 << 20
GIB = 1 << 30
"""Bytes of one MiB, and of one GiB."""

_BINARY = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DECIMAL_BYTES = {"B": 1, "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE: dict[str, float] = {**_BINARY, **_DECIMAL_BYTES}
_TIME: dict[str, float] = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION: dict[str, float] = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BANDWIDTH: dict[str, float] = {
    **{f"{unit}/s": factor for unit, factor in _SIZE.items()},
    **{
        f"{prefix}b/s": factor / 8
        for prefix, factor in {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.items()
    },
    **{f"{prefix}bps": factor / 8 for prefix, factor in {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.items()},
    **{f"{prefix}bit": factor / 8 for prefix, factor in {"k": 1e3, "m": 1e6, "g": 1e9}.items()},
    "GbE": 1e9 / 8,  # IEEE 802.3's names of Ethernet: 25GbE carries 25 Gb/s
}
_RANGES = {"time": (1e-15, 1e7), "bandwidth": (1.0, 1e18), "size": (1.0, 1e18), "peak": (1.0, 1e21)}
"""Smallest above zero and largest in the base unit: results of what lies beyond are no numbers any more."""
_BASE = {"time": "s", "bandwidth": "B/s", "size": "B", "peak": "FLOP/s"}

_ARITHMETIC: dict[str, float] = {
    f"{prefix}{unit}": factor
    for prefix, factor in {"G": 1e9, "T": 1e12, "P": 1e15}.items()
    for unit in ("FLOP/s", "FLOPS", "")
}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d].*?)?\s*", re.ASCII)
_NCCL_SUFFIX = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bandwidth(text: object, place: str | None = None) -> float:
    """Return bytes per second for `50GB/s`, `400Gb/s`, `25GbE` or `1gbit`; refuse zero, negatives, bare numbers."""
    return _parse(text, _BANDWIDTH, "bandwidth", "50GB/s, 400Gb/s or 1gbit", place, positive=True)


def parse_time(text: object, place: str | None = None) -> float:
    """Return seconds for `2us`, `0.2ms` or `1s`; zero is allowed, negatives and bare numbers are not."""
    return _parse(text, _TIME, "time", "2us, 0.2ms or 1s", place, positive=False)


def parse_duration(text: object, place: str | None = None) -> float:
    """Return seconds for `90min`, `6h` or `2.5d`; refuse zero, negatives and bare numbers."""
    return _parse(text, _DURATION, "time", "90min, 6h or 2.5d", place, positive=True)


def parse_size(text: object, place: str | None = None) -> float:
    """Return bytes for `96GiB` or `80GB`; refuse zero, negatives and bare numbers."""
    return _parse(text, _SIZE, "size", "96GiB or 80GB", place, positive=True)


def parse_arithmetic(text: object, place: str | None = None) -> float:
    """Return floating-point operations per second for `126TFLOP/s`, or short `126T`; refuse zero and bare numbers."""
    return _parse(text, _ARITHMETIC, "peak", "126TFLOP/s or 126T", place, positive=True)


def parse_nccl_size(text: str, place: str | None = None) -> int:
    """Return bytes for a size as nccl-tests takes it: `8`, `4K`, `128M`, `1G`, binary.

    >>> parse_nccl_size("128M")
    134217728
    """
    match = re.fullmatch(r"\s*(\d{1,18})\s*([BKMG]?)\s*", text, re.IGNORECASE | re.ASCII)
    if not match or int(match[1]) == 0:
        raise UnitError(
            f"size {text!r} is not one nccl-tests would take", place=place, remedy="write e.g. 8, 4K, 128M or 1G"
        )
    return int(match[1]) * _NCCL_SUFFIX[match[2].upper()]


def float32_size(text: str, place: str) -> int:
    """Return the bytes of a size as nccl-tests takes it, a whole number of float32.

    Raises:
        UnitError: no such size, or one that is no number of float32.
    """
    size_bytes = parse_nccl_size(text, place)
    if size_bytes % 4:
        raise UnitError(f"{size_bytes} B is no number of float32", place=place, remedy="give a multiple of 4")
    return size_bytes


def nccl_sizes(begin_bytes: int, end_bytes: int, factor: int) -> list[int]:
    """Return sizes from `begin_bytes` to at most `end_bytes`, each `factor` times the one before, as nccl-tests does.

    Raises:
        UnitError: an empty range, or a factor below 2; nccl-tests' option is named.

    >>> nccl_sizes(8, 128, 4)
    [8, 32, 128]
    """
    if factor < 2:
        raise UnitError(f"factor {factor} does not lead from size to size", place="-f", remedy="give 2 or more")
    if begin_bytes > end_bytes:
        raise UnitError(f"{begin_bytes} B is more than {end_bytes} B", place="-b", remedy="give -b at most -e")
    found = [begin_bytes]
    while found[-1] * factor <= end_bytes:
        found.append(found[-1] * factor)
    return found


def mib_to_bytes(cap_mb: float, place: str | None = None) -> int:
    """Return the bytes of a `bucket_cap_mb` (MiB, as torch counts it), truncated as torch does."""
    if not math.isfinite(cap_mb * MIB) or cap_mb < 0:
        raise UnitError(
            f"bucket cap {cap_mb!r} is not a size in MiB", place=place, remedy="give a number >= 0, e.g. 25"
        )
    return int(cap_mb * MIB)


def format_exact(number: float) -> str:
    """Return a bare number as people type it, to its last digit: `25` for 25.0, `25.0390625`."""
    return str(int(number)) if number == int(number) else repr(number)


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural but for one: `1 NIC`, `2 NICs`, `2 batches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"


def format_size(size_bytes: int) -> str:
    """Return a size for people, exact in bytes: `25 MiB (26,214,400 B)`."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= _BINARY[unit]:
            return f"{size_bytes / _BINARY[unit]:.4g} {unit} ({size_bytes:,} B)"
    return f"{size_bytes:,} B"


def format_time(seconds: float) -> str:
    """Return a time for people with three to four significant digits: `103.2 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.3g} ns"


def format_duration(seconds: float) -> str:
    """Return a length of time for people, from minutes on in their own unit: `2.5 h`, `3.2 d`."""
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= (2 if unit == "d" else 1) * factor:
            return f"{seconds / factor:.3g} {unit}"
    return format_time(seconds)


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth that `parse_bandwidth` reads back: `12.5GB/s`."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:.12g}{unit}"
    return f"{bytes_per_s:.12g}B/s"


def _parse(
    text: object, units: dict[str, float], kind: str, example: str, place: str | None, *, positive: bool
) -> float:
    remedy = f"write it with its unit, e.g. {example}"
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] is None:
        raise UnitError(f"{kind} {text!r} has no unit", place=place, remedy=remedy)
    if match[2] not in units:
        raise UnitError(f"{kind} {text!r} has the unknown unit {match[2]!r}", place=place, remedy=remedy)
    value = float(match[1]) * units[match[2]]
    least, most = _RANGES[kind]
    if value < 0 or (positive and value == 0):
        raise UnitError(
            f"{kind} {text!r} is out of range",
            place=place,
            remedy=f"give a {kind} {'above' if positive else 'of at least'} zero",
        )
    if not (value == 0 or least <= value <= most):
        remedy = f"give a {kind} from {least:g} to {most:g} {_BASE[kind]}"
        raise UnitError(f"{kind} {text!r} is out of range", place=place, remedy=remedy)
    return value
