"""Published steps of real GPUs, a table a system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, groupby
from pathlib import Path
from statistics import median

from ddpsim.planning.planner import plan
from ddpsim.topology.cluster import Topology
from studies.published.gpu_steps import Judged, judge
from studies.published.gpu_systems import System, calibration_of, cases, systems
from studies.published.scheme_pairs import pairs

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("gpu-steps.md")
TEMPLATE = Path(__file__).with_name("gpu-steps.md.in")
OVERHEAD, STEP = 0.15, 0.01
"""In reach: an error of so much of the overhead, or of the step."""

DEFAULT_MB = 25.0
WORKERS = 2
Tables = Sequence[tuple[System, str, Sequence[Judged]]]


def tables(workers: int) -> list[tuple[System, str, list[Judged]]]:
    """Return every table of the page: a system, the dtype of its gradients where that is assumed, its rows."""
    asked = [(system, *case) for system in systems() for case in cases(system)]
    with ProcessPoolExecutor(workers) as pool:
        rows = list(pool.map(judge, *zip(*asked, strict=True)))
    grouped = groupby(rows, key=lambda row: (row.system.name, row.dtype))
    return [(found[0].system, dtype, found) for (_, dtype), group in grouped if (found := list(group))]


def page(found: Tables) -> str:
    """Return the page."""
    return TEMPLATE.read_text(encoding="utf-8").format(
        summary="\n".join(summary(found)),
        caps="\n".join(caps(found)),
        schemes="\n".join(schemes(found)),
        differences="\n".join(differences(found)),
        systems="\n\n".join("\n".join(section(*each)) for each in found),
    )


def summary(found: Tables) -> Iterator[str]:
    """Yield a row a table: medians of the errors, of this model and of the simple predictors."""
    for system, dtype, rows in found:
        simple = (
            [row.one_s for row in rows],
            [row.one_s + row.comm_s for row in rows],
            [max(row.one_s, row.comm_s) for row in rows],
        )
        steps = median(abs(row.predicted_s / row.measured_s - 1) for row in rows)
        over = median(abs(overhead_error(row)) for row in rows)
        others = (median(abs(_off(row, s)) for row, s in zip(rows, each, strict=True)) for each in simple)
        inside = f"{sum(row.inside for row in rows)} of {sum(row.band_s is not None for row in rows)}"
        cells = (_name(system, dtype), len(rows), f"{steps:.1%}", f"{over:.0%}", *(f"{e:.0%}" for e in others), inside)
        yield _line(cells)


def overhead_error(row: Judged) -> float:
    """Return the relative error of the predicted overhead."""
    return row.predicted_overhead_s / row.overhead_s - 1


def in_reach(row: Judged) -> bool:
    """Whether the overhead is right to 15 %, to its rounding, or to 1 % of the step."""
    off = abs(row.predicted_overhead_s - row.overhead_s)
    return off <= max(OVERHEAD * row.overhead_s, 2 * row.half_s, STEP * row.measured_s)


def caps(found: Tables) -> Iterator[str]:
    """Yield a row for each set of rows that differ in their cap alone, at three caps or more."""
    for system, dtype, rows in found:
        for name, swept in sweeps(rows):
            best = min(swept, key=lambda row: row.measured_s)
            chosen = min(swept, key=lambda row: row.predicted_s)
            loss = chosen.measured_s / best.measured_s - 1
            gains = [_gain(swept, measured=flag) for flag in (True, False)]
            right, pairs = order(swept)
            where = f"{_name(system, dtype)}{f', {name}' if name else ''}"
            shown = [f"{gain:+.1%}" if gain is not None else "-" for gain in gains]
            yield _line((where, _cap(best), _cap(chosen), f"{right} of {pairs}", f"{loss:+.1%}", *shown, advice(swept)))


def schemes(found: Tables) -> Iterator[str]:
    """Yield a row for each job that was run with several schemes."""
    for system, dtype, rows in found:
        for name, jobs in pairs(rows):
            telling = [pair for pair in jobs if pair.telling]
            right = f"{sum(pair.in_order for pair in telling)} of {len(telling)}"
            every = [*(pair.slower for pair in jobs), *(pair.faster for pair in jobs)]
            chosen, best = (min(every, key=key) for key in (_predicted_s, _measured_s))
            where = f"{_name(system, dtype)}{f', {name}' if name else ''}"
            within = f"{sum(pair.in_reach for pair in jobs)} of {len(jobs)}"
            loss = f"{chosen.measured_s / best.measured_s - 1:+.1%}"
            yield _line((where, _label(best), _label(chosen), loss, within, right))


def differences(found: Tables) -> Iterator[str]:
    """Yield a row a pair of schemes, of systems that had one job alone."""
    for system, _, rows in found:
        for _, jobs in pairs(rows) if not system.group else ():
            for pair in jobs:
                off = f"{pair.predicted_s / pair.measured_s - 1:+.0%}" if pair.telling else "-"
                said = ("yes" if pair.in_reach else "no", "-" if not pair.telling else "yes" if pair.in_order else "no")
                names = (_label(pair.slower), _label(pair.faster))
                yield _line((*names, _ms(pair.measured_s), _ms(pair.predicted_s), off, *said))


def _predicted_s(row: Judged) -> float:
    return row.predicted_s


def _measured_s(row: Judged) -> float:
    return row.measured_s


def _label(row: Judged) -> str:
    named = [column for column in row.system.label if column not in row.system.group]
    return " ".join(row.row[column] for column in named if row.row[column])


def sweeps(rows: Sequence[Judged]) -> Iterator[tuple[str, list[Judged]]]:
    """Yield the rows of one job at different caps, with the job's name; jobs with fewer than three are left out."""

    def job(row: Judged) -> tuple[str, ...]:
        cap = row.system.columns.get("cap")
        return tuple(row.row[column] for column in row.system.label if column != cap)

    with_caps = sorted((row for row in rows if row.cap_mb is not None), key=job)
    for name, group in groupby(with_caps, key=job):
        swept = list(group)
        if len({row.cap_mb for row in swept}) >= 3:
            yield " ".join(part for part in name if part), swept


def order(rows: Sequence[Judged]) -> tuple[int, int]:
    """Return how many pairs are predicted in the order that was measured, and how many there are."""
    pairs = [pair for pair in combinations(rows, 2) if pair[0].measured_s != pair[1].measured_s]
    right = sum((a.measured_s < b.measured_s) == (a.predicted_s < b.predicted_s) for a, b in pairs)
    return right, len(pairs)


def _gain(rows: Sequence[Judged], *, measured: bool) -> float | None:
    def step_s(row: Judged) -> float:
        return row.measured_s if measured else row.predicted_s

    default = [row for row in rows if row.cap_mb == DEFAULT_MB]
    return None if not default else 1 - min(map(step_s, rows)) / step_s(default[0])


def advice(rows: Sequence[Judged]) -> str:
    """Return what `plan` says of the job of these rows; it is asked where one of them is the default's cap."""
    if all(row.cap_mb != DEFAULT_MB for row in rows):
        return "-"
    one = rows[0].predicted
    given = calibration_of(rows[0].system, rows[0].row)
    assert isinstance(one.topology, Topology)
    gpus = one.placement.gpus_per_node
    [found] = plan(
        one.workload, [one.topology], nodes=[one.nodes], gpus_per_node=gpus, options=one.options, calibration=given
    ).rows
    said = "keep the default" if found.keep_default else f"`{found.advice}`"
    return f"{said}; at most {found.most:.1%} found"


def section(system: System, dtype: str, rows: Sequence[Judged]) -> Iterator[str]:
    """Yield a system's table."""
    yield f"## {_name(system, dtype)}"
    yield ""
    role = "It judges; nothing was chosen on it." if system.judges else "Structure may be chosen on it."
    yield f"{role} {system.note.strip()}"
    yield ""
    labels = [column.replace("_", " ") for column in system.label]
    heads = ("step, ms", "predicted", "band", "error", "overhead, ms", "predicted", "error", "hidden, ms", "in reach")
    more = ("one process", "and all communication", "the larger")
    yield _line((*labels, *heads, *more))
    yield "|" + "---|" * len(labels) + "--:|" * (len(heads) + len(more))
    for row in rows:
        band = "-" if row.band_s is None else " to ".join(map(_ms, row.band_s))
        half = f" ± {_ms(row.half_s)}" if row.half_s else ""
        yield _line(
            (
                *row.label,
                f"{_ms(row.measured_s)}{half}",
                _ms(row.predicted_s),
                band,
                f"{row.predicted_s / row.measured_s - 1:+.1%}",
                _ms(row.overhead_s),
                _ms(row.predicted_overhead_s),
                f"{overhead_error(row):+.0%}",
                _ms(row.hidden_s),
                "yes" if in_reach(row) else "no",
                _ms(row.one_s),
                _ms(row.one_s + row.comm_s),
                _ms(max(row.one_s, row.comm_s)),
            )
        )


def _off(row: Judged, step_s: float) -> float:
    """Return the error of the overhead that a predicted step of a simple kind leaves, over one process."""
    return (step_s - row.one_s) / row.overhead_s - 1


def _name(system: System, dtype: str) -> str:
    return f"{system.title}{f', gradients of {dtype}' if len(system.dtypes) > 1 else ''}"


def _cap(row: Judged) -> str:
    return f"{row.cap_mb:g}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def text() -> str:
    """Return the page."""
    return page(tables(WORKERS))
