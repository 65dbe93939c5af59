"""What compressing costs on a device, as the constants of `ddpsim.schedules.compression.Roofline`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddpsim.schedules import compression

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
