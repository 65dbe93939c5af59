"""Systems whose data-parallel steps are published: a YAML and a CSV each in `steps/systems`, and what their rows mean.

Nothing is fitted to a system but its one-GPU step and, where its page has them, its own allreduce times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ddpsim.bucketing import BucketCaps
from ddpsim.calibrating.calibrate import calibrate
from ddpsim.calibrating.measured import read_table
from ddpsim.collectives.calibration import Calibration
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload
from studies.accuracy.rows import read_rows
from studies.accuracy.systems import machine
from studies.published.step_workloads import workload_of
from studies.published.under_ddp import alone_s, world_of_one_s
from studies.session import once_a_session

SYSTEMS = Path(__file__).with_name("steps") / "systems"

FITTED = ("dgx-1v",)
"""Systems that constants were fitted to before there were two halves."""

LATER = ("csc-mahti", "csc-puhti", "paik-a100", "paik-v100")
"""Systems found later, which were predicted before anything was changed: they judge."""

JUDGING = (
    *("baskerville", "gb300-rdma", "lambda-a100-pcie", "lambda-b200", "lambda-h100-sxm", "lambda-rtx3090"),
    *("lambda-rtx6000ada", "lambda-v100", "rtxpro6000", "two-gpu-schemes"),
    *LATER,
)
"""Systems that no structure and no constant may be chosen on: every other one by name, the second first, and `LATER`.

Of the 21 that no earlier fit used, before anything was chosen on the others; names of later ones change no half.
"""

Row = Mapping[str, str]
Filter = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What a page says of its machine and its steps, and which columns of its CSV hold what.

    Attributes:
        title, note: for the page.
        machine: shipped, or in `machines/`.
        gpu: whose multiprocessors and memory the workload's device has.
        rows: the CSV, from `steps/`.
        columns: of `step` (ms) and, where there are, `half` (of its rounding), `nodes`, `gpus` (of a node), `cap`
            (MiB), `scheme`, `compression` (a hook's name), `micro_batches`, `last_only`.
        one_gpu: values of columns that pick the row of one GPU in a row's group; `less` names a column to subtract from
            its step.
        one_under_ddp: whether that row ran under DDP, in a world of one: what DDP is predicted to add there is taken
            out of the workload's pace, and overheads are over that row.
        judged: values that pick the rows to predict.
        workload: as `step_workloads.workload_of` takes it.
        base: the row that overheads are over, predicted too where it ran under DDP; the one-GPU row where empty.
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
    note: str
    machine: str
    gpu: str
    rows: str
    columns: Mapping[str, str]
    one_gpu: Filter
    judged: Filter
    workload: Mapping[str, Any]
    one_under_ddp: bool = False
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

    @property
    def over(self) -> Filter:
        """The row under DDP that overheads are over; empty where that is one GPU's without it."""
        return self.base or (self.one_gpu if self.one_under_ddp else {})

    @property
    def judges(self) -> bool:
        """Whether no structure and no constant may be chosen on it."""
        return self.name in JUDGING


def systems() -> Iterator[System]:
    """Yield every system that is described, by name."""
    for path in sorted(SYSTEMS.glob("*.yaml")):
        yield System(name=path.stem, **yaml.safe_load(path.read_text(encoding="utf-8")))


def system_named(name: str) -> System:
    """Return the system `name`."""
    [found] = (system for system in systems() if system.name == name)
    return found


def cases(system: System) -> Iterator[tuple[str, Row]]:
    """Yield the dtype of gradients and the row of each case to judge."""
    for dtype in system.dtypes or ("",):
        for row in rows_of(system):
            left = any(matches(row, each) for each in system.left_out)
            if matches(row, system.judged) and not left and _ranks(system, row) > 1:
                yield dtype, row


def rows_of(system: System) -> tuple[Row, ...]:
    """Return every row of the system's CSV."""
    return read_rows(SYSTEMS.parent / system.rows)


def matches(row: Row, values: Filter) -> bool:
    """Whether `row` has one of the stated values in each column that `values` names."""
    return all(row[name] == value if isinstance(value, str) else row[name] in value for name, value in values.items())


def row_beside(system: System, row: Row, values: Filter) -> Row:
    """Return the one row of the group of `row` that `values` picks."""
    wanted = {**_group(system, row), **values}
    [found] = (each for each in rows_of(system) if matches(each, wanted))
    return found


def step_s(system: System, row: Row) -> float:
    """Return the measured step of a row."""
    return float(row[system.columns["step"]]) * 1e-3


def half_s(system: System, row: Row) -> float:
    """Return what rounding leaves open of it."""
    return float(row.get(system.columns.get("half", ""), "") or 0) * 1e-3


def one_gpu_s(system: System, row: Row) -> float:
    """Return the step of one GPU in the group of `row`, under DDP where the system says so."""
    found = row_beside(system, row, {name: value for name, value in system.one_gpu.items() if name != "less"})
    less = str(system.one_gpu.get("less", ""))
    return step_s(system, found) - (float(found[less]) * 1e-3 if less else 0.0)


def workload(system: System, dtype: str, row: Row) -> Workload:
    """Return the workload of `row`, gradients of `dtype`, at the pace of the one-GPU step of its group."""
    group, dtype = _group(system, row), scheme_of(system, row).get("parameters", dtype)
    key = (system.name, tuple(group.items()), dtype)
    if key not in _workloads:

        def at(one_s: float) -> Workload:
            return replace(workload_of(system.workload, group, system.gpu, one_s, dtype), device=system.gpu)

        one_s = one_gpu_s(system, row)
        if system.one_under_ddp:
            asked = options(system, row_beside(system, row, system.one_gpu))
            one_s = alone_s(one_s, lambda alone: world_of_one_s(at(alone), machine(system.machine), asked))
        _workloads[key] = at(one_s)
    return _workloads[key]


def place(system: System, row: Row) -> tuple[int, int | None]:
    """Return the nodes of a row and the GPUs that it uses of each; None is all."""
    nodes, gpus = (row.get(system.columns.get(name, ""), "") for name in ("nodes", "gpus"))
    return int(nodes or 1), int(gpus) if gpus else None


def options(system: System, row: Row) -> Options:
    """Return the options of a row's job."""
    columns, given = system.columns, dict(system.options)
    cap, scheme = (row.get(columns.get(name, ""), "") for name in ("cap", "scheme"))
    caps = BucketCaps(bucket_cap_mb=float(cap)) if cap else BucketCaps()
    if cap and system.first_bucket_mb is not None and float(cap) > system.first_bucket_mb:
        caps = BucketCaps(bucket_cap_mb=float(cap), first_bucket_mb=system.first_bucket_mb)
    given["scheme"] = scheme_of(system, row).get("scheme", "ddp")
    if hook := row.get(columns.get("compression", ""), "").removesuffix("_compress"):
        given["compression"] = hook
    if scheme == "overlap_individual":
        caps, given["gradient_as_bucket_view"] = BucketCaps(bucket_cap_mb=0), True
    if micro_batches := row.get(columns.get("micro_batches", "")):
        given["accumulate"] = int(micro_batches)
        given["sync"] = "last" if row.get(columns.get("last_only", "")) == "1" else "every"
    return Options(caps=caps, **given)


def calibration_of(system: System, row: Row) -> Calibration | None:
    """Return the calibration by the allreduce table of the row's layout; None where the page has none."""
    nodes, gpus = place(system, row)
    found = system.curves.get(f"{nodes}x{gpus}") or system.curves.get(str(nodes))
    tables = (found,) if isinstance(found, str) else tuple(found or ())
    return None if not tables or _ranks(system, row) == 1 else _calibrated(system.machine, tables, nodes or 1)


@once_a_session
def _calibrated(name: str, tables: tuple[str, ...], nodes: int) -> Calibration:
    read = [read_table(SYSTEMS.parent / table) for table in tables]
    return calibrate(read, machine(name), nodes=[nodes] * len(read)).calibration


def scheme_of(system: System, row: Row) -> Mapping[str, str]:
    """Return what a row's scheme stands for, as `System.schemes` says it; nothing for DDP."""
    return system.schemes.get(row.get(system.columns.get("scheme", ""), ""), {})


_workloads: dict[tuple[object, ...], Workload] = {}


def _group(system: System, row: Row) -> dict[str, str]:
    return {column: row[column] for column in system.group}


def _ranks(system: System, row: Row) -> int:
    nodes, gpus = place(system, row)
    return nodes * (gpus or machine(system.machine).place(1).world_size)
