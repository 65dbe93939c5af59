"""Predictors to beat."""

from __future__ import annotations

import numpy as np

from ddpsim.calibrating.fitting import Vector
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.nccl.tuning import best, time_us


def nccl_model(sample: Sample) -> Vector:
    """Return what NCCL's own cost model says of each row, in seconds."""
    shape = sample.layout().shape
    forced = None if sample.algorithm == "auto" else sample.algorithm
    return np.array([time_us(best(shape, size, forced), shape, size) * 1e-6 for size in sample.sizes])


def comm_analysis(sample: Sample) -> Vector:
    """Return torch 2.13's `_inductor/comm_analysis.py` formula: LL ring, 300 GB/s in a node, 25 GB/s between."""
    shape = sample.layout().shape
    p, n = shape.ranks, shape.nodes
    volta, hopper = (39.0, 39.0, 20.4), (141.0, 45.0, 35.0)
    row = volta if n > 1 or shape.sm < 80 else (87.7, 22.5, 19.0) if shape.sm < 90 else hopper
    bus = min(row[min(n, 3) - 1], 2 * (300.0 if n == 1 else 25.0) / 4)
    steps, between = 2 * (p - 1), 2 * n if n > 1 else 0
    latency_us = 6.6 + (steps - between) * 0.6 + between * 2.7
    return np.array([latency_us * 1e-6 + size / (bus * 1e9 * p / steps) for size in sample.sizes])


def log_log(known: Sample, asked: Sample) -> Vector:
    """Return straight lines through the known rows in log size and log time."""
    x, y = np.log(known.sizes), np.log(known.measured)
    return np.asarray(np.exp(np.interp(np.log(asked.sizes), x, y)))


def alpha_beta(known: Sample, asked: Sample) -> Vector:
    """Return a + b size, least squares on the known rows."""
    slope, intercept = np.polyfit(known.sizes, known.measured, 1)
    return np.asarray(np.maximum(intercept + slope * np.array(asked.sizes), 1e-9))


def constant_busbw(known: Sample, asked: Sample) -> Vector:
    """Return the times at the bus bandwidth that the known table has at each size."""

    def share(sample: Sample) -> float:
        return 2 * (sample.placement.world_size - 1) / sample.placement.world_size

    return log_log(known, asked) * share(asked) / share(known)
