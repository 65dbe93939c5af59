"""A hundred trials of a fresh seed: nothing is lost, nobody is left, and one message is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.fresh import seed
from studies.kills.trials import trials

SEED = seed()
TRIALS, PARTS = 100, 10


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_left_of_commands_that_are_ended(part: int, tmp_path: Path) -> None:
    assert trials(TRIALS // PARTS, SEED + part, tmp_path, print) == [], f"seed {SEED + part}"
