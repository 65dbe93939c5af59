"""Tables timed on the host: recognised by a floor, their small sizes left out; a table of nothing else is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddpsim import Calibration, calibrate, load_topology
from ddpsim.calibrating.calibrate import drop_host_timed_rows, host_floor_s, latencies_held
from ddpsim.calibrating.measured import MeasuredTable, read_table
from ddpsim.calibrating.samples import Sample
from ddpsim.common.errors import CalibrationError

PRIORS = Calibration.priors("nccl")
MACHINE = load_topology("dgx-h100")
FLOOR_S = 124e-6


@pytest.fixture(scope="module")
def table() -> MeasuredTable:
    """Eight H100, as predicted."""
    found = read_table(Path(__file__).resolve().parents[2] / "data/tables/aws_p5_1node_8xH100.csv")
    times = Sample.of(found, MACHINE, 1).predict(PRIORS).tolist()
    return replace(found, rows=tuple(replace(r, time_s=t) for r, t in zip(found.rows, times, strict=True)))


def test_a_floor_under_every_collective_is_the_hosts(table: MeasuredTable) -> None:
    sample = Sample.of(table, MACHINE, 1)
    assert host_floor_s(sample, PRIORS) is None
    floored = replace(sample, measured=np.maximum(sample.measured, FLOOR_S))
    assert host_floor_s(floored, PRIORS) == pytest.approx(FLOOR_S)
    slow = replace(sample, measured=sample.measured * 5)
    assert host_floor_s(slow, PRIORS) is None


def test_its_rows_near_the_floor_are_left_out_and_a_table_of_nothing_else_is_refused(table: MeasuredTable) -> None:
    rows = tuple(replace(row, time_s=row.time_s + FLOOR_S) for row in table.rows)
    timed = replace(table, rows=rows)
    kept = drop_host_timed_rows(Sample.of(timed, MACHINE, 1), PRIORS)
    assert 0 < len(kept.rows) < len(rows)
    assert kept.rows == rows[-len(kept.rows) :]
    assert kept.notes[-1].endswith(f"{len(rows) - len(kept.rows)} rows left out")
    short = replace(timed, rows=rows[:8])
    with pytest.raises(CalibrationError, match="timed on the host"):
        calibrate([short], MACHINE, 1)


def test_latencies_then_keep_their_priors() -> None:
    held = latencies_held(PRIORS).constants
    free = {name for name, constant in held.items() if constant.log_std is not None}
    assert free
    assert free == {name for name, c in PRIORS.constants.items() if c.log_std is not None and c.unit != "s"}
