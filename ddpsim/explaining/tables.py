"""Titles of an explanation's tables, and what they call the parts of a step."""

from __future__ import annotations

from ddpsim.trace.tables import PART_NAMES

PARTS, COLLECTIVES, RANKS = "Parts of the step", "Collectives", "Ranks"
CHANGES, MOVED = "What changed", "Collectives, before and now"
"""Titles of tables."""


def describe_collective_times(rank: int, *, several: bool) -> str:
    """Return what the times of the table of collectives are of.

    Args:
        rank: whose moments are shown.
        several: whether more than one rank was traced.
    """
    moments = f"ready (launched, earlier ones finished), started and finished on rank {rank}, since its step began"
    split = "; waiting for the last rank, mean over ranks; wire after it has come" if several else ""
    return f"{moments}{split}; each number is a median over steps, so that they need not add up"


def part_name(part: str) -> str:
    """Return what a part of a step is called."""
    names = {**PART_NAMES, "input_s": "input, loop"}
    return names.get(part) or f"{part.removesuffix('_s')} (not DDP's)"
