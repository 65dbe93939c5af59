"""Published steps by system: overheads, sweeps of caps and bands, on the half to choose on and the half that judges.

`python -m studies.published.overheads [NAME ...]` prints the tables, `--rows` every row too, `--set=CONSTANT=VALUE`
(repeatable) predicts by other constants than the priors, of systems without a curve.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from statistics import fmean, median

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import GIVEN
from ddpsim.prediction.conditional_step import predict_other_reach
from studies.published.gpu_page import overhead_error, sweeps
from studies.published.gpu_steps import Judged, judge
from studies.published.gpu_systems import System, cases, systems

TELLING = 0.003
"""Share of a step from which on its overhead is more than noise; rows below tell of the step alone."""

MISSED = 2 / 0.2
"""What an 80 % band is charged for each unit by which it misses (Gneiting and Raftery 2007)."""

HALVES = {False: "choosing", True: "judging"}


@dataclass(frozen=True, slots=True)
class Row:
    """What a judged row says, in shares of its predicted step; a worker sends it back in place of the prediction.

    Attributes:
        label: of the row.
        measured, low, high: the step and the ends of its band.
        overhead, error: measured, and the prediction's relative error of it.
        alone, by_hand: the errors of one process, and of one process and all communication.
        other: the ends of the band of the other case, where cards without NVLink may reach each other or not.
    """

    system: str
    label: tuple[str, ...]
    measured: float
    low: float
    high: float
    overhead: float
    error: float
    alone: float
    by_hand: float
    other: tuple[float, float] | None

    @property
    def telling(self) -> bool:
        """Whether its overhead is more than noise."""
        return self.overhead >= TELLING * self.measured

    @property
    def inside(self) -> bool:
        """Whether the band holds the step."""
        return self.low <= self.measured <= self.high

    @property
    def inside_either(self) -> bool:
        """Whether the band holds the step, or that of the other case."""
        return self.inside or (self.other is not None and self.other[0] <= self.measured <= self.other[1])

    def score(self, low: float, high: float) -> float:
        """Return the interval score of a band, as a share of the predicted step."""
        return high - low + MISSED * (max(low - self.measured, 0.0) + max(self.measured - high, 0.0))


def row_of(judged: Judged) -> Row:
    """Return what a judged row says."""
    unit = judged.predicted_s
    low, high = judged.band_s or (unit, unit)
    case = predict_other_reach(judged.predicted) if judged.band_s else None
    return Row(
        judged.system.name, judged.label, judged.measured_s / unit, low / unit, high / unit,
        judged.overhead_s / unit, overhead_error(judged) if judged.overhead_s else 0.0,
        abs(judged.one_s - judged.measured_s) / unit, abs(judged.one_s + judged.comm_s - judged.measured_s) / unit,
        None if case is None else (case.step_s[1] / unit, case.step_s[2] / unit),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of one system, and what its sweeps of caps lose at the predicted best.

    Attributes:
        losses: of each sweep, as a share of the best step.
    """

    system: System
    rows: Sequence[Row]
    losses: Sequence[float]


def found(system: System, calibration: Calibration | None = None) -> Found:
    """Return the rows of `system`, by the priors or other constants.

    Where the dtype of gradients is assumed twice, those of the first.
    """
    first = (system.dtypes or ("",))[0]
    judged = [judge(system, dtype, row, calibration=calibration) for dtype, row in cases(system) if dtype == first]
    losses = []
    for _, swept in sweeps(judged):
        chosen, best = (min(swept, key=key) for key in (lambda row: row.predicted_s, lambda row: row.measured_s))
        losses.append(chosen.measured_s / best.measured_s - 1)
    return Found(system, [row_of(each) for each in judged], losses)


def constant(rows: Sequence[Row]) -> float:
    """Return the half-width of the symmetrical constant band that scores best on `rows`."""
    errors = sorted({abs(row.measured - 1) for row in rows})
    return min(errors, key=lambda half: fmean(row.score(1 - half, 1 + half) for row in rows))


def line(name: str, rows: Sequence[Row], losses: Iterable[float], half: float) -> str:
    """Return what a table says of some rows.

    Args:
        half: of the constant band that scores are over.
    """
    telling = [row for row in rows if row.telling]
    banded = [row for row in rows if row.low < row.high]
    errors = [abs(row.error) for row in telling]
    scores = [row.score(row.low, row.high) for row in banded], [row.score(1 - half, 1 + half) for row in banded]
    cells = (
        name,
        len(rows),
        f"{median(abs(1 / row.measured - 1) for row in rows):.1%}",
        f"{median(errors):.0%}" if errors else "-",
        f"{median(row.error for row in telling):+.0%}" if errors else "-",
        f"{sum(abs(1 - row.measured) < row.alone for row in telling)} of {len(telling)}",
        f"{sum(abs(1 - row.measured) < row.by_hand for row in telling)} of {len(telling)}",
        ", ".join(f"{loss:.1%}" for loss in losses) or "-",
        f"{fmean(row.inside for row in banded):.0%}" if banded else "-",
        f"{fmean(row.inside_either for row in banded):.0%}" if banded else "-",
        f"{median(row.high - row.low for row in banded):.0%}" if banded else "-",
        f"{fmean(scores[0]) / fmean(scores[1]):.2f}" if banded else "-",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = (
    "| {} | rows | step | overhead | signed | better than one process | than a sum by hand | lost at the best cap "
    "| inside | or in the other case's | width | score |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def tables(each: Sequence[Found]) -> Iterator[str]:
    """Yield the lines of the tables: a line a system of each half, then a line a half."""
    by_half: Mapping[bool, list[Found]] = {half: [one for one in each if one.system.judges == half] for half in HALVES}
    constants = {half: constant([row for one in ones for row in one.rows]) for half, ones in by_half.items() if ones}
    for half, ones in by_half.items():
        if ones:
            yield from ("", HEAD.format(HALVES[half]))
            yield from (line(one.system.name, one.rows, one.losses, constants[half]) for one in ones)
    yield from ("", HEAD.format("half"))
    for half, ones in by_half.items():
        if ones:
            rows = [row for one in ones for row in one.rows]
            yield line(
                HALVES[half],
                rows,
                sorted((loss for one in ones for loss in one.losses), reverse=True)[:3],
                constants[half],
            )
    yield ""
    for half, ones in by_half.items():
        medians = [median(errors) for one in ones if (errors := [abs(r.error) for r in one.rows if r.telling])]
        if medians:
            within = sum(error < 0.25 for error in medians)
            wide = f"constant band ± {constants[half]:.1%}"
            yield f"{HALVES[half]}: {within} of {len(medians)} systems under 25 %; {wide}"


def constants(values: Mapping[str, float]) -> Calibration | None:
    """Return the priors with other constants; None where there are none."""
    return Calibration.priors("nccl").with_values(values, source=GIVEN) if values else None


def constant_of(text: str) -> tuple[str, float]:
    """Return the constant that `CONSTANT=VALUE` names, and its value.

    Raises:
        argparse.ArgumentTypeError: no such constant, or no number.
    """
    name, _, value = text.partition("=")
    if name not in Calibration.priors("nccl").constants:
        raise argparse.ArgumentTypeError(f"{name!r} is no constant of `ddpsim constants`")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no number; write CONSTANT=VALUE") from None


def main(arguments: Sequence[str]) -> int:
    """Print the tables of the systems that are named, or of all."""
    known = {system.name: system for system in systems()}
    parser = argparse.ArgumentParser(
        prog="python -m studies.published.overheads",
        description="Published steps by system: overheads, sweeps of caps and bands.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of a system, all by default: {', '.join(known)}")
    parser.add_argument("--rows", action="store_true", help="print every row too")
    parser.add_argument(
        "--set", action="append", default=[], type=constant_of, metavar="CONSTANT=VALUE",
        help="predict by another constant than the prior, of systems without a curve; repeatable",
    )  # fmt: skip
    asked = parser.parse_args(arguments)
    if wrong := [name for name in asked.names if name not in known]:
        parser.error(f"no system {', '.join(wrong)}; there are {', '.join(known)}")
    with ProcessPoolExecutor(1) as pool:
        chosen = [system for name, system in known.items() if not asked.names or name in asked.names]
        each = list(pool.map(found, chosen, repeat(constants(dict(asked.set)))))
    if asked.rows:
        for one in each:
            for row in one.rows:
                step, over = f"{1 / row.measured - 1:+.1%}", f"{row.overhead / row.measured:+.2%}"
                band = f"{row.low - 1:+.1%} to {row.high - 1:+.1%}{'' if row.inside else ' missed'}"
                print(one.system.name, *row.label, f"step {step} overhead {over} off {row.error:+.0%} band {band}")
    print("\n".join(tables(each)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
