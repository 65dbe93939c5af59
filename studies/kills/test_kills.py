"""Trials of a fresh seed: nothing is lost, nobody is left, and one message is said. `STUDIES_KILLS` says how many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from studies.fresh import seed
from studies.kills.commands import COMMANDS
from studies.kills.trials import trials

SEED = seed()
QUICK = [name for name, command in COMMANDS.items() if command.same]
SLOW = [name for name, command in COMMANDS.items() if not command.same and not command.lab]
TRIALS, PARTS = int(os.environ.get("STUDIES_KILLS", 100)), 10


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_left_of_commands_that_are_ended(part: int, tmp_path: Path) -> None:
    only = SLOW if part == 0 else QUICK
    assert trials(TRIALS // PARTS, SEED + part, tmp_path, print, only) == [], f"seed {SEED + part}"
