"""Allreduces inside an NVLink domain and across several, predicted without a calibration, beside public tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from ddpsim.calibrating.measured import read_table
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.prediction.doubts.collectives import factors
from ddpsim.prediction.doubts.spreads import COLLECTIVES
from ddpsim.topology.spec import load_topology

TABLES = Path(__file__).parent / "tables"
INSIDE, ACROSS = "inside a domain", "across domains"


@dataclass(frozen=True, slots=True)
class Row:
    """A row is a measured size beside its prediction, with the 80 % band."""

    table: str
    site: str
    where: str
    size_bytes: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def held(self) -> bool:
        """Whether the band has the measured time."""
        return self.low_s <= self.measured_s <= self.high_s


def rows() -> list[Row]:
    """Return every row of 1 MiB and more of the tables, with the version of NCCL that its header states."""
    return [row for path in sorted(TABLES.glob("*.csv")) for row in _of(path)]


def _of(path: Path) -> list[Row]:
    table = read_table(path)
    site, gpu = path.stem.split("_")[:2]
    topology = load_topology(f"{gpu}-nvl72")
    placement = topology.place(int(table.header["nodes"]))
    domain = topology.nvlink_domain
    assert domain is not None
    priors = Calibration.priors("nccl")
    major, minor = table.header["nccl"].split(".")[:2]
    known = priors.with_values({"nccl.version": int(major) * 1000 + int(minor)}, source="the table's")
    transport = make_transport(placement, "nccl", known, CollectiveOptions(isolated=False))
    sizes = [row.size_bytes for row in table.rows if row.size_bytes >= MIB]
    bands = factors(placement, "nccl", known, sizes)
    measured = {row.size_bytes: row.time_s for row in table.rows}
    found = []
    for size, (low, high) in zip(sizes, bands, strict=True):
        time_s = transport.time_s(Operation.ALLREDUCE, size)
        where = INSIDE if placement.nodes <= domain.most else ACROSS
        found.append(Row(path.stem, site, where, size, measured[size], time_s, time_s * low, time_s * high))
    return found


def spread(found: Sequence[Row]) -> tuple[float, float]:
    """Return the 80 % band of log(measured / predicted): the 90th percentile, and the lower end that boards have."""
    errors = sorted(-math.log1p(row.error) for row in found)
    return min(COLLECTIVES["NVSwitch"][1].low, quantiles(errors, n=10)[0]), quantiles(errors, n=10)[-1]


def covered(found: Sequence[Row]) -> float:
    """Return the share of rows in a band that the tables of other sites give."""
    inside = 0
    for row in found:
        low, high = spread([other for other in found if other.site != row.site])
        inside += low <= -math.log1p(row.error) <= high
    return inside / len(found)


def text() -> str:
    """Return the page."""
    found = rows()
    low, high = spread(found)
    lines = [
        "# Racks beside public tables",
        "",
        "| where | tables | rows | median error | in the 80 % band |",
        "|---|--:|--:|--:|--:|",
    ]
    for where in (INSIDE, ACROSS, "all"):
        chosen = [row for row in found if where in (row.where, "all")]
        middle, held = median(abs(row.error) for row in chosen), sum(row.held for row in chosen) / len(chosen)
        tables = len({row.table for row in chosen})
        lines.append(f"| {where} | {tables} | {len(chosen)} | {middle:.0%} | {held:.0%} |")
    lines += [
        "",
        f"The band from all sites is {low:.2f} to {high:.2f} (logarithms). One from the tables of the two other",
    ]
    lines += [f"sites holds {covered(found):.0%} of rows."]
    lines += ["", "| table | MiB | measured ms | predicted ms | error | in the band |", "|---|--:|--:|--:|--:|---|"]
    lines += [
        f"| {row.table} | {row.size_bytes / MIB:.0f} | {row.measured_s * 1e3:.2f} | {row.predicted_s * 1e3:.2f} "
        f"| {row.error:+.0%} | {'yes' if row.held else 'no'} |"
        for row in found
    ]
    return "\n".join([*lines, ""])
