"""What torchrun tells a process by its environment; without torchrun it is the only rank."""

from __future__ import annotations

import os


def is_first_rank() -> bool:
    """Return whether this is rank 0, which speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def has_others() -> bool:
    """Return whether there is more than one rank."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
