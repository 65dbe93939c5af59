"""Titles of an explanation's tables, and what they call the parts of a step."""

from __future__ import annotations

from ddpsim.trace.tables import PART_NAMES

PARTS, COLLECTIVES, RANKS = "Parts of the step", "Collectives", "Ranks"
CHANGES, MOVED = "What changed", "Collectives, then and now"
"""Titles of tables."""


def part_name(part: str) -> str:
    """Return what a part of a step is called."""
    names = {**PART_NAMES, "input_s": "input, loop"}
    return names.get(part) or f"{part.removesuffix('_s')} (not DDP's)"
