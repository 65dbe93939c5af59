"""The tables of schemes, measured: errors of a system then and today, and of what judges it alone, by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from ddpexec.lab.campaign.spec import parse_campaign
from studies.schemes.schemes_page import tables
from studies.validation.evidence import Evidence, Held, Recorded
from tests.ddpexec.lab.campaign.test_results import result

CAMPAIGN = """
name: few
networks: {pair: {ranks: 2, rate: 1gbit}, quad: {ranks: 4, rate: 1gbit}}
runs:
  - {network: pair, workload: resnet50, wire_over_backward: 1, impl: ddpexec,
     vary: {scheme: ["averaging:2", "averaging:4"]}}
  - {network: quad, workload: resnet50, wire_over_backward: 1, impl: ddpexec, vary: {scheme: ["averaging:2", ddp]}}
"""
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def evidence() -> Evidence:
    campaign = parse_campaign(CAMPAIGN, "few.yaml")
    # Before: 10, 20, 30 and 0 % too slow; today 1, -2, 3 and 0.
    steps = {0: (1.1, 1.01), 1: (1.2, 0.98), 2: (1.3, 1.03), 3: (1.0, 1.0)}
    recorded = []
    for number, configuration in enumerate(campaign.configurations):
        named = {"scheme": configuration.scheme, "family": configuration.family}
        before, now = (Held(result(1.0, predicted_s, **named), {}, ()) for predicted_s in steps[number])
        recorded.append(Recorded(configuration, before, now, MOMENT, MOMENT, True, "2", None))
    return Evidence(campaign, {}, recorded, ["resnet50-none"])


def test_errors_of_a_system_are_over_its_options_and_judged_apart() -> None:
    text = tables(evidence(), lambda configuration: configuration.run.network == "pair")
    cells = "20.00 % | 29.00 % | 2.00 % | 2.90 % | -2.00 % to +3.00 % | 1 | 3.00 % | 3.00 %"
    assert f"| averaging | 3 | {cells} |" in text
    assert "| ddp | 1 | 0.00 % | 0.00 % | 0.00 % | 0.00 % | +0.00 % to +0.00 % | 1 | 0.00 % | 0.00 % |" in text
    assert "| pair | 1 | averaging:4 | 1000.0 | 1200.0 | +20.00 % | 980.0 | -2.00 % | - | bandwidth | chosen |" in text
    assert "| quad | 1 | ddp | 1000.0 | 1000.0 | +0.00 % | 1000.0 | +0.00 % | - | bandwidth |  |" in text
    assert text.endswith("Without a run: resnet50-none.")


def test_a_family_shows_the_best_then_and_today() -> None:
    text = tables(evidence(), lambda configuration: False)
    (row,) = (line for line in text.splitlines() if line.startswith("| resnet50-quad"))
    # All steps are as long, so that nothing can be in a wrong order.
    assert "| ddp | 0.00 % | ddp | 0.00 % | 0 of 0 | 0 of 0 |" in row
