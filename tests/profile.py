"""How much of a random test is run: a part of it by default, all of it where HYPOTHESIS_PROFILE is `large`."""

from __future__ import annotations

import os

LARGE = os.environ.get("HYPOTHESIS_PROFILE", "small") == "large"
PART = 4


def training_steps(large: int) -> int:
    """Return how many steps a training takes that takes `large` in the large profile."""
    return large if LARGE else max(4, large * 2 // 5)


def examples(large: int) -> int:
    """Return how many examples a test tries that tries `large` in the large profile."""
    return large if LARGE else max(5, large // PART)
