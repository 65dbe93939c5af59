"""Measure what compressing costs on a device, as the constants of `ddpsim.compression.Roofline`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ddpexec.compression.codecs import Codec, FlatLayout, OneBitCodec, TopKCodec
from ddpsim import compression
from ddpsim.bucketing import Parameter
from ddpsim.errors import InputError


def measure(
    name: str, device: str = "cpu", elements: Sequence[int] = (1 << 12, 1 << 18, 1 << 22), repeats: int = 5
) -> compression.Roofline:
    """Fit launch time and memory bandwidth to encoding and decoding buckets of one parameter.

    Args:
        name: `fp16`, `bf16`, `onebit` or `topk:DENSITY`.
        device: where to measure.
        elements: float32 elements of the buckets; at least two sizes.
        repeats: runs a size; the median counts.

    Returns:
        Constants for this scheme on this device, by least squares of relative error over (kernels, bytes moved).

    Raises:
        InputError: a scheme whose cost is not measured here, or fewer than two sizes.
    """
    scheme = compression.scheme(name)
    if len(set(elements)) < 2:
        raise InputError(f"{list(elements)} is fewer than two sizes", remedy="give a small and a large one")
    where = torch.device(device)
    works, times = [], []
    for count in elements:
        flat, layout = torch.randn(count, device=where), FlatLayout([count], where)
        works.append(compression.work(scheme, [Parameter("", (count,))], 1))
        times.append(_median_s(_action(scheme, flat, layout), where, repeats))
    return fit(works, times)


def _action(scheme: compression.CompressionScheme, flat: Tensor, layout: FlatLayout) -> Callable[[], object]:
    if isinstance(scheme, compression.HalfPrecision):
        dtype = torch.float16 if scheme.name == "fp16" else torch.bfloat16
        return lambda: flat.copy_(flat.to(dtype).div_(1))
    if isinstance(scheme, compression.OneBit):
        return partial(_round_trip, OneBitCodec(), flat, layout)
    if isinstance(scheme, compression.TopK):
        return partial(_round_trip, TopKCodec(scheme.density), flat, layout)
    raise InputError(f"the cost of {scheme.name!r} is not measured", remedy="use fp16, bf16, onebit or topk:DENSITY")


def _round_trip(codec: Codec, flat: Tensor, layout: FlatLayout) -> None:
    """Do what one rank does for a bucket: correct, encode, decode its own, keep the error, decode one message."""
    corrected = flat + flat
    payload = codec.encode(corrected, layout)
    for _ in range(2):
        sent = torch.zeros_like(flat)
        codec.decode(payload, layout, sent)
    torch.sub(corrected, sent)


def _median_s(action: Callable[[], object], device: torch.device, repeats: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    return statistics.median(once() for _ in range(repeats))


LEAST_BYTE_S = 1e-13
"""Seconds a byte of a memory faster than any: what a fit that finds none for bytes says; 10 TB/s."""


def fit(works: Sequence[compression.CodecWork], times: Sequence[float]) -> compression.Roofline:
    """Return the launch time and memory bandwidth that explain `times` best, by least squares of relative error.

    Neither is negative: where the best of both is, it counts as nothing and the other explains the times alone.
    """
    rows = torch.tensor(
        [[w.kernels / t, w.moved_bytes / t] for w, t in zip(works, times, strict=True)], dtype=torch.float64
    )
    launch_s, byte_s = map(float, torch.linalg.lstsq(rows, torch.ones(len(rows), 1, dtype=torch.float64)).solution)
    if launch_s < 0:
        launch_s, byte_s = 0.0, _scale_of(rows[:, 1])
    elif byte_s < LEAST_BYTE_S:
        launch_s, byte_s = _scale_of(rows[:, 0]), LEAST_BYTE_S
    return compression.Roofline(launch_s, 1 / byte_s)


def _scale_of(column: Tensor) -> float:
    """Return what a unit of `column` must take for their products to be as near 1 as they get."""
    return float(column.sum() / column.square().sum())
