"""Fit a transport's constants to measured tables of one machine type.

Few physical constants are fitted (log error, robust); what the rows cannot determine keeps its prior and is named.
Rows of exactly a machine and rank count also become a curve that corrects the model there. The held-out error is that
of the whole procedure, constants and curves, where nothing was measured: on a rank count left out, or on the largest
sizes.

Start at `calibrate`; `fit_samples` is one fit. Before them stand the rows that are left out (`drop_host_timed_rows`): a
loop that waits on the host for every collective measures the process, its launch and its wake-up until the message is
large, and DDP waits for none. Such rows neither fix a latency nor correct one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

import numpy as np

from ddpsim.calibrating.fitting import Fit, Prior, Vector, find_dominant_constant, fit
from ddpsim.calibrating.measured import MeasuredTable
from ddpsim.calibrating.misfit import Misfit, misfit
from ddpsim.calibrating.samples import Sample, predict_times
from ddpsim.collectives.calibration import PRIORS, Calibration, Curve, CurvePoint
from ddpsim.collectives.conditions import GPU_BACKENDS
from ddpsim.collectives.nccl.versions import OLD
from ddpsim.common.errors import CalibrationError, UnknownNameError, list_few
from ddpsim.common.units import format_count, format_time
from ddpsim.topology.graph import Topology

SHORT_S = 100e-6
"""Rows that the priors predict to be shorter are bound by latency: they say what a collective takes whatever its
size."""

MOST_FACTOR, MOST_S = 2.5, 35e-6
"""How far such rows, timed on the device by nccl-tests, lie above the priors at most; beyond both, the host timed them.

`studies/accuracy/test_host_timed.py` holds every kept table of one node to it, but one that a loop in torch timed; the
farthest is 31 us off.
"""

FLAT = 2.0
"""The longest of such rows over the shortest where the host sets them; a slow link's times grow with their bytes."""

_LEFT = 4.0
"""A row this many times the host's floor is taken as the device's: a quarter of it is the host's at most."""


def drop_host_timed_rows(sample: Sample, start: Calibration) -> MeasuredTable:
    """Return the table of `sample` without rows that the host set, and with a note where there are some.

    Raises:
        CalibrationError: a table of nothing else.
    """
    floor_s, table = host_floor_s(sample, start), sample.table
    if floor_s is None:
        return table
    rows = tuple(row for row in table.rows if row.time_s >= _LEFT * floor_s)
    what = f"timed on the host: no collective takes less than about {format_time(floor_s)}, whatever its bytes"
    if not rows:
        remedy = "measure with nccl-tests, or with events on the device"
        raise CalibrationError(what, place=table.name, remedy=remedy)
    note = f"{table.name}: {what}; {format_count(len(table.rows) - len(rows), 'row')} left out"
    return replace(table, rows=rows, notes=(*table.notes, note))


def latencies_held(start: Calibration) -> Calibration:
    """Return `start` with its latencies held at their priors: large messages that the host timed determine none."""
    held = {name: replace(each, log_std=None) for name, each in start.constants.items() if each.unit == "s"}
    return replace(start, constants={**start.constants, **held})


def host_floor_s(sample: Sample, start: Calibration) -> float | None:
    """Return the time that a table's short collectives take on the host; None of a table timed on the device."""
    if start.backend not in GPU_BACKENDS or sample.placement.nodes > 1 or sample.isolated:
        return None
    short = list(_list_latency_rows(sample, start))
    if len(short) < 2:
        return None
    # Three signs, all of them needed: far above the priors in seconds and as a factor, and the same whatever the bytes.
    # A slow link lies above the priors too, but its times grow; a fast one measured well is flat, but near them.
    times = [measured_s for measured_s, _ in short]
    above = median(measured_s - predicted_s for measured_s, predicted_s in short)
    factor = median(measured_s / predicted_s for measured_s, predicted_s in short)
    host_timed = above > MOST_S and factor > MOST_FACTOR and max(times) <= FLAT * min(times)
    return median(times) if host_timed else None


def _list_latency_rows(sample: Sample, start: Calibration) -> Iterator[tuple[float, float]]:
    """Yield measured and predicted times of the rows that are bound by latency."""
    for measured_s, predicted_s in zip(sample.measured.tolist(), sample.predict(start).tolist(), strict=True):
        if predicted_s < SHORT_S:
            yield measured_s, predicted_s


_FOLDS = 4
"""Parts of the rows: a fit without one of them rests on three quarters of the user's rows."""
_MOST_NAMES = 3
"""Constants that a note names of those that kept their priors; chosen by hand, the report has all."""
RANK_COUNTS, LARGEST_SIZES = "a rank count", "the largest sizes"
"""What held-out errors are of."""


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """A measured row with its time by the fitted model, and by a model that was fitted without it.

    `fitted_s` is the physical model's; `held_out_s` that of constants and curves fitted without the row's rank count or
    without the largest sizes, None for a row that every fit includes.
    """

    table: str
    size_bytes: int
    measured_s: float
    fitted_s: float
    held_out_s: float | None


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """A calibration, and how well it explains its rows.

    Attributes:
        fit_error: mean absolute relative error of the physical model on its own rows.
        held_out_error: the same of constants and curves on rows left out; None of a single row.
        held_out: what was left out: `RANK_COUNTS`, one at a time, where there are several, else `LARGEST_SIZES`, a
            quarter of each table's rows; None of a single row.
        undetermined: constants that the rows say little of, which kept their priors.
        unused: constants that no row depends on, which kept theirs.
        notes: rows merged or left out, outliers, constants that kept their priors.
        misfit: how far the rows are from the constants, and which rows contradict each other.
    """

    calibration: Calibration
    fit_error: float
    held_out_error: float | None
    held_out: str | None
    undetermined: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    rows: tuple[CalibrationRow, ...]
    misfit: Misfit

    def __repr__(self) -> str:
        return f"<CalibrationReport: {len(self.rows)} rows, {self.fit_error:.1%} off, {self.calibration!r}>"


def calibrate(
    tables: Sequence[MeasuredTable],
    topology: Topology,
    nodes: Sequence[int | None] | int | None = None,
    *,
    backend: str | None = None,
    accept_misfit: bool = False,
    progress: Callable[[int, int], None] = lambda done, fits: None,
) -> CalibrationReport:
    """Return the constants of `topology`'s kinds of links as the tables show them, and DDP's costs.

    Host costs that a table's microbenchmark measured replace their priors.

    Args:
        tables: measured on machines of this topology, at one or several node counts.
        nodes: of each table; what its header says, else as many as its ranks need, where None.
        backend: `nccl` or `gloo`; what a table's header says, else gloo on a machine without GPUs, where None.
        accept_misfit: whether constants are wanted that explain the rows worse than `ddpsim.calibrating.misfit` allows.
        progress: called after each fit with how many there were, and how many there are in all.

    Raises:
        CalibrationError: no rows, or rows that contradict each other or the machine, or that the host timed; a version
            of NCCL that does not run on its GPUs; links that carry more than they have; tables of two backends, or of
            NCCL on a machine without GPUs; a host cost out of range.
        UnknownNameError: a backend that is not modelled.
        TopologyError: ranks that the topology cannot hold.
    """
    counts = _node_counts(tables, nodes)
    samples = [Sample.of(table, topology, each) for table, each in zip(tables, counts, strict=True)]
    if not any(sample.sizes for sample in samples):
        raise CalibrationError("no row to fit to", remedy="give a table of measured collectives")
    start = _priors(tables, topology, backend)
    # 1. The rows that count: those that only the host set are left out, and then no latency is fitted.
    whole, tables = tables, [drop_host_timed_rows(sample, start) for sample in samples]
    if any(len(counted.rows) < len(table.rows) for counted, table in zip(tables, whole, strict=True)):
        start = latencies_held(start)
    samples = [Sample.of(table, topology, each) for table, each in zip(tables, counts, strict=True)]
    if start.backend == "nccl":
        _refuse_versions(samples)
    samples = with_versions(samples, start)
    # 2. One fit of all rows, refused where they contradict each other or the machine.
    measured = np.concatenate([sample.measured for sample in samples])
    folds = _split_folds(samples) if len(measured) > 1 else []
    done, fits = count(1), 1 + len(folds) + (min(_FOLDS, len(measured)) if folds else 0)

    def step() -> None:
        progress(next(done), fits)

    whole_fit, calibration = fit_samples(samples, start)
    step()
    judged = misfit(samples, whole_fit.residuals)
    judged.refuse(accepted=accept_misfit)
    if not accept_misfit:
        _refuse_efficiencies(calibration)
    if start.backend in GPU_BACKENDS:
        version = max(sample.version for sample in samples)
        calibration = calibration.with_values({f"{start.backend}.version": version}, source="the tables' version")
    # 3. How good it is: on its own rows without curves, which would return every row as measured; on every
    # fourth row left out, which is the residual of its bands; on a rank count or sizes left out, which is reported.
    fitted = predict_times(samples, replace(calibration, curves=()))
    if folds:
        calibration = with_residuals(samples, start, calibration, step)
    held_out = _predict_held_out(samples, start, folds, step)
    calibration = replace(
        _with_host_costs(calibration, tables),
        provenance={"tables": [table.name for table in tables], "rows": len(measured), "topology": topology.name},
    )
    left_out = ~np.isnan(held_out)
    places = [(sample.table, row) for sample in samples for row in sample.table.rows]
    rows = (
        CalibrationRow(table.name, row.size_bytes, row.time_s, f, h)
        for (table, row), f, h in zip(
            places, fitted.tolist(), [None if math.isnan(each) else each for each in held_out.tolist()], strict=True
        )
    )
    return CalibrationReport(
        calibration,
        _error(fitted, measured),
        _error(held_out[left_out], measured[left_out]) if left_out.any() else None,
        (RANK_COUNTS if _has_several_counts(samples) else LARGEST_SIZES) if folds else None,
        whole_fit.undetermined,
        whole_fit.unused,
        _notes(samples, whole_fit),
        tuple(rows),
        judged,
    )


def _refuse_versions(samples: Sequence[Sample]) -> None:
    """Refuse a table whose header states a version of NCCL that does not run on the machine's GPUs.

    Raises:
        CalibrationError: it names the table, the version and the GPU.
    """
    for sample in samples:
        if sample.version_known and not sample.runs(sample.version):
            major, minor = divmod(sample.version, 1000)
            model = sample.placement.classes[0].template.gpus[0].model
            what = f"NCCL {major}.{minor} does not run on {model}"
            raise CalibrationError(what, place=sample.table.name, remedy="name their machine, or mend the version")


MOST_EFFICIENCY = 4 / 3
"""The most of what NCCL counts a link as that bytes can take: a link's wire over that count.

PCIe 3.0 x16 carries 15.75 GB/s and is counted 12 (1.31), NVLink of V100 and A100 25 and 20 (1.25), xGMI 4/3 by
definition (`ddpsim/topology/hardware.py`).
"""


def _refuse_efficiencies(calibration: Calibration) -> None:
    """Refuse constants that say that links carry more than they have.

    Raises:
        CalibrationError: it names the constant and its value.
    """
    for name in calibration.fitted_names if calibration.backend in GPU_BACKENDS else ():
        if ".efficiency." in name and calibration[name] > MOST_EFFICIENCY:
            what = f"{name} comes to {calibration[name]:.3g}, and no link carries over {MOST_EFFICIENCY:.3g}"
            remedy = "name their machine, or accept it with `accept_misfit`"
            raise CalibrationError(what, place="topology", remedy=remedy)


def with_versions(samples: Sequence[Sample], start: Calibration) -> list[Sample]:
    """Return the samples with the NCCL version that explains their rows best, where their header states none.

    Two lines of constants are known; where the older explains the rows better, it is taken. A single row tells nothing.
    """
    alone = sum(len(sample.sizes) for sample in samples) < 2
    if start.backend != "nccl" or alone or all(sample.version_known for sample in samples):
        return list(samples)
    older = [sample if sample.version_known or not sample.runs(OLD) else sample.with_version(OLD) for sample in samples]
    losses = [fit_samples(candidate, start)[0].loss for candidate in (samples, older)]
    return older if losses[1] < losses[0] else list(samples)


def fit_samples(samples: Sequence[Sample], start: Calibration) -> tuple[Fit, Calibration]:
    """Return the fit of `start`'s free constants to the samples, and the calibration with it and their curves.

    What the rows do not determine is put back to its prior, and the rest fitted again, until all that is fitted is
    determined. A single row fixes the one
    constant that it depends on most.
    """
    priors = {name: Prior(c.value, c.log_std) for name, c in start.constants.items() if c.log_std is not None}
    measured = np.concatenate([sample.undisturbed for sample in samples])

    def predict(values: Mapping[str, float]) -> Vector:
        return predict_times(samples, start.with_values(values, source="trial"))

    result = fit(predict, priors, measured)
    unused, undetermined = result.unused, list[str]()
    if len(measured) == 1:
        only = find_dominant_constant(predict, priors, measured)
        undetermined += [name for name in result.values if name != only]
        result = fit(predict, {only: priors[only]}, measured)
    while result.undetermined and len(result.undetermined) < len(result.values):
        undetermined += result.undetermined
        priors = {name: priors[name] for name in result.values if name not in result.undetermined}
        result = fit(predict, priors, measured, result.values)
    result = replace(result, undetermined=(*undetermined, *result.undetermined), unused=unused)
    names = ", ".join(dict.fromkeys(sample.table.name for sample in samples))
    stds = dict(zip(result.values, np.sqrt(np.diag(result.covariance)).tolist(), strict=True))
    # Where none is determined, all were fitted, and all go back to their priors here.
    known = {name: value for name, value in result.values.items() if name not in result.undetermined}
    keep = [index for index, name in enumerate(result.values) if name in known]
    calibration = replace(
        start.with_values(known, source=f"fitted to {names}", log_std=stds),
        fitted_names=tuple(known),
        covariance=tuple(map(tuple, result.covariance[np.ix_(keep, keep)].tolist())),
        curves=_curves(samples),
    )
    return result, calibration


def with_residuals(
    samples: Sequence[Sample], start: Calibration, calibration: Calibration, step: Callable[[], None] = lambda: None
) -> Calibration:
    """Return `calibration` with the 10th and 90th percentile of its error on rows that a fit of constants left out.

    Every fourth row at a time is left out, so that each is predicted by a fit that has its neighbours in size: the band
    of this machine and rank count.

    Args:
        step: called after each fit.
    """
    measured = np.concatenate([sample.measured for sample in samples])
    rows = [(index, row) for index, sample in enumerate(samples) for row in range(len(sample.sizes))]
    parts = min(_FOLDS, len(rows))
    folds = [
        [[row for number, (at, row) in enumerate(rows) if at == index and number % parts == fold]
         for index in range(len(samples))]
        for fold in range(parts)
    ]  # fmt: skip
    by_constants = _predict_held_out(samples, start, folds, step, curves=False)
    low, high = np.percentile(np.log(measured / by_constants), [10, 90])
    return replace(calibration, residual_low=float(low), residual_high=float(high))


def _node_counts(tables: Sequence[MeasuredTable], nodes: Sequence[int | None] | int | None) -> list[int | None]:
    counts = [nodes] * len(tables) if nodes is None or isinstance(nodes, int) else list(nodes)
    if len(counts) != len(tables):
        raise CalibrationError(
            f"{len(counts)} node counts for {len(tables)} tables", place="nodes", remedy="give one for each table"
        )
    return counts


def _priors(tables: Sequence[MeasuredTable], topology: Topology, backend: str | None) -> Calibration:
    """Return the priors of `backend`, else of the tables', else of the topology's own."""
    place = "backend"
    if backend is None:
        named = {table.header["backend"]: table.name for table in tables if "backend" in table.header}
        if len(named) > 1:
            what = f"tables of {' and '.join(sorted(named))}"
            raise CalibrationError(what, remedy="calibrate each backend by itself")
        backend, place = next(iter(named.items()), (topology.backend, place))
    if backend not in PRIORS:
        raise UnknownNameError.among("backend", backend, PRIORS, place=place)
    if backend == "nccl" and topology.backend == "rccl":
        backend = topology.backend  # as in torch, where nccl is RCCL on AMD's GPUs
    if backend in GPU_BACKENDS and topology.backend != backend:
        what = f"{backend.upper()} needs {'GPUs' if backend == 'nccl' else 'AMD GPUs'}, {topology.name} has none"
        raise CalibrationError(what, place=place, remedy="name their machine")
    return Calibration.priors(backend)


def _has_several_counts(samples: Sequence[Sample]) -> bool:
    return len({sample.placement.world_size for sample in samples if sample.sizes}) > 1


def _split_folds(samples: Sequence[Sample]) -> list[list[list[int]]]:
    """Return by fold and sample the rows that are left out: a rank count a fold, or one fold of the largest sizes.

    Both are extrapolation, which is what a calibration is for: rows left out between their neighbours flatter any fit.
    """
    if _has_several_counts(samples):
        counts = dict.fromkeys(sample.placement.world_size for sample in samples if sample.sizes)
        return [
            [list(range(len(sample.sizes))) if sample.placement.world_size == count else [] for sample in samples]
            for count in counts
        ]
    largest = []
    for sample in samples:
        ascending = sorted(range(len(sample.sizes)), key=lambda row: sample.sizes[row])
        largest.append(sorted(ascending[len(ascending) - len(ascending) // _FOLDS :]))
    if not any(largest):  # tables of fewer rows than are parts: the largest row of all
        sizes = [(size, index, row) for index, sample in enumerate(samples) for row, size in enumerate(sample.sizes)]
        _, index, row = max(sizes)
        largest[index] = [row]
    return [largest]


def _predict_held_out(
    samples: Sequence[Sample],
    start: Calibration,
    folds: Sequence[Sequence[Sequence[int]]],
    step: Callable[[], None],
    *,
    curves: bool = True,
) -> Vector:
    """Return the time of each row by a fit of the rows outside its fold; NaN of rows that are in no fold.

    Args:
        folds: by fold and sample, the rows that are left out.
        step: called after each fit.
        curves: whether curves correct the constants.
    """
    predicted_s = [np.full(len(sample.sizes), math.nan) for sample in samples]
    for fold in folds:
        rest = [[row for row in range(len(s.sizes)) if row not in out] for s, out in zip(samples, fold, strict=True)]
        _, calibration = fit_samples(
            [s.select_rows(rows) for s, rows in zip(samples, rest, strict=True) if rows], start
        )
        step()
        used = calibration if curves else replace(calibration, curves=())
        for sample, out, times in zip(samples, fold, predicted_s, strict=True):
            if out:
                times[list(out)] = sample.select_rows(out).predict(used)
    return np.concatenate(predicted_s)


def _curves(samples: Sequence[Sample]) -> tuple[Curve, ...]:
    """Return a curve for each machine, rank count, algorithm and operation.

    A size measured in several tables takes the median. Of tables by one process a GPU and by one for several, those
    that launch as DDP does are taken.
    """
    by_place: dict[tuple[str, int, int, str, str], list[Curve]] = {}
    for curve in (sample.curve() for sample in samples):
        key = (curve.topology, curve.nodes, curve.gpus_per_node, curve.algorithm, str(curve.operation))
        by_place.setdefault(key, []).append(curve)
    return tuple(_join_curves(curves) for curves in by_place.values())


def _join_curves(curves: Sequence[Curve]) -> Curve:
    fewest = min(curve.gpus_per_process for curve in curves)
    alike = [curve for curve in curves if curve.gpus_per_process == fewest]
    times: dict[int, list[float]] = {}
    for point in (point for curve in alike for point in curve.points):
        times.setdefault(point.size_bytes, []).append(point.time_s)
    points = (CurvePoint(size, float(np.median(values))) for size, values in sorted(times.items()))
    return replace(alike[0], points=tuple(points))


def _with_host_costs(calibration: Calibration, tables: Sequence[MeasuredTable]) -> Calibration:
    """Return the calibration with the host costs that the tables' microbenchmarks measured.

    Raises:
        CalibrationError: a cost that no machine has.
    """
    for table in tables:
        costs = {f"{calibration.backend}.ddp.{what}": value for what, value in table.ddp.items()}
        known = {name: value for name, value in costs.items() if name in calibration.constants}
        for name, value in known.items():
            if not calibration.constants[name].allows(value):
                place = f"{table.name}: ddp.{name.rpartition('.')[2]}"
                raise CalibrationError(f"{value!r} is out of range", place=place, remedy="measure it again")
        calibration = calibration.with_values(known, source=f"measured beside {table.name}")
    return calibration


def _error(predicted: Vector, measured: Vector) -> float:
    return float(np.abs(predicted / measured - 1).mean())


def _notes(samples: Sequence[Sample], whole_fit: Fit) -> tuple[str, ...]:
    notes = [note for sample in samples for note in sample.table.notes]
    places = [row.place for sample in samples for row in sample.table.rows]
    for index in whole_fit.outliers:
        factor = math.exp(whole_fit.residuals[index])
        notes.append(f"{places[index]}: outlier, measured {factor:.3g} times the fitted time")
    if len(places) == 1:
        fixed = ", ".join(name for name in whole_fit.values if name not in whole_fit.undetermined) or "nothing"
        notes.append(f"{places[0]}: one row fixes {fixed} alone, and is no evidence of how well the constants predict")
    if whole_fit.undetermined:
        notes.append(f"the rows do not determine {list_few(whole_fit.undetermined, _MOST_NAMES)}: the defaults stay")
    if whole_fit.unused:
        notes.append(f"no row depends on {list_few(whole_fit.unused, _MOST_NAMES)}: the defaults stay")
    return tuple(notes)
