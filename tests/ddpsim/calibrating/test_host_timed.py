"""Tables timed on the host: recognised by a floor, their small sizes left out; no kept table of nccl-tests is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddpsim.calibrating.calibrate import calibrate
from ddpsim.calibrating.host_timed import host_floor_s, of_the_device
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.errors import CalibrationError
from ddpsim.measured import read_table
from ddpsim.topology.spec import load_topology
from studies.accuracy.systems import CITED, LATER, SYSTEMS, load, machine

PRIORS = Calibration.priors("nccl")
GB300 = Path(__file__).resolve().parents[3] / "studies/published/steps/curves/gb300_nvlink.csv"
FLOOR_S = 124e-6


@pytest.fixture(scope="module")
def sample() -> Sample:
    """Eight H100, as predicted."""
    table = read_table(Path(__file__).resolve().parents[2] / "data/tables/aws_p5_1node_8xH100.csv")
    found = Sample.of(table, load_topology("dgx-h100"), 1)
    return replace(found, measured=found.predicted(PRIORS))


@pytest.mark.parametrize("system", [s for s in (*SYSTEMS, *CITED, *LATER) if s.nodes == 1], ids=lambda s: s.name)
def test_no_kept_table_was_timed_on_the_host(system) -> None:
    assert host_floor_s(load(system), PRIORS) is None


def test_a_floor_under_every_collective_is_the_hosts(sample: Sample) -> None:
    assert host_floor_s(sample, PRIORS) is None
    floored = replace(sample, measured=np.maximum(sample.measured, FLOOR_S))
    assert host_floor_s(floored, PRIORS) == pytest.approx(FLOOR_S)
    slow = replace(sample, measured=sample.measured * 5)
    assert host_floor_s(slow, PRIORS) is None


def test_its_rows_near_the_floor_are_left_out_and_a_table_of_nothing_else_is_refused() -> None:
    table = read_table(GB300)
    topology = machine("gb300-domain")
    kept = of_the_device(Sample.of(table, topology, 1), PRIORS)
    assert 0 < len(kept.rows) < len(table.rows)
    assert kept.rows == table.rows[-len(kept.rows) :]
    assert kept.notes[-1].endswith(f"{len(table.rows) - len(kept.rows)} rows left out")
    short = replace(table, rows=table.rows[:8])
    with pytest.raises(CalibrationError, match="timed on the host"):
        calibrate([short], topology, 1)


def test_what_the_host_timed_makes_no_small_collective_slower() -> None:
    """With every row a collective of 1 MiB takes the host's floor; without them about what the priors say."""
    topology = machine("gb300-domain")
    found = calibrate([read_table(GB300)], topology, 1).calibration
    timed, prior = (make_transport(topology.place(1, 8), "nccl", each).allreduce_s(1 << 20) for each in (found, None))
    assert timed < 1.3 * prior
