"""A table timed on the host makes no small collective slower; no kept table of nccl-tests is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpsim.calibrating.calibrate import calibrate, host_floor_s
from ddpsim.calibrating.measured import read_table
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from studies.accuracy.systems import CITED, LATER, SYSTEMS, load, machine

PRIORS = Calibration.priors("nccl")
GB300 = Path(__file__).resolve().parents[1] / "published/steps/curves/gb300_nvlink.csv"


TABLES = {system.name: system for system in (*SYSTEMS, *CITED, *LATER) if system.nodes == 1}
LOOP = "rtxpro6000_8gpu"
"""Timed by a loop in torch, 38 us above the priors at 4 and 64 KiB."""


@pytest.mark.parametrize("name", [name for name in TABLES if name != LOOP])
def test_no_other_kept_table_was_timed_on_the_host(name: str) -> None:
    assert host_floor_s(load(TABLES[name]), PRIORS) is None


def test_a_table_that_a_loop_in_torch_timed_is_told() -> None:
    assert host_floor_s(load(TABLES[LOOP]), PRIORS) is not None


def test_what_the_host_timed_makes_no_small_collective_slower() -> None:
    """With every row a collective of 1 MiB takes the host's floor; without them about what the priors say."""
    topology = machine("gb300-domain")
    found = calibrate([read_table(GB300)], topology, 1).calibration
    timed, prior = (make_transport(topology.place(1, 8), "nccl", each).allreduce_s(1 << 20) for each in (found, None))
    assert timed < 1.3 * prior
