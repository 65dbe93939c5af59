"""The page of schemes measured on the lab: what it says of servers is what is predicted today."""

from __future__ import annotations

import re
from pathlib import Path

from ddpexec.lab.campaign.spec import load_campaign
from studies.schemes.other_runs import OTHER
from studies.schemes.schemes_measured import RECORDS, ROOT, TARGET, TEMPLATE
from studies.schemes.schemes_page import rows
from studies.validation.evidence import load
from studies.validation.kept import alone


def test_the_page_has_todays_prediction_of_servers(tmp_path: Path) -> None:
    record = ROOT / "traces" / "table1"
    kept = load_campaign(record / "campaign.yaml").configurations
    (one,) = (each for each in kept if each.run.network == "pair" and each.scheme == "parameter-server")
    found = load(alone(record, one, tmp_path / "record"), tmp_path / "work").recorded
    *_, row = rows(found, RECORDS["table1"])
    assert row in TARGET.read_text().splitlines(), "run `make schemes-measured`"


def test_the_prose_of_the_page_is_that_of_its_template() -> None:
    places = [*RECORDS, *OTHER]
    named = "|".join(rf"\{{{name}\}}" for name in places)
    prose = re.split(named, TEMPLATE.read_text())
    assert len(prose) == len(places) + 1
    assert re.fullmatch(".*".join(map(re.escape, prose)), TARGET.read_text(), re.DOTALL), "run `make schemes-measured`"
