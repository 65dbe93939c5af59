"""How far devices differ, where it is measured: equal values differ by nothing, and the sources are read whole."""

from __future__ import annotations

import pytest

from ddpsim.simulation.ddp_costs import Costs
from studies.published.device_spread import clocks, rates, spread


def test_equal_devices_do_not_differ_and_a_factor_on_all_changes_nothing() -> None:
    assert spread([3.0, 3.0, 3.0]) == 0.0
    assert spread([1.0, 1.02, 0.97]) == pytest.approx(spread([50.0, 51.0, 48.5]))


def test_both_sources_are_read_whole() -> None:
    assert {len(values) for _, values in rates()} == {38}
    assert {len(values) for _, values in clocks()} == {8}
    assert len(list(clocks())) == 6
    assert max(spread(values) for _, values in rates()) < min(spread(values) for _, values in clocks())


def test_hopper_s_spread_is_that_of_the_hosts_rates() -> None:
    spreads = [spread(values) for _, values in rates()]
    assert min(spreads) < Costs.of("nccl", None, "H100").pace_spread < max(spreads)
