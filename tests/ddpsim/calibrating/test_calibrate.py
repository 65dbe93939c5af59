from __future__ import annotations

import functools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from ddpsim import Calibration, load_topology
from ddpsim.calibrating.calibrate import CalibrationReport, calibrate
from ddpsim.calibrating.measured import MeasuredRow, MeasuredTable
from ddpsim.calibrating.misfit import MEAN_FACTOR
from ddpsim.collectives.calibration_file import calibration_from
from ddpsim.collectives.gloo.transport import GlooTransport
from ddpsim.collectives.network.fairness import alone_s
from ddpsim.common.errors import CalibrationError, InputError, UnknownNameError
from tests.ddpsim.collectives.groups import group_on

LOOPBACK = load_topology("loopback")
SIZES = [4096 * 2**k for k in range(15)]
TRUTH = {"gloo.launch_s": 9e-5, "gloo.step_s": 2e-5, "gloo.efficiency.loopback": 0.6}


def gloo_table(noise: float = 0.0, ranks: int = 2, sizes: list[int] = SIZES, **fields: object) -> MeasuredTable:
    start = Calibration.priors("gloo")
    transport = GlooTransport(LOOPBACK.place(1, ranks), start.with_values(TRUTH, source="truth"))
    random = np.random.default_rng(ranks)
    times = [alone_s(transport.allreduce(s), transport.capacities) * np.exp(noise * random.normal()) for s in sizes]
    rows = tuple(MeasuredRow(s, t, f"t: row {n}") for n, (s, t) in enumerate(zip(sizes, times, strict=True)))
    return MeasuredTable("t", rows, ranks=ranks, **fields)  # type: ignore[arg-type]


@functools.cache
def fitted() -> CalibrationReport:
    """Return the fit to two ranks' rows with some noise; several tests look at it, none changes it."""
    return calibrate([gloo_table(0.02)], LOOPBACK)


@functools.cache
def fitted_to_two_rank_counts() -> CalibrationReport:
    return calibrate([gloo_table(0.02), gloo_table(0.02, ranks=4)], LOOPBACK)


def test_constants_come_back_from_two_rank_counts_and_predict_a_third() -> None:
    report = fitted_to_two_rank_counts()
    for name, value in TRUTH.items():
        assert report.calibration[name] == pytest.approx(value, rel=0.15)
    unseen = group_on(LOOPBACK.place(1, 8), "gloo", calibration=report.calibration)
    truth = gloo_table(ranks=8)
    predicted = [unseen.estimate_s(row.size_bytes) for row in truth.rows]
    assert predicted == pytest.approx([row.time_s for row in truth.rows], rel=0.1)


def test_the_held_out_error_is_of_the_largest_sizes_where_one_rank_count_was_measured() -> None:
    report = calibrate([gloo_table(0.05)], LOOPBACK)
    largest = len(SIZES) // 4
    told: list[tuple[int, int]] = []
    assert calibrate([gloo_table(0.05)], LOOPBACK, progress=lambda done, fits: told.append((done, fits))) == report
    # The whole, four times without every fourth row, once without the largest.
    assert told == [(done, 6) for done in range(1, 7)]
    again = calibrate([gloo_table(0.05, sizes=SIZES[:-largest])], LOOPBACK)
    model = group_on(LOOPBACK.place(1, 2), "gloo", calibration=again.calibration)
    expected = [model.estimate_s(row.size_bytes) for row in report.rows[-largest:]]
    assert [row.held_out_s for row in report.rows[-largest:]] == pytest.approx(expected)
    assert {row.held_out_s for row in report.rows[:-largest]} == {None}
    errors = [abs(one / row.measured_s - 1) for one, row in zip(expected, report.rows[-largest:], strict=True)]
    assert report.held_out_error == pytest.approx(sum(errors) / largest)
    assert report.held_out == "the largest sizes"
    assert report.fit_error < 0.08
    assert report.calibration.residual_low < 0 < report.calibration.residual_high  # type: ignore[operator]


def test_the_held_out_error_is_of_a_rank_count_that_took_no_part_where_several_were_measured() -> None:
    tables = [gloo_table(0.02), gloo_table(0.02, ranks=4)]
    report = fitted_to_two_rank_counts()
    assert report.held_out == "a rank count"
    without = [calibrate(tables[1:], LOOPBACK).calibration, fitted().calibration]
    models = [
        group_on(LOOPBACK.place(1, ranks), "gloo", calibration=calibration)
        for ranks, calibration in zip((2, 4), without, strict=True)
    ]
    expected = [
        model.estimate_s(row.size_bytes) for model, table in zip(models, tables, strict=True) for row in table.rows
    ]
    assert [row.held_out_s for row in report.rows] == pytest.approx(expected)


def test_rows_of_the_machine_asked_for_correct_the_model_there_only() -> None:
    table = gloo_table()
    bent = tuple(MeasuredRow(r.size_bytes, r.time_s * (2 if r.size_bytes == 65536 else 1), r.place) for r in table.rows)
    report = calibrate([MeasuredTable("t", bent, ranks=2)], LOOPBACK)
    here = group_on(LOOPBACK.place(1, 2), "gloo", calibration=report.calibration)
    for row in bent:
        assert here.estimate_s(row.size_bytes) == pytest.approx(row.time_s, rel=1e-6)
    elsewhere = group_on(LOOPBACK.place(1, 4), "gloo", calibration=report.calibration)
    truth = gloo_table(ranks=4)
    assert elsewhere.estimate_s(65536) == pytest.approx(truth.rows[4].time_s, rel=0.15)


def test_what_the_rows_cannot_tell_keeps_its_prior_and_is_named() -> None:
    report = calibrate([gloo_table(sizes=[64, 128])], LOOPBACK)
    assert any("gloo.efficiency.loopback" in note for note in report.notes)
    assert "gloo.efficiency.loopback" in report.unused
    assert "gloo.efficiency.network" in report.unused
    free = {c.name for c in Calibration.priors("gloo").constants.values() if c.log_std is not None}
    fitted = {c.name for c in report.calibration.constants.values() if c.fitted}
    assert free == fitted | set(report.undetermined) | set(report.unused)
    assert not report.calibration.constants["gloo.efficiency.loopback"].fitted
    priors = {name: constant.value for name, constant in Calibration.priors("gloo").constants.items()}
    assert report.calibration["gloo.efficiency.loopback"] == priors["gloo.efficiency.loopback"]


@pytest.mark.parametrize(("size", "fixed"), [(64 << 20, "gloo.efficiency.loopback"), (64, "gloo.launch_s")])
def test_one_row_fixes_the_constant_that_it_says_most_of(size: int, fixed: str) -> None:
    table = gloo_table(sizes=[size])
    report = calibrate([table], LOOPBACK)
    calibration = report.calibration
    assert [c.name for c in calibration.constants.values() if c.fitted] == [fixed]
    assert calibration.fitted_names == (fixed,)
    model = group_on(LOOPBACK.place(1, 2), "gloo", calibration=replace(calibration, curves=()))
    assert model.estimate_s(size) == pytest.approx(table.rows[0].time_s, rel=0.05)
    assert any(f"one row fixes {fixed} alone" in note for note in report.notes)
    assert (report.held_out_error, report.rows[0].held_out_s, calibration.residual_low) == (None, None, None)
    assert calibration_from(json.dumps(calibration.document()), "c.json") == calibration


def slowed(table: MeasuredTable, factor: float, rows: range) -> MeasuredTable:
    changed = (replace(row, time_s=row.time_s * (factor if n in rows else 1)) for n, row in enumerate(table.rows))
    return replace(table, rows=tuple(changed))


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([gloo_table(), slowed(gloo_table(), 20, range(15))], "t: row [0-9]+ .* contradicts t: row [0-9]+ "),
        ([slowed(gloo_table(), 1000, range(4, 5))], r"t: row 4 \(65,536 B on 2 ranks: .* contradicts t: row [35] "),
        ([slowed(gloo_table(), 1e-4, range(15))], "all others are faster than the machine can be"),
    ],
)
def test_rows_that_contradict_each_other_or_the_machine_are_named_and_refused(
    tables: list[MeasuredTable], words: str
) -> None:
    with pytest.raises(CalibrationError, match=words) as caught:
        calibrate(tables, LOOPBACK)
    assert len(str(caught.value)) < 1000
    report = calibrate(tables, LOOPBACK, accept_misfit=True)
    assert report.misfit.summary in str(caught.value)


def test_a_row_that_is_far_off_among_good_ones_is_no_misfit() -> None:
    report = calibrate([slowed(gloo_table(), 15, range(4, 5))], LOOPBACK)
    assert not report.misfit.contradictions
    assert 10 < report.misfit.worst_factor < 20
    assert 1 < report.misfit.mean_factor < MEAN_FACTOR
    assert any("row 4: outlier" in note for note in report.notes)


def test_host_costs_measured_beside_replace_constants_of_that_name() -> None:
    report = calibrate([gloo_table(ddp={"hook_s": 4e-6, "other_s": 1.0})], LOOPBACK)
    assert report.calibration["gloo.ddp.hook_s"] == 4e-6
    assert "gloo.ddp.other_s" not in report.calibration.constants


def test_a_host_cost_that_no_machine_has_is_refused() -> None:
    assert calibrate([gloo_table(ddp={"copy_s": 0.0})], LOOPBACK).calibration["gloo.ddp.copy_s"] == 0
    for what, value in (("hook_s", -1e-6), ("hook_s", math.nan), ("copy_Bps", 0.0), ("copy_slowdown", 0.0)):
        with pytest.raises(CalibrationError, match=rf"t: ddp\.{what}: {value} is out of range"):
            calibrate([gloo_table(ddp={what: value})], LOOPBACK)


@pytest.mark.parametrize(
    ("part", "key", "value", "says"),
    [
        *(
            ("constants", key, value, "is not ")
            for key, value in [
                ("log_std", "wide"), ("log_std", -0.1), ("log_std", math.nan), ("log_std", True), ("log_std", 1e9),
                ("unit", "B/s"), ("unit", 3), ("source", 3), ("fitted", "yes"),
            ]
        ),
        *(
            ("curves", key, "two", "'two' is not a whole number")
            for key in ("nodes", "gpus_per_node", "gpus_per_process")
        ),
    ],
)  # fmt: skip
def test_a_file_that_says_nonsense_is_refused(part: str, key: str, value: object, says: str) -> None:
    document = fitted().calibration.document()
    document[part][0][key] = value  # type: ignore[index]
    with pytest.raises(CalibrationError, match=rf"^c.json: {part}.0.{key}: .*{says}"):
        calibration_from(json.dumps(document), "c.json")


def test_the_backend_is_the_callers_else_the_tables_else_the_machines() -> None:
    gpus, header = load_topology("hgx-a100-4"), {"backend": "gloo"}
    for machine, table, backend in (
        (gpus, gloo_table(), "nccl"),
        (gpus, gloo_table(header=header), "gloo"),
        (LOOPBACK, gloo_table(), "gloo"),
    ):
        found = calibrate([table], machine).calibration
        assert found.backend == backend
        assert set(found.constants) == set(Calibration.priors(backend).constants)
    assert calibrate([gloo_table(header={"backend": "nccl"})], gpus, backend="gloo").calibration.backend == "gloo"
    for unknown, given in (({"backend": "ucc"}, None), ({}, "glo")):
        with pytest.raises(UnknownNameError, match=r"(t: unknown backend 'ucc'|backend: unknown backend 'glo')"):
            calibrate([gloo_table(header=unknown)], gpus, backend=given)


def test_bad_tables_and_node_counts_are_named() -> None:
    with pytest.raises(CalibrationError, match="no row to fit to"):
        calibrate([], LOOPBACK)
    with pytest.raises(InputError, match=r"t: 128 ranks: .*has 64"):
        calibrate([gloo_table(ranks=2), MeasuredTable("t", gloo_table().rows, ranks=128, nodes=1)], LOOPBACK)
    with pytest.raises(CalibrationError, match="3 ranks on 2 nodes"):
        calibrate([gloo_table(ranks=3)], LOOPBACK, nodes=2)
    with pytest.raises(CalibrationError, match="1 node counts for 2 tables"):
        calibrate([gloo_table(), gloo_table()], LOOPBACK, nodes=[1])
    with pytest.raises(CalibrationError, match="tables of gloo and nccl"):
        calibrate([gloo_table(header={"backend": "gloo"}), gloo_table(header={"backend": "nccl"})], LOOPBACK)
