"""How long a campaign will go on, and steps too long to begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpexec.lab.campaign.campaign import START_S, TimeLeft, format_spoken, least_step_s
from ddpexec.lab.campaign.spec import Campaign, parse_campaign
from ddpsim.common.errors import InputError
from tests.ddpexec.lab.campaign.pretended import FILE, PretendedLab, go


def test_the_time_left_follows_what_was_taken(campaign: Campaign) -> None:
    first, second = campaign.configurations
    time_left = TimeLeft(campaign.configurations, 3.0)
    expected_s = time_left.seconds
    step_s = least_step_s(second)
    assert step_s is not None
    assert expected_s == pytest.approx(2 * 2 * (START_S + 8 * step_s))
    time_left.done(first, expected_s)
    assert time_left.seconds == pytest.approx(expected_s)
    time_left.done(second, None)
    assert time_left.seconds == 0


@pytest.mark.parametrize(("seconds", "words"), [(40, "40 s"), (89.6, "90 s"), (725, "12 min"), (7500, "2 h 5 min")])
def test_durations_are_spoken(seconds: float, words: str) -> None:
    assert format_spoken(seconds) == words


def test_steps_that_would_last_too_long_are_all_named(campaign: Campaign, lab: PretendedLab, tmp_path: Path) -> None:
    slow = parse_campaign(FILE.replace("1gbit", "10mbit"), "c.yaml")
    with pytest.raises(InputError) as told:
        go(slow, tmp_path)
    assert all(each.name in str(told.value) for each in slow.configurations)
    assert lab.commands == []
