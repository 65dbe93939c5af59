"""The validation page holds what today's code says of the kept lab: one of its rows is computed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpexec.lab.campaign.spec import load_campaign
from studies.validation.evidence import Recorded, load
from studies.validation.kept import alone, run_of

ROOT = Path(__file__).parents[2]
LAB = ROOT / "traces" / "lab"
PAGE = Path(__file__).with_name("validation.md")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The timed configuration that the fewest bytes tell of."""
    kept = [each for each in load_campaign(LAB / "campaign.yaml").configurations if run_of(LAB, each).exists()]
    one = min((each for each in kept if each.run.model is None), key=lambda each: run_of(LAB, each).stat().st_size)
    record, work = (tmp_path_factory.mktemp(name) for name in ("record", "work"))
    alone(LAB, one, record)
    (found,) = load(record, work).recorded
    return found


def row_of(name: str) -> dict[str, str]:
    """Return the cells of a configuration's row; `now error` is the one that follows `now`."""
    text = PAGE.read_text()
    lab = text[text.index("\n## Lab") : text.index("\n## One GPU")]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in lab.splitlines()]
    (head,) = (line for line in lines if line[:3] == ["configuration", "one process", "measured"])
    (row,) = (line for line in lines if line[0] == name)
    now = head.index("now")
    return {**dict(zip(head[:now], row[:now], strict=True)), "now": row[now], "now error": row[now + 1]}


def percent(cell: str) -> float:
    return float(cell.removesuffix(" %")) / 100


def test_the_page_has_todays_prediction_and_its_error(recorded: Recorded) -> None:
    row, now = row_of(recorded.configuration.name), recorded.now.result
    assert now.predicted_s * 1e3 == pytest.approx(float(row["now"]), abs=0.06), "run `make validation`"
    assert now.error == pytest.approx(percent(row["now error"]), abs=0.6e-4)


def test_the_page_has_the_prediction_made_before_and_what_was_measured(recorded: Recorded) -> None:
    row, before = row_of(recorded.configuration.name), recorded.before.result
    assert before.predicted_s * 1e3 == pytest.approx(float(row["before"]), abs=0.06)
    assert before.error == pytest.approx(percent(row["error"]), abs=0.6e-4)
    assert before.step_s * 1e3 == pytest.approx(float(row["measured"]), abs=0.06)
