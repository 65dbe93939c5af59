"""The committed campaigns, and the one that a page shows, can be carried out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpexec.lab.campaign.campaign import check_steps
from ddpexec.lab.campaign.spec import load_campaign, parse_campaign

ROOT = Path(__file__).parents[4]
TRACES, PAGE = ROOT / "traces", ROOT / "docs" / "how-to" / "lab.md"


@pytest.mark.parametrize("name", ["lab", "smoke", "schemes", "table1"])
def test_no_step_is_longer_than_the_file_allows(name: str) -> None:
    check_steps(load_campaign(TRACES / f"{name}.yaml"))


def test_the_campaign_on_the_labs_page_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(parse_campaign(text, "lab.md").configurations) == 5
