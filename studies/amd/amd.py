"""Allreduces of AMD's machines, predicted without a calibration, beside public tables of rccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddpsim.calibrating.measured import read_table
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.prediction.doubts.collectives import factors
from ddpsim.topology.spec import load_topology

TABLES = Path(__file__).parent / "tables"
FITTED, HELD = "fitted", "held"
"""What a table's header says of its part: constants were chosen with the one half in sight, the other had no part."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row is a measured size beside its prediction, with the 80 % band."""

    table: str
    part: str
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
    """Return every row of 1 MiB and more of the tables."""
    return [row for path in sorted(TABLES.glob("*.csv")) for row in _of(path)]


def _of(path: Path) -> list[Row]:
    table = read_table(path)
    header = table.header
    placement = load_topology(header["machine"]).place(int(header["nodes"]))
    algorithm = {"default": "auto"}.get(header["algorithm"], header["algorithm"])
    transport = make_transport(placement, "nccl", None, CollectiveOptions(algorithm=algorithm, isolated=False))
    chosen = [row for row in table.rows if row.size_bytes >= MIB]
    bands = factors(placement, "rccl", None, [row.size_bytes for row in chosen], algorithm)
    found = []
    for row, (low, high) in zip(chosen, bands, strict=True):
        time_s = transport.time_s(Operation.ALLREDUCE, row.size_bytes)
        ends = time_s * low, time_s * high
        found.append(Row(path.stem, header["part"], row.size_bytes, row.time_s, time_s, *ends))
    return found


def text() -> str:
    """Return the page."""
    found = rows()
    lines = [
        "# AMD beside public tables",
        "",
        "| part | tables | rows | median error | in the 80 % band | median over tables of their medians |",
        "|---|--:|--:|--:|--:|--:|",
        *(_summary(part, [row for row in found if row.part == part]) for part in (HELD, FITTED)),
        "",
        "| table | part | MiB | measured ms | predicted ms | error | in the band |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    lines += [
        f"| {row.table} | {row.part} | {row.size_bytes / MIB:.0f} | {row.measured_s * 1e3:.3f} "
        f"| {row.predicted_s * 1e3:.3f} | {row.error:+.0%} | {'yes' if row.held else 'no'} |"
        for row in found
    ]
    return "\n".join([*lines, ""])


def _summary(part: str, chosen: Sequence[Row]) -> str:
    middle, held = median(abs(row.error) for row in chosen), sum(row.held for row in chosen) / len(chosen)
    tables = sorted({row.table for row in chosen})
    by_table = [median(abs(row.error) for row in chosen if row.table == name) for name in tables]
    return f"| {part} | {len(tables)} | {len(chosen)} | {middle:.1%} | {held:.0%} | {median(by_table):.1%} |"
