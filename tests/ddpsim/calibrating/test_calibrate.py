from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ddpsim.calibrating.calibrate import calibrate
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import PRIORS, Collectives
from ddpsim.collectives.gloo.transport import GlooTransport
from ddpsim.collectives.transport import alone_s
from ddpsim.errors import CalibrationError, InputError, UnknownNameError
from ddpsim.measured import MeasuredRow, MeasuredTable
from ddpsim.simulation.costs import all_priors
from ddpsim.topology.spec import load_topology

LOOPBACK = load_topology("loopback")
SIZES = [4096 * 2**k for k in range(15)]
TRUTH = {"gloo.launch_s": 9e-5, "gloo.step_s": 2e-5, "gloo.efficiency.loopback": 0.6}


def gloo_table(noise: float = 0.0, ranks: int = 2, sizes: list[int] = SIZES, **fields: object) -> MeasuredTable:
    start = Calibration("gloo", {constant.name: constant for constant in PRIORS["gloo"]})
    transport = GlooTransport(LOOPBACK.place(1, ranks), start.with_values(TRUTH, source="truth"))
    random = np.random.default_rng(ranks)
    times = [alone_s(transport.allreduce(s), transport.capacities) * np.exp(noise * random.normal()) for s in sizes]
    rows = tuple(MeasuredRow(s, t, f"t: row {n}") for n, (s, t) in enumerate(zip(sizes, times, strict=True)))
    return MeasuredTable("t", rows, ranks=ranks, **fields)  # type: ignore[arg-type]


def test_constants_come_back_from_two_rank_counts_and_predict_a_third() -> None:
    report = calibrate([gloo_table(0.02), gloo_table(0.02, ranks=4)], LOOPBACK)
    for name, value in TRUTH.items():
        assert report.calibration[name] == pytest.approx(value, rel=0.15)
    unseen = Collectives(None, LOOPBACK.place(1, 8), backend="gloo", calibration=report.calibration)
    truth = gloo_table(ranks=8)
    predicted = [unseen.estimate_s(row.size_bytes) for row in truth.rows]
    assert predicted == pytest.approx([row.time_s for row in truth.rows], rel=0.1)


def test_the_held_out_error_is_of_rows_that_took_no_part() -> None:
    report = calibrate([gloo_table(0.05)], LOOPBACK)
    again = calibrate([gloo_table(0.05, sizes=SIZES[1::4] + SIZES[2::4] + SIZES[3::4])], LOOPBACK)
    model = Collectives(None, LOOPBACK.place(1, 2), backend="gloo", calibration=again.calibration)
    held_out = {row.size_bytes: row.held_out_s for row in report.rows}
    # The noise differs by row order, so the first quarter's own rows only are compared, and loosely.
    for size in SIZES[::4]:
        assert held_out[size] == pytest.approx(model.estimate_s(size), rel=0.25)
    assert report.fit_error < 0.08
    assert report.calibration.residual_low < 0 < report.calibration.residual_high  # type: ignore[operator]


def test_rows_of_the_machine_asked_for_correct_the_model_there_only() -> None:
    table = gloo_table()
    bent = tuple(MeasuredRow(r.size_bytes, r.time_s * (2 if r.size_bytes == 65536 else 1), r.place) for r in table.rows)
    report = calibrate([MeasuredTable("t", bent, ranks=2)], LOOPBACK)
    here = Collectives(None, LOOPBACK.place(1, 2), backend="gloo", calibration=report.calibration)
    for row in bent[:4] + bent[-4:]:
        assert here.estimate_s(row.size_bytes) == pytest.approx(row.time_s, rel=1e-6)
    times = [here.estimate_s(size) for size in np.geomspace(4096, SIZES[-1], 200).astype(int).tolist()]
    assert times == sorted(times)
    elsewhere = Collectives(None, LOOPBACK.place(1, 4), backend="gloo", calibration=report.calibration)
    truth = gloo_table(ranks=4)
    assert elsewhere.estimate_s(65536) == pytest.approx(truth.rows[4].time_s, rel=0.15)


def test_what_the_rows_cannot_tell_keeps_its_prior_and_is_named() -> None:
    report = calibrate([gloo_table(sizes=[64, 128])], LOOPBACK)
    assert any("gloo.efficiency.loopback" in note for note in report.notes)
    assert "gloo.efficiency.loopback" in report.unused
    assert "gloo.efficiency.network" in report.unused
    free = {c.name for c in PRIORS["gloo"] if c.log_std is not None}
    fitted = {c.name for c in report.calibration.constants.values() if c.fitted}
    assert free == fitted | set(report.undetermined) | set(report.unused)
    assert not report.calibration.constants["gloo.efficiency.loopback"].fitted
    priors = {constant.name: constant.value for constant in PRIORS["gloo"]}
    assert report.calibration["gloo.efficiency.loopback"] == priors["gloo.efficiency.loopback"]


def test_host_costs_measured_beside_replace_constants_of_that_name() -> None:
    report = calibrate([gloo_table(ddp={"hook_s": 4e-6, "other_s": 1.0})], LOOPBACK)
    assert report.calibration["gloo.ddp.hook_s"] == 4e-6
    assert "gloo.ddp.other_s" not in report.calibration.constants


def test_a_host_cost_that_no_machine_has_is_refused() -> None:
    assert calibrate([gloo_table(ddp={"copy_s": 0.0})], LOOPBACK).calibration["gloo.ddp.copy_s"] == 0
    for what, value in (("hook_s", -1e-6), ("hook_s", math.nan), ("copy_Bps", 0.0), ("copy_slowdown", 0.0)):
        with pytest.raises(CalibrationError, match=rf"t: ddp\.{what}: {value} is out of range"):
            calibrate([gloo_table(ddp={what: value})], LOOPBACK)


def test_a_calibration_survives_its_file() -> None:
    report = calibrate([gloo_table(0.02)], LOOPBACK)
    text = json.dumps(report.calibration.document())
    assert Calibration.from_text(text, all_priors(), "c.json") == report.calibration


def test_the_backend_is_the_callers_else_the_tables_else_the_machines() -> None:
    gpus, header = load_topology("hgx-a100-4"), {"backend": "gloo"}
    for machine, table, backend in (
        (gpus, gloo_table(), "nccl"),
        (gpus, gloo_table(header=header), "gloo"),
        (LOOPBACK, gloo_table(), "gloo"),
    ):
        found = calibrate([table], machine).calibration
        assert found.backend == backend
        assert set(found.constants) == {constant.name for constant in all_priors()[backend]}
    assert calibrate([gloo_table(header={"backend": "nccl"})], gpus, backend="gloo").calibration.backend == "gloo"
    for unknown, given in (({"backend": "ucc"}, None), ({}, "mpi")):
        with pytest.raises(UnknownNameError, match=r"(t: unknown backend 'ucc'|--backend: unknown backend 'mpi')"):
            calibrate([gloo_table(header=unknown)], gpus, backend=given)


def test_bad_tables_and_node_counts_are_named() -> None:
    with pytest.raises(CalibrationError, match="one row determines nothing"):
        calibrate([gloo_table(sizes=[4096])], LOOPBACK)
    with pytest.raises(InputError, match=r"t: 128 ranks: .*has 64"):
        calibrate([gloo_table(ranks=2), MeasuredTable("t", gloo_table().rows, ranks=128, nodes=1)], LOOPBACK)
    with pytest.raises(CalibrationError, match="3 ranks on 2 nodes"):
        calibrate([gloo_table(ranks=3)], LOOPBACK, nodes=2)
    with pytest.raises(CalibrationError, match="1 node counts for 2 tables"):
        calibrate([gloo_table(), gloo_table()], LOOPBACK, nodes=[1])
    with pytest.raises(CalibrationError, match="tables of gloo and nccl"):
        calibrate([gloo_table(header={"backend": "gloo"}), gloo_table(header={"backend": "nccl"})], LOOPBACK)
