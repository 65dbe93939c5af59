from __future__ import annotations

from pathlib import Path

import pytest

from ddpexec.lab.campaign import stages
from ddpexec.lab.campaign.spec import Campaign, parse_campaign
from ddpexec.lab.netlab import support
from tests.ddpexec.lab.campaign.pretended import FILE, PretendedLab


@pytest.fixture
def campaign() -> Campaign:
    return parse_campaign(FILE, "c.yaml")


@pytest.fixture
def lab(campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendedLab:
    pretended = PretendedLab(campaign, tmp_path)
    monkeypatch.setattr(stages, "run_in_lab", pretended)
    monkeypatch.setattr(support, "list_missing", list)
    return pretended
