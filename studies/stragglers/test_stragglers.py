"""The kept table of judged stragglers is of the committed seed, and the page says what it holds."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from studies.stragglers.stragglers import KINDS, SEED, cases

HERE = Path(__file__).parent
ROWS = json.loads((HERE / "stragglers.json").read_text())
PAGE = (HERE / "README.md").read_text()


def test_the_cases_are_those_of_the_seed() -> None:
    asked = {case.number: asdict(case) for case in cases(SEED)}
    for row in ROWS:
        for name, value in asked[row["number"]].items():
            assert row[name] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value)


@pytest.mark.parametrize("kind", [*KINDS, "healthy"])
def test_the_page_counts_what_was_named_right(kind: str) -> None:
    judged = [row["right"] for row in ROWS if row["kind"] == kind]
    (said,) = re.findall(rf"^\| {kind} \| (\d+) of (\d+) \|", PAGE, re.MULTILINE)
    assert said == (str(sum(judged)), str(len(judged)))


def test_the_page_says_how_often_a_slow_link_is_placed() -> None:
    places = [
        row["rank"] in json.loads(said[1])
        for row in ROWS
        if row["kind"] == "link" and (said := re.search(r"(\[\d.*\])$", row["said"]))
    ]
    assert f"of {len(places)} the slow one is among them in {sum(places)}." in " ".join(PAGE.split())
