"""Published data-parallel steps of real GPUs, a YAML and a CSV each in `steps/systems`, and the same steps predicted.

Nothing is fitted to a system but its one-GPU step and, where its page has them, its own allreduce times.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ddpsim.bucketing import BucketCaps
from ddpsim.calibrating.calibrate import calibrate
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.measured import read_table
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation import Options
from ddpsim.simulation.costs import undisturbed
from ddpsim.workload import Workload
from tests.accuracy.step_workloads import workload_of
from tests.accuracy.systems import machine

SYSTEMS = Path(__file__).with_name("steps") / "systems"
Row = Mapping[str, str]
Filter = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What a page says of its machine and its steps, and which columns of its CSV hold what.

    Attributes:
        title, note, role: for the page; `role` says whether it judges.
        machine: shipped, or in `machines/`.
        gpu: whose multiprocessors and memory the workload's device has.
        rows: the CSV, from `steps/`.
        columns: of `step` (ms) and, where there are, `half` (of its rounding), `nodes`, `gpus` (of a node), `cap`
            (MiB), `scheme`, `micro_batches`, `last_only`.
        one_gpu: values of columns that pick the row of one GPU without DDP in a row's group; `less` names a column to
            subtract from its step.
        judged: values that pick the rows to predict.
        workload: as `step_workloads.workload_of` takes it.
        base: the row that overheads are over, predicted too; the one-GPU row where empty.
        left_out: rows that are not judged, by their values.
        group, label: columns that rows of one workload share, and that name a row.
        curves: tables of collectives by `NODESxGPUS`, or by nodes alone; one, or one an operation.
        dtypes: of gradients, each a table of its own; empty keeps the workload's.
        options: of the job.
        banded: values that pick the rows whose bands are predicted, which takes long for many parameters; empty: all.
        schemes: by what the scheme's column holds, the `scheme` as `--scheme` takes it, and the dtype of `parameters`
            where it is not the workload's.
        first_bucket_mb: cap of the first bucket in every row whose own is larger.
    """

    name: str
    title: str
    role: str
    note: str
    machine: str
    gpu: str
    rows: str
    columns: Mapping[str, str]
    one_gpu: Filter
    judged: Filter
    workload: Mapping[str, Any]
    base: Filter = field(default_factory=dict)
    left_out: Sequence[Filter] = ()
    group: Sequence[str] = ()
    label: Sequence[str] = ()
    curves: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    banded: Filter = field(default_factory=dict)
    schemes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    first_bucket_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A published step beside its prediction and what simpler predictors say.

    Attributes:
        system, dtype: of which table it is a row.
        row: of the CSV.
        measured_s, half_s: the step, and what rounding leaves open.
        one_s: as many steps of one GPU as the step has micro-batches.
        base_s, predicted_base_s: what the overhead is over, measured and predicted.
        predicted: one micro-batch of the step, in the mean.
        comm_s: the allreduce times of all its buckets, one after the other.
        hidden_s: what computing and communicating at once costs the predicted step.
    """

    system: System
    dtype: str
    row: Row
    measured_s: float
    half_s: float
    one_s: float
    base_s: float
    predicted_base_s: float
    predicted: Prediction
    comm_s: float
    hidden_s: float

    @property
    def label(self) -> tuple[str, ...]:
        """What names the row in its table."""
        return tuple(self.row[column] for column in self.system.label)

    @property
    def predicted_s(self) -> float:
        """The predicted step of the optimizer."""
        return _step_s(self.predicted)

    @property
    def band_s(self) -> tuple[float, float] | None:
        """The 80 % band of the step; None where it was not asked for."""
        if not self.predicted.ends:
            return None
        accumulate = self.predicted.options.accumulate
        return accumulate * self.predicted.low_s, accumulate * self.predicted.high_s

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the band, of a row that has one."""
        return self.band_s is not None and self.band_s[0] <= self.measured_s <= self.band_s[1]

    @property
    def overhead_s(self) -> float:
        """The measured overhead."""
        return self.measured_s - self.base_s

    @property
    def predicted_overhead_s(self) -> float:
        """The predicted overhead."""
        return self.predicted_s - self.predicted_base_s

    @property
    def cap_mb(self) -> float | None:
        """The row's cap in MiB, where it has one."""
        text = self.row.get(self.system.columns.get("cap", ""), "")
        return float(text) if text else None


def systems() -> Iterator[System]:
    """Yield every system that is described, by name."""
    for path in sorted(SYSTEMS.glob("*.yaml")):
        yield System(name=path.stem, **yaml.safe_load(path.read_text(encoding="utf-8")))


def judged(system: System, *, band: bool = True, calibration: Calibration | None = None) -> Iterator[Judged]:
    """Yield each row of `system` beside its prediction.

    Args:
        band: whether to predict bands too.
        calibration: constants in place of the priors, for systems without a curve.
    """
    for dtype, row in cases(system):
        yield judge(system, dtype, row, band=band, calibration=calibration)


def cases(system: System) -> Iterator[tuple[str, Row]]:
    """Yield the dtype of gradients and the row of each case to judge."""
    for dtype in system.dtypes or ("",):
        for row in _rows(system):
            left = any(_is(row, each) for each in system.left_out)
            if _is(row, system.judged) and not left and _ranks(system, row) > 1:
                yield dtype, row


def judge(system: System, dtype: str, row: Row, *, band: bool = True, calibration: Calibration | None = None) -> Judged:
    """Return one row of `system` beside its prediction; arguments as those of `judged`."""
    rows = _rows(system)
    group = {column: row[column] for column in system.group}
    found = _one(rows, {**group, **{k: v for k, v in system.one_gpu.items() if k != "less"}})
    less = str(system.one_gpu.get("less", ""))
    one_s = _seconds(system, found) - (float(found[less]) * 1e-3 if less else 0.0)
    workload = _workload(system, tuple(group.items()), _scheme(system, row).get("parameters", dtype), one_s)
    options = _options(system, row)
    base_s = predicted_base_s = one_s * options.accumulate
    in_force = calibration_of(system, row) or calibration
    predicted = _predicted(system, row, workload, band and _is(row, system.banded), in_force)
    free = _predicted(system, row, workload, False, undisturbed("nccl", in_force))
    if system.base:
        base = _one(rows, {**group, **system.base})
        base_s = _seconds(system, base)
        alone = calibration_of(system, base) or calibration
        predicted_base_s = _step_s(_predicted(system, base, workload, False, alone))
    transport = make_transport(predicted.placement, "nccl", in_force)
    comm_s = sum(transport.allreduce_s(bucket.size_bytes) for bucket in predicted.plan.buckets)
    if (schedule := predicted.trace.schedule) is not None:
        comm_s = sum(transport.time_s(message.op, message.size_bytes) for message in schedule)
    reductions = options.accumulate // options.sync_every
    half_s = float(row.get(system.columns.get("half", ""), "") or 0) * 1e-3
    return Judged(
        system, dtype, row, _seconds(system, row), half_s, one_s * options.accumulate, base_s, predicted_base_s,
        predicted, comm_s * reductions, max(_step_s(predicted) - _step_s(free), 0.0),
    )  # fmt: skip


def _step_s(predicted: Prediction) -> float:
    return predicted.options.accumulate * predicted.iteration_s


def _predicted(system: System, row: Row, workload: Workload, band: bool, calibration: Calibration | None) -> Prediction:
    nodes, gpus = _place(system, row)
    return predict(
        workload,
        machine(system.machine),
        nodes=nodes,
        gpus_per_node=gpus,
        options=_options(system, row),
        calibration=calibration,
        band=band,
        local_s=1.0,
        brief=True,
    )


def _options(system: System, row: Row) -> Options:
    columns, given = system.columns, dict(system.options)
    cap, scheme = (row.get(columns.get(name, ""), "") for name in ("cap", "scheme"))
    caps = BucketCaps(bucket_cap_mb=float(cap)) if cap else BucketCaps()
    if cap and system.first_bucket_mb is not None and float(cap) > system.first_bucket_mb:
        caps = BucketCaps(bucket_cap_mb=float(cap), first_bucket_mb=system.first_bucket_mb)
    given["scheme"] = _scheme(system, row).get("scheme", "ddp")
    if scheme == "overlap_individual":
        caps, given["gradient_as_bucket_view"] = BucketCaps(bucket_cap_mb=0), True
    if micro_batches := row.get(columns.get("micro_batches", "")):
        given["accumulate"] = int(micro_batches)
        given["sync"] = "last" if row.get(columns.get("last_only", "")) == "1" else "every"
    return Options(caps=caps, **given)


def _scheme(system: System, row: Row) -> Mapping[str, str]:
    return system.schemes.get(row.get(system.columns.get("scheme", ""), ""), {})


def calibration_of(system: System, row: Row) -> Calibration | None:
    """Return the calibration by the allreduce table of the row's layout; None where the page has none."""
    nodes, gpus = _place(system, row)
    found = system.curves.get(f"{nodes}x{gpus}") or system.curves.get(str(nodes))
    tables = (found,) if isinstance(found, str) else tuple(found or ())
    return None if not tables or _ranks(system, row) == 1 else _calibrated(system.machine, tables, nodes or 1)


@cache
def _calibrated(name: str, tables: tuple[str, ...], nodes: int) -> Calibration:
    read = [read_table(SYSTEMS.parent / table) for table in tables]
    return calibrate(read, machine(name), nodes=[nodes] * len(read)).calibration


@cache
def _read(path: Path) -> tuple[Row, ...]:
    with path.open(encoding="utf-8") as file:
        return tuple(csv.DictReader(line for line in file if not line.startswith("#")))


def _rows(system: System) -> tuple[Row, ...]:
    return _read(SYSTEMS.parent / system.rows)


_workloads: dict[tuple[object, ...], Workload] = {}


def _workload(system: System, group: tuple[tuple[str, str], ...], dtype: str, one_s: float) -> Workload:
    key = (system.name, group, dtype)
    if key not in _workloads:
        named = workload_of(system.workload, dict(group), system.gpu, one_s, dtype)
        _workloads[key] = replace(named, device=system.gpu)
    return _workloads[key]


def _place(system: System, row: Row) -> tuple[int, int | None]:
    nodes, gpus = (row.get(system.columns.get(name, ""), "") for name in ("nodes", "gpus"))
    return int(nodes or 1), int(gpus) if gpus else None


def _ranks(system: System, row: Row) -> int:
    nodes, gpus = _place(system, row)
    return nodes * (gpus or machine(system.machine).place(1).world_size)


def _seconds(system: System, row: Row) -> float:
    return float(row[system.columns["step"]]) * 1e-3


def _one(rows: Sequence[Row], values: Filter) -> Row:
    [found] = [row for row in rows if _is(row, values)]
    return found


def _is(row: Row, values: Filter) -> bool:
    return all(row[name] == value if isinstance(value, str) else row[name] in value for name, value in values.items())
