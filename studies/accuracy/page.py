"""The accuracy page as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from studies.accuracy.bands import Band
from studies.accuracy.cases import Errors
from studies.accuracy.ring_tree import APART, ENOUGH, Score, Verdict

_HEAD = """# Accuracy of allreduce predictions

Regenerate with `make accuracy`, from the public nccl-tests tables in `tests/data/tables`. Sizes of 1 KiB and more,
out-of-place times, in place where a table has no others. Errors are predicted / measured - 1: mean of their absolute
value, and in brackets the signed mean. A site's own tables take no part in the constants it is predicted with: NCCL's
documented values are fitted to other sites' tables, in eight fits that leave out an eighth of the sites each
(`python -m studies.bands.coverage --folds`). The shipped constants are fitted to all of them. *Cited* tables were
found after the model had been built on the others, and are reported apart; what was chosen of the model since was
chosen by these very figures, each site left out.
"""
_DECADES = ((10, 13), (13, 17), (17, 20), (20, 23), (23, 27), (27, 40))


def page(
    uncalibrated: Sequence[Errors],
    held_out: Sequence[Errors],
    half: Sequence[Errors],
    eight: Sequence[Errors],
    more: Sequence[Errors],
    bands: Sequence[Band],
    scores: Sequence[float],
    more_bands: Sequence[Band],
    verdicts: Sequence[Verdict],
    aws: str,
) -> str:
    """Return the whole page."""
    parts = [
        _HEAD,
        *_section(
            "No calibration, 1 MiB and more",
            "Wanted: median over systems at most 15 %, none over 35 %.",
            uncalibrated,
        ),
        _beside(uncalibrated),
        "`python -m studies.accuracy --constants` fits the shipped constants, and names the tables that are set aside "
        "for being more than twice as far off as the median table.\n",
        *_section(
            "Calibrated on rows 0, 4, 8, ...; errors on the others",
            "Wanted: mean over systems at most 6 %, median at most 4 %. A table repeats to the median difference of "
            "its two columns.",
            held_out,
        ),
        *_decades(held_out),
        *_half(half),
        *_section(
            "vTrain, eight rows calibrate; errors on the rest up to 32 MiB",
            "Wanted: at most 2 %. The eight rows are 1, 2, 3, 5, 8, 13, 20, 32 MiB; alpha-beta saw all rows.",
            eight,
        ),
        *_section(
            "Calibrated on one and two nodes, predicted on more, 1 MiB and more",
            "Wanted: at most 10 %, and half the baseline's error.",
            more,
        ),
        *_bands(bands, scores),
        *_more_bands(more_bands),
        *ring_against_tree(verdicts),
        f"## Times stated in AWS's post\n\n{_AWS}\n{aws}\n",
        _REASONS,
    ]
    return "\n".join(parts)


_AWS = """25 MB in one ring, 2(p-1)/p S/B without latency, beside what NCCL's channels on a p3.16xlarge give and what
was measured since on V100s with the same NVLinks. The tables are faster than one ring of 25 GB/s because NCCL finds
several rings that share no link, and on 8 GPUs because each of them stays on NVLink: no host bridge is left in the way.
"""

_RING_AGAINST_TREE = """Wanted: at least 20 cited cases in which both were forced and measured, and 95 % of them right.

Right is the case whose faster one is predicted to be the faster, by constants in whose fit its site took no part;
beside it NCCL's own model. Where the two measured times are near each other either may win. Tables:
`tests/data/tables`; `machines` there says what of each machine is inferred. The most that trees move between nodes
(NCCL's `perChMaxTreeBws`) went into the model after these cases had been seen; without it most of those between B200
nodes come out wrong. The processors of the L40S machines are inferred: with less bandwidth between sockets (AMD's 16 or
Skylake's 10 GB/s for Sapphire Rapids' 22) trees would be predicted to be faster than rings at the largest sizes there,
and fewer than 95 % be right.
"""

_REASONS = """## How the tables were run

The pages they are from say more than their headers: `NCCL_ALGO=RING` in the jobs of `aws_p4d` and
`deepops_2xDGXA100_ib`, "NCCL ring test" with NCCL 2.5.6 for `deepops_2xDGX1V_roce`, NCCL 2.7.5 in the container of
`deepops_4xDGXA100_ib` (`studies/accuracy/systems.py`). Where nothing is said of the version, the present one is assumed
without calibration, and with rows the one of 2.8 or the present one, whichever explains them better.

## What stays bad, and why

- `abci_A` between nodes: 4 NICs of 200 Gb/s should carry 96 GB/s, the tables stop near 36 GB/s; what limits them (GPUs
  too far from the NICs, no GPUDirect) is not documented. Eight nodes are slower than sixteen in two runs of each.
- `abci_V` on 16 nodes and more: between 128 KiB and 1 MiB times grow with the ranks as a ring's do, where NCCL's model
  takes a tree.
- `aws_p3dn`: two tables of one machine differ by a factor of two at 4 MiB and more; one set of constants fits neither.
- `deepops_2xDGX1V_roce`: every third time is 0.5 ms longer than its neighbours, in one column or the other.
- `v100_AR_GPU8`: the measured time falls by 18 % from 13 to 14 MiB; no row kept shows it. NCCL's own model with the
  constants of those rows changes from LL128 to Simple at 9 MiB, and fits started beyond 13 MiB return there.
- `gcp_a3mega`, `gcp_dranet`: NICs behind transports (GPUDirect-TCPXO, a virtual function) of which nothing is modelled
  but a share of the port.
- Rows a factor of 16 apart rarely show on which side of a change of protocol a row between them lies; errors of 20 to
  80 % near 1 MiB come from there. Twice the rows, every second, bring the errors to about what was wanted of a quarter.
"""


def _beside(rows: Sequence[Errors]) -> str:
    """Return how ours does beside NCCL's own model over all systems."""
    pairs = np.array([[_mean(row.columns[name]) for name in ("ddpsim", "NCCL's model")] for row in rows])
    nearer = int((pairs[:, 0] < pairs[:, 1]).sum())
    summary = "; ".join(
        f"{label} {' and '.join(f'{value:.1f} %' for value in found(pairs, axis=0))}"
        for label, found in (("median", np.median), ("mean", np.mean), ("worst", np.max))
    )
    return f"All {len(rows)} together, beside NCCL's model: {summary}. Ours is nearer on {nearer} of {len(rows)}.\n"


def _section(title: str, wanted: str, rows: Sequence[Errors]) -> Iterator[str]:
    """Yield a table of the systems asked for, then one of those whose tables are kept here."""
    yield f"## {title}\n\n{wanted}\n"
    yield from _systems([row for row in rows if not row.cited])
    cited = [row for row in rows if row.cited]
    if cited:
        yield "Cited tables:\n"
        yield from _systems(cited)


def _systems(rows: Sequence[Errors]) -> Iterator[str]:
    names = list(rows[0].columns)
    yield f"| system | rows | repeats to | {' | '.join(names)} |"
    yield "|---|--:|--:|" + "--:|" * len(names)
    for row in rows:
        cells = [f"{_mean(row.columns[name]):.1f} % ({100 * row.columns[name].mean():+.1f})" for name in names]
        repeats = "-" if row.repeatability is None else f"{100 * row.repeatability:.1f} %"
        yield f"| {row.system} | {len(row.sizes)} | {repeats} | {' | '.join(cells)} |"
    means = {name: [_mean(row.columns[name]) for row in rows] for name in names}
    for label, summary in (("mean", np.mean), ("median", np.median), ("worst", np.max)):
        yield f"| **{label}** | | | {' | '.join(f'{summary(means[name]):.1f} %' for name in names)} |"
    yield ""


def _half(rows: Sequence[Errors]) -> Iterator[str]:
    """Yield how much twice the rows would help: what the tables' own roughness leaves."""
    yield "Calibrated on every second row instead, errors on the others, over the same systems:\n"
    names = list(rows[0].columns)
    yield f"| | {' | '.join(names)} |"
    yield "|---|" + "--:|" * len(names)
    means = {name: [_mean(row.columns[name]) for row in rows if not row.cited] for name in names}
    for label, summary in (("mean", np.mean), ("median", np.median)):
        yield f"| {label} | {' | '.join(f'{summary(means[name]):.1f} %' for name in names)} |"
    yield ""


def _decades(rows: Sequence[Errors]) -> Iterator[str]:
    names = list(rows[0].columns)
    yield f"By size, all of them together:\n\n| from | to | rows | {' | '.join(names)} |"
    yield "|--:|--:|--:|" + "--:|" * len(names)
    sizes = np.concatenate([row.sizes for row in rows])
    for low, high in _DECADES:
        inside = (sizes >= 2**low) & (sizes < 2**high)
        if inside.any():
            columns = (np.concatenate([row.columns[name] for row in rows])[inside] for name in names)
            cells = [f"{_mean(column):.1f} % ({100 * column.mean():+.1f})" for column in columns]
            yield f"| {_size(low)} | {_size(high)} | {inside.sum()} | {' | '.join(cells)} |"
    yield ""


def _bands(rows: Sequence[Band], scores: Sequence[float]) -> Iterator[str]:
    yield "## 80 % bands on held-out rows\n"
    yield "Wanted: 75 to 90 % inside, narrower than one global quantile. A band is as many times a row's own doubt"
    yield "(`interpolation.py`) as the other systems' held-out rows need; width is upper over lower edge, median."
    yield f"All systems together need {scores[0]:.2f} to {scores[1]:+.2f} doubts; both and the three weights in a doubt"
    yield "were chosen on these tables.\n"
    yield "| system | inside | width | global quantile: inside | width |"
    yield "|---|--:|--:|--:|--:|"
    for row in rows:
        yield (
            f"| {row.system} | {_percent(row.inside)} | {np.median(row.widths):.2f} "
            f"| {100 * row.baseline_inside:.0f} % | {row.baseline_width:.2f} |"
        )
    columns = [(r.inside.mean(), np.median(r.widths), r.baseline_inside, r.baseline_width) for r in rows]
    inside, width, base_inside, base_width = np.mean(columns, axis=0)
    yield f"| **mean** | {100 * inside:.0f} % | {width:.2f} | {100 * base_inside:.0f} % | {base_width:.2f} |"
    yield "\nBy size, all systems together:\n\n| from | to | rows | inside | width |\n|--:|--:|--:|--:|--:|"
    sizes = np.concatenate([row.sizes for row in rows])
    all_inside, widths = (np.concatenate([getattr(row, name) for row in rows]) for name in ("inside", "widths"))
    for low, high in _DECADES:
        here = (sizes >= 2**low) & (sizes < 2**high)
        cells = (_size(low), _size(high), here.sum(), _percent(all_inside[here]), f"{np.median(widths[here]):.2f}")
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""


def _more_bands(rows: Sequence[Band]) -> Iterator[str]:
    yield "On more nodes than were measured a band comes from the covariance of the fitted constants and the residuals"
    yield "of rows held out on fewer nodes:\n"
    yield "| system | rows | inside | width |\n|---|--:|--:|--:|"
    for row in rows:
        yield f"| {row.system} | {len(row.sizes)} | {_percent(row.inside)} | {np.median(row.widths):.2f} |"
    yield ""


def ring_against_tree(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield how often the faster of both is told, a row a source, and every case in which it is not."""
    yield f"## Ring against tree\n\n{_RING_AGAINST_TREE}"
    yield f"| source | machine | cases | right | NCCL's model | over {100 * APART:.0f} % apart | right | NCCL's model |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    rows: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        rows.setdefault((verdict.case.source.split()[0], verdict.case.machine), []).append(verdict)
    for (source, machine), row in rows.items():
        scores = (Score.of(row), Score.of([verdict for verdict in row if verdict.case.is_apart]))
        yield f"| {source} | {machine} | {' | '.join(str(n) for s in scores for n in (s.cases, s.ours, s.nccl))} |"
    if len(verdicts) < ENOUGH:
        yield f"\nInsufficient evidence: {len(verdicts)} cases, {ENOUGH} are wanted.\n"
        return
    every, apart = Score.of(verdicts), Score.of([verdict for verdict in verdicts if verdict.case.is_apart])
    cells = [f"{s.cases} | {_share(s.ours, s.cases)} | {_share(s.nccl, s.cases)}" for s in (every, apart)]
    yield f"| **all** | | {' | '.join(cells)} |"
    yield f"\nThe ring was the faster in {sum(v.case.ring_is_faster for v in verdicts)} of {every.cases}. Not right:\n"
    for verdict in verdicts:
        if not verdict.ours_right:
            case, ours = verdict.case, verdict.ours_s
            yield (
                f"- {case.machine}, {case.nodes} x {case.ranks // case.nodes} GPUs, {case.size_bytes} bytes: ring and "
                f"trees measured {_us(case.ring_s)} and {_us(case.tree_s)}, predicted {_us(ours[0])} and {_us(ours[1])}"
            )
    yield ""


def _share(part: int, cases: int) -> str:
    return f"{part} ({100 * part / cases:.0f} %)" if cases else "-"


def _us(time_s: float) -> str:
    return f"{time_s * 1e6:.1f} us"


def _percent(inside: np.ndarray) -> str:
    return f"{100 * inside.mean():.0f} %"


def _mean(errors: np.ndarray) -> float:
    return float(100 * np.abs(errors).mean())


def _size(power: int) -> str:
    unit, base = ("KiB", 10) if power < 20 else ("MiB", 20) if power < 30 else ("GiB", 30)
    return f"{2 ** (power - base)} {unit}"
