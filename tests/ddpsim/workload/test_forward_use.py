from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.common import shipped
from ddpsim.prediction.carry import carry_workload
from ddpsim.prediction.pace_from_row import scale_device_time
from ddpsim.workload.estimate import ModelShape, estimate
from ddpsim.workload.files import load_workload, save_workload
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.iteration_profile import paces
from ddpsim.workload.pool import pool_captures
from ddpsim.workload.profile import ForwardUse, median_use
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import workload

ROOT = Path(__file__).parents[3]
V100 = load_workload("resnet50")
H100 = gpu_named("H100").with_fitted()
TIMES = st.lists(st.floats(0, 1e3), min_size=1, max_size=6).map(lambda times: np.sort(np.array(times)))


def uses(*host, scale=1.0):
    times = np.array(host, dtype=float)
    return ForwardUse(times, times * scale)


def test_a_file_that_does_not_say_is_read_as_all_at_the_start_and_written_back_as_it_was(tmp_path):
    kept = ROOT / "tests/kept/first/workload.json"
    old = load_workload(kept)
    assert not old.forward_use_known
    assert old.forward_shares() == ForwardUse.at_the_start(len(old.parameters))
    save_workload(old, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == kept.read_bytes()


@pytest.mark.parametrize("name", shipped.names("workload"))
def test_shipped_workloads_know_it_within_forward(name):
    model = load_workload(name)
    assert model.forward_use_known
    shares = model.forward_shares()
    for share in (shares.host_s, shares.device_s):
        assert np.nanmin(share) == 0
        assert np.nanmax(share) <= 1


def test_device_time_alone_is_scaled_with_the_pace_and_host_time_with_the_hosts():
    source = replace(workload(device="V100", gradients=3), forward_use_s=uses(0.0, 0.001, 0.002, scale=10))
    shares = source.forward_shares()
    (own,), (half,), (slow_host,) = paces(source), paces(source, 0.5), paces(source, 1.0, 3.0)
    assert own.forward_use(shares) == source.forward_use_s
    for scaled, host, device in ((half, 1.0, 0.5), (slow_host, 3.0, 1.0)):
        np.testing.assert_allclose(scaled.forward_use(shares).host_s, source.forward_use_s.host_s * host)
        np.testing.assert_allclose(scaled.forward_use(shares).device_s, source.forward_use_s.device_s * device)
    (cpu,) = paces(replace(workload(gradients=3), forward_use_s=uses(0.0, 0.01, 0.02)), 0.5)
    np.testing.assert_allclose(cpu.forward_use(uses(0.0, 1 / 3, 2 / 3)).host_s, [0.0, 0.005, 0.01])


def test_where_the_device_idles_its_last_use_is_the_whole_of_its_work():
    shares = uses(0.1, np.nan, 0.4).shares(0.5, 0.2)
    np.testing.assert_allclose(shares.host_s, [0.2, np.nan, 0.8])
    np.testing.assert_allclose(shares.device_s, [0.25, np.nan, 1.0])
    assert uses(0.0, np.nan).shares(0.0, 0.0) == uses(0.0, np.nan)


@pytest.mark.parametrize(
    "changed",
    [
        lambda source: single_clock(source, 0.7),
        lambda source: scale_device_time(source, 1.7),
        lambda source: scale_device_time(single_clock(source), 1.7),
        lambda source: carry_workload(source, H100).workload,
        lambda source: pool_captures([source, source]),
        lambda source: estimate(ModelShape.of(source, source.operators.with_batch(64)), H100, "fp32"),
    ],
    ids=["one clock", "row", "row on one clock", "carried", "pool_captures", "another batch"],
)
def test_whatever_becomes_of_a_workload_keeps_it_in_its_order(changed):
    source = V100
    use = changed(source).forward_use_s
    for clock in ("host_s", "device_s"):
        before, after = getattr(source.forward_use_s, clock), getattr(use, clock)
        order = np.argsort(before, kind="stable")
        assert np.all(np.diff(after[order]) >= 0)
        assert np.array_equal(np.isnan(before), np.isnan(after))
    assert np.nanmax(use.device_s) > 0


def test_the_same_pace_changes_nothing_and_twice_the_work_doubles_a_busy_device():
    assert scale_device_time(V100, 1.0).forward_use_s == V100.forward_use_s
    busy = uses(0.0, 0.01, 0.02, scale=10)
    assert busy.scale_device(2.0) == ForwardUse(busy.host_s, 2 * busy.device_s)
    # A device that waits for launches does not begin before them, however fast it is.
    assert busy.scale_device(0.01) == ForwardUse(busy.host_s, busy.host_s)


@given(TIMES, st.floats(0.01, 100), st.floats(0.01, 100))
def test_no_pace_changes_the_order(times, scale, factor):
    use = uses(*times, scale=scale)
    for changed in (use.scale_device(factor), use.merge_clocks(), use.scale(factor, scale), use.shares(factor, scale)):
        assert np.all(np.diff(changed.host_s) >= 0)
        assert np.all(np.diff(changed.device_s) >= 0)


def test_captures_together_have_the_median_of_those_that_know():
    some = [uses(0.0, 1.0, np.nan), uses(0.2, 3.0, 5.0), uses(0.1, 2.0, np.nan)]
    assert median_use(some) == uses(0.1, 2.0, 5.0)
    assert median_use([uses(np.nan)]) == uses(np.nan)
    captures = [replace(workload(gradients=3), forward_use_s=use) for use in (*some, None)]
    assert pool_captures(captures).forward_use_s == median_use(some)
    assert pool_captures(captures[-1:]).forward_use_s is None
