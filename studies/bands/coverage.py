"""How often bands hold, on tables and steps that had no part in them.

python -m studies.bands.coverage               # the page
python -m studies.bands.coverage --spreads     # the spreads of collectives, from which `doubts/spreads.py` is
python -m studies.bands.coverage --folds       # studies/accuracy/folds.json again; takes minutes
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddpsim.common.files import write_whole
from ddpsim.common.units import MIB
from ddpsim.prediction.doubts.spreads import COLLECTIVES
from studies.accuracy import residuals
from studies.accuracy.residuals import Row
from studies.accuracy.systems import LATER, load_all
from studies.bands.spreading import Judged, apart, judge, judge_families, spreads
from studies.command import parser
from studies.published import gpu_steps
from studies.published.gpu_systems import systems

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("bands.md")
TEMPLATE = Path(__file__).with_name("bands.md.in")


def main(arguments: Sequence[str]) -> int:
    """Print the page, or what the arguments ask for."""
    asked = parser(__doc__)
    asked.add_argument("--spreads", action="store_true", help="print the spreads of collectives")
    asked.add_argument("--folds", action="store_true", help="make studies/accuracy/folds.json again")
    given = asked.parse_args(arguments)
    if given.folds:
        write_whole(residuals.FOLDS, json.dumps(residuals.fit_folds(load_all(), _say), indent=1) + "\n")
        return 0
    if given.spreads:
        for name, (low, high) in spreads(residuals.rows()).items():
            print(f"{name}: {low:.2f} {high:.2f}")
        return 0
    print(text())
    return 0


def text() -> str:
    """Return the page."""
    return page(residuals.rows(), list(steps()))


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def steps() -> Iterator[gpu_steps.Judged]:
    """Yield every published step whose band is predicted, each without its page's measurements of the network."""
    for system in systems():
        yield from (step for step in gpu_steps.judged(replace(system, curves={})) if step.band_s is not None)


def page(rows: Sequence[Row], judged_steps: Sequence[gpu_steps.Judged]) -> str:
    """Return the page."""
    chose = set(sorted({row.site for row in rows})[::2])
    held, of = apart(rows)
    later = {system.name for system in LATER}
    cases = {
        "tables found last": judge([row for row in rows if row.table in later], rows),
        "all": judge(rows, rows),
        "every other site, by which families were divided": judge([row for row in rows if row.site in chose], rows),
        "the other sites, which judge": judge([row for row in rows if row.site not in chose], rows),
        "inside a node by direct paths, 1 MiB and more": judge([row for row in rows if inside(row)], rows),
        "of these the sites that judge": judge([row for row in rows if inside(row) and row.site not in chose], rows),
    }
    return TEMPLATE.read_text(encoding="utf-8").format(
        tables="\n".join(_table(cases)),
        apart=f"{held} of {of}",
        families="\n".join(family_rows(judge_families(rows))),
        spreads="\n".join(f"| {name} | {low:+.2f} | {high:+.2f} |" for name, (low, high) in spreads(rows).items()),
        steps="\n".join(step_rows(judged_steps)),
        pages="\n".join(_pages(judged_steps)),
    )


def inside(row: Row) -> bool:
    """Whether a row is of 1 MiB or more inside a node by direct paths."""
    return row.size_bytes >= MIB and COLLECTIVES[row.family][1].name == COLLECTIVES["NVLink"][1].name


def _table(cases: dict[str, Judged]) -> Iterator[str]:
    for name, found in cases.items():
        sites, tables = ({getattr(row, key) for row in found.rows} for key in ("site", "table"))
        cells = (
            f"{len(sites)} / {len(tables)} / {len(found.rows)}",
            f"{found.coverage:.0%}",
            f"{found.inside.mean():.0%}",
            f"{found.score:.3f}",
            f"{found.constant_score:.3f}",
            f"{found.width:.0%}",
            f"{found.constant_width:.0%}",
        )
        yield f"| {name} | " + " | ".join(cells) + " |"


def family_rows(found: dict[str, Judged]) -> Iterator[str]:
    """Yield the page's line of each family."""
    for name, own in found.items():
        sites = {row.site for row in own.rows}
        middle = sorted(own.widths)[len(own.widths) // 2]
        scores = f"{own.score:.3f} | {own.constant_score:.3f} | {own.score / own.constant_score:.2f}"
        yield f"| {name} | {len(sites)} | {len(own.rows)} | {own.inside.mean():.0%} | {middle:.0%} | {scores} |"


def step_rows(found: Sequence[gpu_steps.Judged]) -> Iterator[str]:
    """Yield the page's line of each step."""
    for step in found:
        times = (step.measured_s, step.predicted_s, *_band_s(step))
        measured, predicted, low, high = (f"{1e3 * each:.1f}" for each in times)
        held = "in" if step.inside else "out"
        most = step.predicted.doubts[0].name
        name = ", ".join(
            f"{column.replace('_', ' ')} {step.row[column]}" for column in step.system.label if step.row[column]
        )
        yield f"| {_page(step)} | {name} | {measured} | {predicted} | {low} to {high} | {held} | {most} |"


def _pages(found: Sequence[gpu_steps.Judged]) -> Iterator[str]:
    for name in dict.fromkeys(map(_page, found)):
        own = [step for step in found if _page(step) == name]
        widths = sorted((_band_s(step)[1] - _band_s(step)[0]) / step.predicted_s for step in own)
        inside = sum(step.inside for step in own)
        yield f"| {name} | {inside} of {len(own)} | {widths[len(widths) // 2]:.0%} |"


def _page(step: gpu_steps.Judged) -> str:
    return f"{step.system.name}, {step.dtype}" if len(step.system.dtypes) > 1 else step.system.name


def _band_s(step: gpu_steps.Judged) -> tuple[float, float]:
    assert step.band_s is not None
    return step.band_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
