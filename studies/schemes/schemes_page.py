"""The tables of a page on schemes, measured: errors by system, rankings and every configuration, then and today."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ddpexec.lab.campaign.report import errors_by_scheme, percent, rankings
from ddpexec.lab.campaign.results import Result
from ddpexec.lab.campaign.spec import Configuration
from studies.validation.evidence import Evidence, Recorded

Chosen = Callable[[Configuration], bool]
"""Whether the model's structure was chosen by looking at a configuration; the others judge it."""


def tables(evidence: Evidence, chosen: Chosen) -> str:
    """Return the tables of one record as Markdown."""
    recorded = evidence.recorded
    parts = (by_system(recorded, chosen), [""], by_family(recorded), [""], rows(recorded, chosen))
    missing = [f"\nWithout a run: {', '.join(evidence.missing)}."] if evidence.missing else []
    return "\n".join([*(line for part in parts for line in part), *missing])


def by_system(recorded: Sequence[Recorded], chosen: Chosen) -> Iterator[str]:
    """Yield the errors of each system, its options left out: before the runs, today, and today where it is judged."""
    yield (
        "| system | configurations | before the runs: median | 95th percentile | today: median | 95th percentile "
        "| signed, from to | today, judging alone: configurations | median | largest |"
    )
    yield "|---|--:|--:|--:|--:|--:|---|--:|--:|--:|"
    before = {each.scheme: each for each in errors_by_scheme([_system(r.before.result) for r in recorded])}
    judging = [_system(r.now.result) for r in recorded if not chosen(r.configuration)]
    judged = {each.scheme: each for each in errors_by_scheme(judging)}
    for now in errors_by_scheme([_system(r.now.result) for r in recorded]):
        then, judge = before[now.scheme], judged.get(now.scheme)
        signed = f"{percent(now.least, signed=True)} to {percent(now.most, signed=True)}"
        cells = [now.scheme, str(now.count), percent(then.median), percent(then.p95), percent(now.median)]
        cells += [percent(now.p95), signed, "0" if judge is None else str(judge.count)]
        cells += (
            ["-", "-"] if judge is None else [percent(judge.median), percent(max(abs(judge.least), abs(judge.most)))]
        )
        yield f"| {' | '.join(cells)} |"


def by_family(recorded: Sequence[Recorded]) -> Iterator[str]:
    """Yield whether the predicted best of what differs in its scheme alone is the measured best, then and today."""
    yield (
        "| network | measured best | predicted best, before | regret | predicted best, today | regret "
        "| pairs more than 1 % apart, in the right order: before | today |"
    )
    yield "|---|---|---|--:|---|--:|--:|--:|"
    now = {each.family: each for each in rankings([r.now.result for r in recorded])}
    for then in rankings([r.before.result for r in recorded]):
        today = now[then.family]
        cells = (
            then.family,
            then.measured,
            then.predicted,
            percent(then.regret),
            today.predicted,
            percent(today.regret),
            f"{then.right} of {then.pairs}",
            f"{today.right} of {today.pairs}",
        )
        yield f"| {' | '.join(cells)} |"


def rows(recorded: Sequence[Recorded], chosen: Chosen) -> Iterator[str]:
    """Yield every configuration; `chosen` beside those that the model's structure was chosen by."""
    yield (
        "| network | wire / backward | scheme | measured, ms | before, ms | error | today, ms | error "
        "| overhead, error today | term, today | |"
    )
    yield "|---|--:|---|--:|--:|--:|--:|--:|--:|---|---|"
    for each in recorded:
        run, then, now = each.configuration.run, each.before.result, each.now.result
        cells = (
            run.network,
            "-" if run.wire_over_backward is None else f"{run.wire_over_backward:g}",
            _label(each.configuration),
            f"{now.step_s * 1e3:.1f}",
            f"{then.predicted_s * 1e3:.1f}",
            percent(then.error, signed=True),
            f"{now.predicted_s * 1e3:.1f}",
            percent(now.error, signed=True),
            percent(now.overhead_error, signed=True),
            now.largest_term.replace("_", " "),
            "chosen" if chosen(each.configuration) else "",
        )
        yield f"| {' | '.join(cells)} |"


def _label(configuration: Configuration) -> str:
    stage = configuration.run.options["input_stage"]
    return configuration.scheme if stage in (None, "none") else f"{configuration.scheme}, {stage}"


def _system(result: Result) -> Result:
    name, comma, rest = result.scheme.partition(", ")
    return replace(result, scheme=name.partition(":")[0] + comma + rest)
