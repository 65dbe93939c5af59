"""All-gathers and reduce-scatters of a box whose allreduces alone are known: `python -m studies.accuracy`.

The rows are of `steps/rtxpro6000_collectives.csv`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from ddpsim.calibrating.calibrate import calibrate
from ddpsim.calibrating.measured import MeasuredTable, parse_table
from ddpsim.collectives.bands import band_factors
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.topology.spec import load_topology
from studies.accuracy.rows import read_rows
from studies.session import once_a_session

_HERE = Path(__file__).parent
PAGE = _HERE / "operations.md"
HALVES = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
MACHINE = load_topology("8xrtxpro6000")
"""Of the machines of eight such cards, the one that a source describes; where the box's cards sit is not published."""
GPUS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Judged:
    """A row beside its prediction.

    Attributes:
        error: predicted / measured - 1.
        inside: whether the measured time lies in the 80 % band.
    """

    operation: Operation
    gpus: int
    size_bytes: int
    error: float
    inside: bool


def table(operation: Operation, gpus: int) -> MeasuredTable:
    """Return the published rows of an operation on some GPUs."""
    lines = [
        f"{row['bytes']},{float(row['time_ms']) * 1e3},{row['busbw_GBps']}"
        for row in read_rows(_HERE / "rtxpro6000_collectives.csv")
        if Operation.named(row["op"]) is operation and int(row["gpus"]) == gpus
    ]
    header = [f"# operation: {operation}", f"# ranks: {gpus}", "# nodes: 1", "# nccl: 2.27.5"]
    return parse_table("\n".join([*header, "size_bytes,time_us,busbw", *lines]) + "\n", f"{operation}-{gpus}.csv")


@once_a_session
def of_allreduces() -> Calibration:
    """Return the constants and curves that the allreduces alone give."""
    return calibrate([table(Operation.ALLREDUCE, gpus) for gpus in GPUS], MACHINE).calibration


def judged(calibration: Calibration) -> Iterator[Judged]:
    """Yield every row of both halves beside what `calibration` predicts."""
    for operation in HALVES:
        for gpus in GPUS:
            placement, rows = MACHINE.place(1, gpus), table(operation, gpus).rows
            transport = make_transport(placement, "nccl", calibration, CollectiveOptions(isolated=False))
            ends = band_factors(placement, calibration, [row.size_bytes for row in rows], operation=operation)
            for row, (low, high) in zip(rows, ends, strict=True):
                time_s = transport.time_s(operation, row.size_bytes)
                inside = low <= row.time_s / time_s <= high
                yield Judged(operation, gpus, row.size_bytes, time_s / row.time_s - 1, inside)


def page(found: list[Judged]) -> str:
    """Return the page."""
    large = [each for each in found if each.size_bytes >= MIB]
    errors = [abs(each.error) for each in large]
    sizes = sorted({each.size_bytes for each in found})
    lines = [
        "# All-gathers and reduce-scatters predicted from allreduces",
        "",
        "Regenerate with `make accuracy`. A box of eight RTX PRO 6000 (PCIe, NCCL 2.27.5,",
        "`studies/accuracy/rtxpro6000_collectives.csv`): constants and curves are calibrated on its allreduces",
        "alone, on 2, 4 and 8 GPUs, and predict the halves. Errors are predicted / measured - 1; a size is of all",
        "parts together. Wanted: 10 % at 1 MiB and more.",
        "",
        f"| operation | GPUs | {' | '.join(_size(size) for size in sizes)} |",
        f"|---|--:|{'--:|' * len(sizes)}",
    ]
    for operation in HALVES:
        for gpus in GPUS:
            own = {each.size_bytes: each for each in found if (each.operation, each.gpus) == (operation, gpus)}
            lines.append(f"| {operation} | {gpus} | {' | '.join(f'{own[size].error:+.1%}' for size in sizes)} |")
    within, inside = sum(error <= 0.10 for error in errors), sum(each.inside for each in large)
    lines += [
        "",
        f"At 1 MiB and more: mean {mean(errors):.1%}, median {median(errors):.1%}, worst {max(errors):.1%}; "
        f"{within} of {len(errors)} within 10 %, {inside} in their 80 % bands.",
        "",
        "At these sizes a reduce-scatter takes, in the median, of an all-gather's time",
        ", ".join(f"{_beside(gpus):.2f} on {gpus} GPUs" for gpus in GPUS) + ": an allreduce, which is both, cannot",
        "tell them apart. Below 1 MiB starts and steps are what counts, which so few rows of allreduces do not tell",
        "apart either.",
        "",
    ]
    return "\n".join(lines)


def _beside(gpus: int) -> float:
    """Return the time of a reduce-scatter over that of an all-gather, as measured, 1 MiB and more."""
    gather, scatter = ([row.time_s for row in table(half, gpus).rows if row.size_bytes >= MIB] for half in HALVES)
    return median(one / other for one, other in zip(scatter, gather, strict=True))


def _size(size_bytes: int) -> str:
    return f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes // 1024} KiB"


def text() -> str:
    """Return the page."""
    return page(list(judged(of_allreduces())))
