"""A number with its 80 % band."""

from __future__ import annotations

Band = tuple[float, float, float]
"""A number with its 10th and 90th percentile: middle, low, high."""
