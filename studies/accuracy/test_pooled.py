"""The pooled fit: what each table can tell of, and which table is set aside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpsim.calibrating.measured import MeasuredRow, MeasuredTable
from ddpsim.calibrating.samples import Sample
from ddpsim.topology.spec import load_topology
from studies.accuracy.documented import make_documented_calibration
from studies.accuracy.pooled import CachedTimes, depends_on, fit_pooled

MACHINES = {
    "dgx-1v": 1,
    "dgx-1v x2": 2,
    "dgx-a100": 1,
    "dgx-a100 x2": 2,
    "dgx-h100": 1,
    "dgx-h100 x2": 2,
    "p4d.24xlarge x2": 2,
    "p5.48xlarge x2": 2,
    "4xv100-pcie": 1,
    "8xgpu-dual-root": 1,
    "hgx-a100-4": 1,
    "gh200-quad x2": 2,
}


def sample(machine: str, every: int = 1) -> Sample:
    """Return a table of that machine with the documented constants' times."""
    rows = tuple(MeasuredRow(1024 << k, 1.0, "row") for k in range(0, 21, every))
    found = Sample.of(MeasuredTable(machine, rows), load_topology(machine.split()[0]), MACHINES[machine])
    times = found.predict(make_documented_calibration())
    return replace(found, measured=times, undisturbed=times)


@pytest.mark.parametrize("machine", MACHINES)
def test_constants_that_do_not_concern_a_table_leave_its_times_alone(machine: str) -> None:
    table, start = sample(machine), make_documented_calibration()
    names = [name for name, constant in start.constants.items() if constant.log_std is not None]
    others = [name for name in names if not depends_on(table, name)]
    assert others
    for name in others:
        changed = start.with_values({name: 1.5 * start[name]}, source="test")
        assert np.array_equal(table.predict(changed), table.predict(start)), name


@pytest.mark.parametrize("machine", MACHINES)
def test_remembered_times_are_the_transports_own_whichever_constant_moves(machine: str) -> None:
    table, start = sample(machine), make_documented_calibration()
    names = [name for name, constant in start.constants.items() if constant.log_std is not None]
    remembered = CachedTimes(table, names, start)
    for name in names:
        changed = start.with_values({name: 1.5 * start[name]}, source="test")
        assert np.array_equal(remembered.predict(changed), table.predict(changed)), name


def test_a_table_that_contradicts_the_others_is_set_aside_and_leaves_no_trace() -> None:
    tables = [sample(machine, 3) for machine in ("dgx-1v", "dgx-a100", *["dgx-a100 x2"] * 4)]
    slow = replace(sample("dgx-a100 x2", 3), undisturbed=6 * tables[-1].undisturbed)
    found = fit_pooled([*tables, replace(slow, table=replace(slow.table, name="slow"))])
    assert found.aside == ("slow",)
    start = make_documented_calibration()
    for name in ("nccl.efficiency.nvswitch.simple", "nccl.efficiency.net.simple"):
        assert found.values[name] == pytest.approx(start[name], rel=0.02)
