"""Tables of operations other than an allreduce, and what rows of an allreduce say of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import Calibration, calibrate, load_topology
from ddpsim.calibrating.measured import MeasuredTable, parse_table
from ddpsim.collectives.calibration_file import calibration_from
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.common.files import json_text
from ddpsim.common.operation import Operation

MACHINE = load_topology("4xv100-pcie")
SIZES = [1024 * 4**k for k in range(9)]
TOGETHER = CollectiveOptions(isolated=False)
TRUE = Calibration.priors("nccl").with_values(
    {"nccl.efficiency.pcie.simple": 0.6, "nccl.ring.hop.pcie.simple_s": 5e-6}, source="test"
)


def table(operation: Operation, *, factor: float = 1.0) -> MeasuredTable:
    """Return what a machine of the constants `TRUE`, `factor` times as slow, would measure."""
    model = make_transport(MACHINE.place(), "nccl", TRUE, TOGETHER)
    rows = (f"{operation},{size},{model.time_s(operation, size) * factor * 1e6}" for size in SIZES)
    return parse_table("\n".join(["# ranks: 4", "# nccl: 2.30.3", "op,size_bytes,time_us", *rows]) + "\n", "table.csv")


@pytest.mark.parametrize("operation", [Operation.ALL_GATHER, Operation.BROADCAST, Operation.SENDRECV])
def test_constants_come_from_tables_of_any_operation(operation: Operation) -> None:
    report = calibrate([table(operation)], MACHINE)
    assert report.fit_error < 0.02
    assert {curve.operation for curve in report.calibration.curves} == {operation}
    alone = replace(report.calibration, curves=())
    for size in SIZES[5:]:
        found = make_transport(MACHINE.place(), "nccl", alone, TOGETHER).time_s(operation, size)
        assert found == pytest.approx(
            make_transport(MACHINE.place(), "nccl", TRUE, TOGETHER).time_s(operation, size), rel=0.05
        )


def test_each_operations_rows_correct_it_and_an_allreduces_the_rest() -> None:
    tables = [table(Operation.ALLREDUCE, factor=1.3), table(Operation.ALL_GATHER, factor=1.5)]
    fitted = calibrate(tables, MACHINE).calibration
    transport = make_transport(MACHINE.place(), "nccl", fitted, TOGETHER)
    for measured in tables:
        for row in measured.rows:
            assert transport.time_s(measured.operation, row.size_bytes) == pytest.approx(row.time_s, rel=1e-6)
    plain = make_transport(MACHINE.place(), "nccl", replace(fitted, curves=()), TOGETHER)
    size = SIZES[-1]
    carried, whole = (
        transport.time_s(each, size) / plain.time_s(each, size) for each in (Operation.REDUCE, Operation.ALLREDUCE)
    )
    assert carried == pytest.approx(whole)


def test_a_calibration_file_keeps_the_operation_of_its_rows() -> None:
    fitted = calibrate([table(Operation.REDUCE_SCATTER)], MACHINE).calibration
    assert calibration_from(json_text(fitted.document()), "c.json").curves == fitted.curves
    older = fitted.document()
    for curve in older["curves"]:  # type: ignore[attr-defined]
        del curve["operation"]
    assert {curve.operation for curve in calibration_from(json_text(older), "c.json").curves} == {Operation.ALLREDUCE}
