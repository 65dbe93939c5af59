from __future__ import annotations

import re
from pathlib import Path

from ddpexec.campaign.spec import parse_campaign

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "lab.md"


def test_the_pages_campaign_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(parse_campaign(text, "lab.md").configurations) == 5
