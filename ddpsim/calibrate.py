"""Fit a transport's constants to measured allreduce tables of one machine type.

Few physical constants are fitted (log error, robust); what the rows cannot determine keeps its prior and is named.
Rows of exactly a machine and rank count also become a curve that corrects the model there. The held-out error is that
of the whole procedure, constants and curves, on rows that took no part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.collectives.calibration import Calibration, Constant, Curve, CurvePoint
from ddpsim.collectives.execute import PRIORS, make_transport
from ddpsim.collectives.transport import alone_s
from ddpsim.errors import CalibrationError, InputError
from ddpsim.fitting import Fit, Prior, Vector, fit
from ddpsim.measured import MeasuredRow, MeasuredTable
from ddpsim.topology.graph import Placement, Topology

_FOLDS = 4
_SMALLEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """A measured row beside the fitted model, and beside a model fitted without it.

    `fitted_s` is the physical model's, `held_out_s` that of constants and curve from the other rows.
    """

    table: str
    size_bytes: int
    measured_s: float
    fitted_s: float
    held_out_s: float


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """A calibration and how well it explains its rows.

    Attributes:
        fit_error: mean absolute relative error of the physical model on its own rows.
        held_out_error: the same of constants and curves on rows left out, a quarter at a time.
        notes: rows merged or left out, outliers, constants that kept their priors.
    """

    calibration: Calibration
    fit_error: float
    held_out_error: float
    notes: tuple[str, ...]
    rows: tuple[CalibrationRow, ...]


def calibrate(
    tables: Sequence[MeasuredTable],
    topology: Topology,
    nodes: Sequence[int | None] | int | None = None,
    *,
    backend: str | None = None,
    host_costs: Sequence[Constant] = (),
) -> CalibrationReport:
    """Return the constants of `topology`'s kinds of links as the tables show them.

    Args:
        tables: measured on machines of this topology, at one or several node counts.
        nodes: of each table; what its header says, else as many as its ranks need, where None.
        backend: `nccl` or `gloo`; what a table's header says, else gloo on a machine without GPUs, where None.
        host_costs: priors of constants named `BACKEND.ddp.WHAT`; a table's measured host costs replace them.

    Raises:
        CalibrationError: fewer than two rows, or tables of two backends.
        TopologyError: ranks that the topology cannot hold.
    """
    samples = [
        _Sample(table, place_table(table, topology, count))
        for table, count in zip(tables, _node_counts(tables, nodes), strict=True)
    ]
    if sum(len(table.rows) for table in tables) < 2:
        place = tables[0].rows[0].place if tables else None
        raise CalibrationError("one row determines nothing", place=place, remedy="measure several sizes")
    backend = backend or _backend(tables, topology)
    start = Calibration(backend, {constant.name: constant for constant in (*PRIORS[backend], *host_costs)})
    points = [
        _Point(sample, row) for sample in samples for row in sample.table.rows if row.size_bytes >= _SMALLEST_BYTES
    ]
    whole, calibration = _fitted(points, start)
    fitted = _predicted(points, replace(calibration, curves=()))
    held_out = _held_out(points, start)
    measured = np.array([point.row.time_s for point in points])
    low, high = np.percentile(np.log(measured / held_out), [10, 90])
    calibration = _with_host_costs(calibration, tables)
    calibration = replace(
        calibration,
        residual_low=float(low),
        residual_high=float(high),
        provenance={"tables": [table.name for table in tables], "rows": len(points), "topology": topology.name},
    )
    rows = (
        CalibrationRow(p.sample.table.name, p.row.size_bytes, p.row.time_s, float(f), float(h))
        for p, f, h in zip(points, fitted, held_out, strict=True)
    )
    return CalibrationReport(
        calibration, _error(fitted, measured), _error(held_out, measured), _notes(points, whole, tables), tuple(rows)
    )


def place_table(table: MeasuredTable, topology: Topology, nodes: int | None = None) -> Placement:
    """Return the placement of a table's ranks on `topology`.

    Raises:
        InputError: ranks that do not divide over the nodes, or that the topology cannot hold.
    """
    per_node = len(topology.template_of(0).gpus)
    count = nodes or table.nodes or max(1, math.ceil((table.ranks or 0) / per_node))
    if table.ranks is None:
        if topology.compute_device == "cpu":
            raise CalibrationError("no rank count", place=table.name, remedy="put `# ranks: 2` into its header")
        return topology.place(count)
    if table.ranks % count:
        raise CalibrationError(f"{table.ranks} ranks on {count} nodes", place=table.name, remedy="give --nodes")
    try:
        return topology.place(count, table.ranks // count)
    except InputError as error:
        error.at(f"{table.name}: {table.ranks} ranks")


@dataclass(frozen=True, slots=True)
class _Sample:
    table: MeasuredTable
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Point:
    sample: _Sample
    row: MeasuredRow


def _node_counts(tables: Sequence[MeasuredTable], nodes: Sequence[int | None] | int | None) -> list[int | None]:
    counts = [nodes] * len(tables) if nodes is None or isinstance(nodes, int) else list(nodes)
    if len(counts) != len(tables):
        raise CalibrationError(
            f"{len(counts)} node counts for {len(tables)} tables", place="--nodes", remedy="give one for each table"
        )
    return counts


def _backend(tables: Sequence[MeasuredTable], topology: Topology) -> str:
    named = {table.header["backend"] for table in tables if "backend" in table.header}
    if len(named) > 1:
        raise CalibrationError(f"tables of {' and '.join(sorted(named))}", remedy="calibrate each backend by itself")
    return named.pop() if named else "gloo" if topology.compute_device == "cpu" else "nccl"


def _fitted(points: Sequence[_Point], start: Calibration) -> tuple[Fit, Calibration]:
    """Return the fit of `start`'s free constants to the points, and the calibration with its curves."""
    priors = {name: Prior(c.value, c.log_std) for name, c in start.constants.items() if c.log_std is not None}
    measured = np.array([point.row.time_s for point in points])

    def predict(values: Mapping[str, float]) -> Vector:
        return _predicted(points, start.with_values(values, source="trial"))

    found = fit(predict, priors, measured)
    undetermined: list[str] = []
    while found.undetermined and len(found.undetermined) < len(priors):
        undetermined += found.undetermined
        priors = {name: prior for name, prior in priors.items() if name not in found.undetermined}
        found = fit(predict, priors, measured)
    found = replace(found, undetermined=(*undetermined, *found.undetermined))
    names = ", ".join(dict.fromkeys(point.sample.table.name for point in points))
    stds = dict(zip(found.values, np.sqrt(np.diag(found.covariance)).tolist(), strict=True))
    known = {name: value for name, value in found.values.items() if name not in found.undetermined}
    keep = [index for index, name in enumerate(found.values) if name in known]
    calibration = replace(
        start.with_values(known, source=f"fitted to {names}", log_std=stds),
        fitted_names=tuple(known),
        covariance=tuple(map(tuple, found.covariance[np.ix_(keep, keep)].tolist())),
        curves=_curves(points),
    )
    return found, calibration


def _predicted(points: Sequence[_Point], calibration: Calibration) -> Vector:
    """Return the time of each point, transports built once a sample."""
    transports = {
        id(sample): make_transport(sample.placement, calibration.backend, calibration, isolated=False)
        for sample in {id(point.sample): point.sample for point in points}.values()
    }
    times = (
        alone_s(transports[id(point.sample)].allreduce(point.row.size_bytes), transports[id(point.sample)].capacities)
        for point in points
    )
    return np.fromiter(times, float, len(points))


def _held_out(points: Sequence[_Point], start: Calibration) -> Vector:
    """Return the time of each point from constants and curves of the others, every fourth row left out at a time."""
    folds = min(_FOLDS, len(points))
    result = np.empty(len(points))
    for fold in range(folds):
        rest = [point for index, point in enumerate(points) if index % folds != fold]
        left_out = [index for index in range(len(points)) if index % folds == fold]
        result[left_out] = _predicted([points[index] for index in left_out], _fitted(rest, start)[1])
    return result


def _curves(points: Sequence[_Point]) -> tuple[Curve, ...]:
    rows: dict[tuple[str, int, int], list[CurvePoint]] = {}
    for point in points:
        placement = point.sample.placement
        key = (placement.topology.fingerprint(), placement.nodes, placement.gpus_per_node)
        rows.setdefault(key, []).append(CurvePoint(point.row.size_bytes, point.row.time_s))
    return tuple(
        Curve(*key, tuple(CurvePoint(size, _median(times)) for size, times in _by_size(found)))
        for key, found in rows.items()
    )


def _by_size(points: Sequence[CurvePoint]) -> list[tuple[int, list[float]]]:
    times: dict[int, list[float]] = {}
    for point in points:
        times.setdefault(point.size_bytes, []).append(point.time_s)
    return sorted(times.items())


def _median(times: Sequence[float]) -> float:
    return float(np.median(times))


def _with_host_costs(calibration: Calibration, tables: Sequence[MeasuredTable]) -> Calibration:
    """Return the calibration with the host costs that the tables' microbenchmarks measured."""
    for table in tables:
        costs = {f"{calibration.backend}.ddp.{what}": value for what, value in table.ddp.items()}
        known = {name: value for name, value in costs.items() if name in calibration.constants}
        calibration = calibration.with_values(known, source=f"measured beside {table.name}")
    return calibration


def _error(predicted: Vector, measured: Vector) -> float:
    return float(np.abs(predicted / measured - 1).mean())


def _notes(points: Sequence[_Point], found: Fit, tables: Sequence[MeasuredTable]) -> tuple[str, ...]:
    notes = [note for table in tables for note in table.notes]
    for index in found.outliers:
        factor = math.exp(found.residuals[index])
        notes.append(f"{points[index].row.place}: outlier, measured {factor:.3g} times the fitted time")
    if found.undetermined:
        notes.append(f"the rows do not determine {', '.join(found.undetermined)}: the priors stay")
    return tuple(notes)
