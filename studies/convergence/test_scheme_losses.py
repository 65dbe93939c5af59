"""The page of losses is that of the kept trainings, whose verdicts are those of their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from studies.convergence import scheme_losses

ROOT = Path(__file__).parents[2]
KEPT = json.loads(scheme_losses.FILE.read_text())


def test_every_scheme_was_trained_with_every_seed_for_as_long() -> None:
    asked = {(case.scheme, seed) for case in scheme_losses.CASES for seed in scheme_losses.SEEDS}
    assert {(run["scheme"], run["seed"]) for run in KEPT["runs"]} == asked
    assert len(KEPT["runs"]) == len(asked)
    assert KEPT["steps"] == scheme_losses.STEPS
    assert scheme_losses.STEPS % 8 == 0, "the last step is one after which parameters are averaged"


def test_the_page_says_what_was_kept() -> None:
    assert scheme_losses.PAGE.read_text() == scheme_losses.page(KEPT)


def test_verdicts_are_those_of_the_numbers() -> None:
    """Once more with numpy."""

    def held_out(scheme: str) -> float:
        return float(np.mean([run["held_out_loss"] for run in KEPT["runs"] if run["scheme"] == scheme]))

    ddp, *others = scheme_losses.rows(KEPT)
    for row in others:
        assert row.holds(ddp) == (held_out(row.scheme) <= held_out("ddp") + 0.02)
