"""Compression schemes by name, as `--compression` takes them."""

from __future__ import annotations

import math

from ddpsim.compression.schemes import (
    AdaptivePrecision,
    CompressionScheme,
    HalfPrecision,
    OneBit,
    PowerSGD,
    TopK,
    Uncompressed,
)
from ddpsim.errors import InputError, UnknownNameError
from ddpsim.strict import whole_number


def scheme(text: str) -> CompressionScheme:
    """Return the scheme that `text` names: `none`, `fp16`, `bf16`, `powersgd:4`, `onebit`, `topk:0.01` or `adaptive`.

    Raises:
        UnknownNameError: no such scheme.
        InputError: a parameter that is missing, unknown or out of range.
    """
    name, _, value = text.partition(":")
    if name in ("powersgd", "topk"):
        return PowerSGD(_rank(value)) if name == "powersgd" else TopK(_density(value))
    if name == "adaptive":
        return AdaptivePrecision(_bits(value)) if value else AdaptivePrecision()
    if name not in ("none", "fp16", "bf16", "onebit"):
        known = ("none", "fp16", "bf16", "powersgd", "onebit", "topk", "adaptive")
        raise UnknownNameError.among("compression", name, known)
    if value:
        raise InputError(f"compression {name!r} takes no parameter, got {value!r}", remedy=f"write {name}")
    return Uncompressed() if name == "none" else OneBit() if name == "onebit" else HalfPrecision(name)


def _rank(value: str) -> int:
    if not (rank := whole_number(value)):
        raise InputError(f"rank {value!r} is not a whole number of at least 1", remedy="write e.g. powersgd:4")
    return rank


def _bits(value: str) -> int:
    if value not in ("1", "8", "16", "32"):
        raise InputError(f"{value!r} are not 1, 8, 16 or 32 bits", remedy="write e.g. adaptive:8")
    return int(value)


def _density(value: str) -> float:
    try:
        density = float(value)
    except ValueError:
        density = math.nan
    if not 0 < density <= 1:
        raise InputError(f"density {value!r} is not a share above 0 and at most 1", remedy="write e.g. topk:0.01")
    return density
