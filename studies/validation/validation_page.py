"""The validation page's section on one record: what was run, the measures, where errors are, every configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from textwrap import fill

from ddpexec.lab.campaign.report import (
    format_compared,
    format_measures,
    format_one_process,
    mark_one_process,
    percent,
    trivial,
)
from ddpexec.lab.campaign.results import summarise_results
from ddpexec.lab.campaign.spec import NetworkSpec
from ddpsim.common.units import format_count
from ddpsim.report.plots import plot_validation
from studies.validation.evidence import Evidence, Recorded
from studies.validation.factors import by_factor, by_term, factors
from studies.validation.plot_errors import plot_errors

NOTHING = "No runs recorded.\n"


def section(evidence: Evidence, pictures: Path, name: str) -> str:
    """Return the section as Markdown, and draw its pictures.

    Args:
        evidence: of one record.
        pictures: folder of the page, into which they are drawn.
        name: what their files' names begin with.
    """
    recorded = evidence.recorded
    if not recorded:
        return NOTHING
    columns = {
        "predicted before the runs": summarise_results([each.before.result for each in recorded]),
        "today's code": summarise_results([each.now.result for each in recorded]),
    }
    _draw(recorded, pictures, name)
    parts = (
        _provenance(evidence),
        ["### Measures\n", *format_measures(columns), "", format_compared(columns["predicted before the runs"]), ""],
        [*trivial({f"error of the overhead, median ({label})": summary for label, summary in columns.items()}), ""],
        [f"![predicted over measured steps, as predicted before the runs]({name}-steps.png)\n"],
        [f"![errors of the step with the noise of repeated runs]({name}-errors.png)\n"],
        [f"![predicted over measured finish times of buckets]({name}-buckets.png)\n"],
        ["### Which term is off\n", _TERMS, *by_term(recorded), ""],
        ["### By factor\n", *by_factor(recorded), ""],
        ["### Every configuration\n", *_rows(recorded), ""],
    )
    return "\n".join(line for part in parts for line in part)


_TERMS = """Shares of the measured step, predicted - measured, in the mean over a configuration's runs. The first six
sum to the step's error; launch, skew and wire are summed over buckets, hidden or not. Latency and bandwidth are the
wire's two halves by a line through the buckets' sizes; where they err to opposite sides the line is ill determined and
wire alone tells.
"""


def _provenance(evidence: Evidence) -> Iterator[str]:
    recorded = evidence.recorded
    runs = sum(each.configuration.repeats for each in recorded)
    early = sum(each.written_at <= each.first_run_at for each in recorded)
    agree = sum(each.inputs_agree for each in recorded)
    torch = ", ".join(sorted({each.torch for each in recorded}))
    written = [each.written_at for each in recorded]
    counts = f"{format_count(len(recorded), 'configuration')}, {format_count(runs, 'run')}"
    yield f"{counts}, torch {torch}. Predictions were written between " + (
        f"{_day(min(written))} and {_day(max(written))}; {early} of {len(recorded)} before the first iteration of "
        f"their configuration's first run. The workload, network and constants kept here give the fingerprint written "
        f"into the prediction for {agree} of {len(recorded)}."
    )
    late = [each.late_gradients for each in recorded if each.late_gradients is not None]
    if late:
        yield (
            f"Timed layers delivered {percent(median(late))} of rank 0's gradients late, by more than 0.2 ms and by "
            f"more than 1 % of their time (median over configurations; {percent(max(late))} at worst)."
        )
    if evidence.missing:
        missing = format_count(len(evidence.missing), "configuration")
        yield f"{missing} of the campaign without a run: {', '.join(evidence.missing)}."
    yield "\n### Calibration and evaluation are different runs\n"
    yield "Constants are fitted to microbenchmarks on the same network, in processes of their own, before any"
    yield "prediction; the runs in the last column are what predictions are judged on, and nothing is fitted to them.\n"
    yield "| network | ranks | rate | delay | calibration: allreduces | evaluation: configurations | runs |"
    yield "|---|--:|--:|--:|---|--:|--:|"
    for name, sizes in evidence.benches.items():
        judged = [each.configuration for each in recorded if each.configuration.bench == name]
        network = judged[0].network
        yield (
            f"| {name} | {network.ranks} | {_rates(network)} | {network.delay * 1e3:g} ms | {len(sizes)} sizes, "
            f"{_size(min(sizes))} to {_size(max(sizes))} | {len(judged)} | {sum(each.repeats for each in judged)} |"
        )
    yield ""


def _rates(network: NetworkSpec) -> str:
    words = [_gbit(network.rate)]
    words += [f"one {_gbit(network.slow.rate)}"] if network.slow else []
    words += [f"trunk {_gbit(network.trunk)}"] if network.trunk else []
    return ", ".join(words)


def _gbit(rate: float) -> str:
    return f"{rate * 8e-9:g} Gbit/s"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:g} MiB" if size_bytes >= 2**20 else f"{size_bytes / 2**10:g} KiB"


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _rows(recorded: Sequence[Recorded]) -> Iterator[str]:
    results = [each.before.result for each in recorded]
    told = (
        "Times in ms, of several runs their mean; noise is half the range of repeated runs. "
        f"{format_one_process(results)}. `in` where the measured step lies in the 80 % band; buckets: median absolute "
        "error of their finish, of the step."
    )
    yield f"{fill(told, 110)}\n"
    yield (
        "| configuration | one process | measured | noise | before | error | overhead error | buckets | band | term "
        + ("| now | error | overhead error |")
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|---|---|--:|--:|--:|"
    for each in recorded:
        before, now = each.before.result, each.now.result
        finishes = [abs(error) for error in before.bucket_errors]
        cells = (
            before.name,
            f"{before.local_s * 1e3:.1f}{mark_one_process(before, results)}",
            f"{before.step_s * 1e3:.1f}",
            percent(before.noise),
            f"{before.predicted_s * 1e3:.1f}",
            percent(before.error, signed=True),
            percent(before.overhead_error, signed=True),
            percent(median(finishes) if finishes else None),
            "in" if before.low_s <= before.step_s <= before.high_s else "out",
            before.largest_term.replace("_", " "),
            f"{now.predicted_s * 1e3:.1f}",
            percent(now.error, signed=True),
            percent(now.overhead_error, signed=True),
        )
        yield f"| {' | '.join(cells)} |"


def _draw(recorded: Sequence[Recorded], folder: Path, name: str) -> None:
    groups: dict[str, list[Recorded]] = {}
    for each in sorted(recorded, key=lambda each: factors(each.configuration)["wire / backward"]):
        groups.setdefault(_label(factors(each.configuration)["wire / backward"]), []).append(each)
    steps: Mapping[str, list[tuple[float, float, float | None]]] = {
        label: [(r.step_s, r.predicted_s, r.noise) for r in (each.before.result for each in group)]
        for label, group in groups.items()
    }
    plot_validation(
        {label: [pair[:2] for pair in group] for label, group in steps.items()}, folder / f"{name}-steps.png"
    )
    plot_errors(steps, folder / f"{name}-errors.png")
    finishes = {label: [pair for each in group for pair in each.before.finishes] for label, group in groups.items()}
    plot_validation(finishes, folder / f"{name}-buckets.png", "bucket finish, from the start of forward (ms)")


def _label(wire: str) -> str:
    """Return what a legend says of configurations whose messages take `wire` times as long as backward."""
    return f"layers timed, wire {wire} x backward" if wire[0].isdigit() else wire
