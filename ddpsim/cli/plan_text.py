"""The text of `ddpsim plan`: each row's plan and its gain, a comparison of schemes, or the result of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpsim.cli.breakdown import step_line
from ddpsim.common.tables import break_line, list_shown, text_of
from ddpsim.common.units import GIB, format_count, format_time

if TYPE_CHECKING:
    from ddpsim.planning.by_scheme import SchemeChoice, SchemeReport
    from ddpsim.planning.rows import PlanReport, PlanRow
    from ddpsim.planning.search_report import SearchReport
    from ddpsim.prediction.prediction import Prediction


_TENTH = 0.1
"""Share of a saving from which a part of it has a line; chosen by hand."""


def text(report: PlanReport, *, details: bool = False, columns: Sequence[str] = ()) -> str:
    """Return the report as a table and the lines to paste.

    Args:
        columns: those of the table in place of its own.
        details: whether a second table has the parts of each step, and lines say where a gain comes from and what the
            bytes of each machine go by.
    """
    from ddpsim.planning.worth import format_gain

    records = [row.describe() for row in report.rows]
    parts = ["", "parts of each step:", text_of("plan: parts", records)] if details else []
    lines = [text_of("plan", records, columns), *parts, "", *_verdict(report), ""]
    for row in report.rows:
        steps = step_line(row.chosen.options, row.chosen.iteration_s)
        lines += [f"{_format_where([row])}: {line}" for line in steps]
    default_rows = [row for row in report.rows if row.keep_default]
    if default_rows:
        lines += [
            break_line(f"keep torch's default on {_format_where(default_rows)}{_most(default_rows)}:"),
            f"    {default_rows[0].advice}",
        ]
    for row in report.rows:
        if row.trial is not None:
            lines += [break_line(f"on {_format_where([row])} {row.trial}:"), f"    {row.trial.torch}"]
    changed = [row for row in report.rows if not row.keep_default]
    for advice in dict.fromkeys(row.advice for row in changed):
        here = [row for row in changed if row.advice == advice]
        gains = ", ".join(format_gain(*row.gain_band, "shorter step ") for row in here)
        lines += [break_line(f"on {_format_where(here)}, {gains}:"), f"    {advice}"]
    lines += [line for row in changed for line in _format_others(row)]
    if details:
        lines += [break_line(_explain_gain(row)) for row in changed]
        lines += _describe_hidden(changed)
    if unsure := [row for row in changed if row.rests_on_priors]:
        lines += ["", *_priors(unsure)]
    lines += ["", *_doubts(report.rows), *_transports(report.rows, details=details)]
    return "\n".join(lines)


def _most(default_rows: Sequence[PlanRow]) -> str:
    """Return the best gain of all plans tried, for rows that keep torch's default and have nothing worth a trial."""
    from ddpsim.planning.worth import format_gain

    most = max((row for row in default_rows if row.trial is None), key=lambda row: row.best_gain, default=None)
    if most is None:
        return ""
    gain = f"{100 * most.most:.1f} %" if most.best is most.default else format_gain(*most.best_gain)
    return f"; the best alternative tried shortens the step by {gain}"


def _verdict(report: PlanReport) -> list[str]:
    """Return where most samples a second are trained, and which rows are not ranked, and why."""
    from ddpsim.planning.ranking import describe_borrowed, list_unranked

    lines, best = [], report.best
    if best is not None:
        unfit = "" if best.fits is not False else ", which does NOT fit in GPU memory, as nothing here does"
        where = f"{best.chosen.topology.name}, {format_count(best.chosen.nodes, 'node')}"
        lines.append(f"highest throughput: {where}{unfit}")
    lines += map(break_line, describe_borrowed(row.chosen for row in report.rows))
    by_line = list_unranked(row.chosen for row in report.rows)
    return lines + [break_line(f"not ranked: {_places(found)}: {why}") for why, found in by_line]


_TOLD = 1e-3
"""Gain from which a further line is printed: what the text's digits show."""


def _format_others(row: PlanRow) -> list[str]:
    """Return what simpler lines gain on a row."""
    from ddpsim.planning.worth import arguments_of

    return [
        f"    or, simpler, {arguments_of(other.torch)} on {_format_where([row])}: "
        f"{100 * row.gain_of(other):.1f} % shorter step instead of {100 * row.gain:.1f} %"
        for other in row.others
        if row.gain_of(other) >= _TOLD
    ]


def _explain_gain(row: PlanRow) -> str:
    """Return where the plan of a row saves its gain: the parts that are worth a tenth of it, the largest first."""
    from ddpsim.common.units import format_time
    from ddpsim.planning.savings import WHERE

    times = row.chosen.options.accumulate
    whole_s = times * (row.default.iteration_s - row.best.iteration_s)
    parts = [each for each in row.savings if times * abs(each.seconds) >= _TENTH * whole_s]
    by_line = (
        f"{'loses ' if p.seconds < 0 else ''}{format_time(times * abs(p.seconds))} of {WHERE[p.where]}" for p in parts
    )
    return f"saves {format_time(whole_s)} on {_format_where([row])}: {', '.join(by_line)}"


def _doubts(rows: Sequence[PlanRow]) -> list[str]:
    """Return what weighs most in the bands, where, and the measurement that would narrow them."""
    by_line: dict[str, list[PlanRow]] = {}
    for row in rows:
        for most in row.chosen.doubts[:1]:
            by_line.setdefault(f"{most.name}; to reduce it: {most.remedy}", []).append(row)
    return [break_line(f"largest uncertainty on {_format_where(found)}: {what}") for what, found in by_line.items()]


def _transports(rows: Sequence[PlanRow], *, details: bool) -> list[str]:
    """Return what each machine leaves open; with details what its bytes go by, and what other choices would give."""
    by_line: dict[str, list[PlanRow]] = {}
    for row in rows:
        for line in _describe_transports(row.chosen, details=details):
            by_line.setdefault(line, []).append(row)
    return [break_line(f"on {_format_where(found)}: {line}") for line, found in by_line.items()]


def _describe_transports(prediction: Prediction, *, details: bool) -> list[str]:
    from ddpsim.collectives.nccl.paths_taken import format_path_advice

    if not details:
        return format_path_advice(prediction.transport_advice)
    return [] if (taken := prediction.transports) is None else taken.lines()


def _describe_hidden(rows: Sequence[PlanRow]) -> list[str]:
    """Return how much of the largest gain exists because communication slows computation down."""
    if not rows:
        return []
    most = max(rows, key=lambda row: row.gain)
    part, whole = (f"{100 * abs(share):.1f} %" for share in (most.gain_from_hidden_comm, most.gain))
    if most.gain_from_hidden_comm < 0:
        free = "if communication did not slow computation"
        return [f"the gain of {whole} on {_format_where([most])} would be {part} more {free}"]
    return [f"of the gain of {whole} on {_format_where([most])}, {part} rests on communication slowing computation"]


def _priors(rows: Sequence[PlanRow]) -> list[str]:
    """Return what a gain on a step that the host holds up rests on, where that was not measured."""
    from ddpsim.common.units import format_time

    models = dict.fromkeys(row.chosen.workload.name for row in rows if row.chosen.workload.estimated)
    priors = {constant.name: constant for row in rows for constant in row.priors}
    whole = [row.chosen.options.accumulate * row.host_cost_s for row in rows]
    costs = [format_time(pick(whole)) for pick in (min, max)]
    where = f"host-bound on {_format_where(rows)}: launches cost {' to '.join(dict.fromkeys(costs))} of the step"
    lines = [break_line(f"{where}, and the gain rests on defaults that nobody measured here:")]
    if models:
        lines.append(f"    the launch cost of an operator in {', '.join(models)}: estimated")
        lines.append("      measure it on such a machine: `python -m ddpexec capture`, or `ddpsim workload import`")
    if priors:
        named = ", ".join(f"{constant.name} {format_time(constant.value)}" for constant in priors.values())
        lines.append(f"    {named}")
        lines.append("      measure them: `torchrun ... -m ddpexec microbench`, `ddpsim calibrate`, then --calibration")
    return lines


def _format_where(rows: Sequence[PlanRow]) -> str:
    """Return machines and node counts in few words: `dgx-1v (1, 2 nodes), dgx-a100 (4 nodes)`."""
    return _places([row.best for row in rows])


def _places(predictions: Sequence[Prediction]) -> str:
    machines: dict[str, dict[str, None]] = {}
    for prediction in predictions:
        machines.setdefault(prediction.topology.name, {})[str(prediction.nodes)] = None
    return ", ".join(
        f"{name} ({', '.join(counts)} node{'' if list(counts) == ['1'] else 's'})" for name, counts in machines.items()
    )


def scheme_text(report: SchemeReport, columns: Sequence[str] = ()) -> str:
    """Return the report as a table, of `columns` where there are some, and the advice."""
    lines = [text_of("plan --schemes", [row.describe() for row in report.rows], columns), ""]
    lines += [line for choice in report.choices for line in _scheme_advice(choice)]
    return "\n".join([*lines, "", *_scheme_verdict(report)])


def _scheme_verdict(report: SchemeReport) -> Iterator[str]:
    """Yield where most samples a second are trained, and which machines are not ranked, and why."""
    from ddpsim.planning.ranking import describe_borrowed, list_unranked

    if (best := report.best) is not None:
        where = f"{best.prediction.topology.name}, {format_count(best.prediction.nodes, 'node')}, {best.scheme}"
        unfit = "" if best.fits is not False else ", which does NOT fit in GPU memory, as nothing here does"
        yield f"highest throughput: {where}{unfit}"
    yield from describe_borrowed(choice.best.prediction for choice in report.choices)
    for why, found in list_unranked(choice.best.prediction for choice in report.choices):
        yield f"not ranked: {', '.join(dict.fromkeys(each.topology.name for each in found))}: {why}"


def _scheme_advice(choice: SchemeChoice) -> Iterator[str]:
    from ddpsim.planning.worth import format_gain

    best = choice.best
    where = f"on {best.prediction.topology.name}, {format_count(best.prediction.nodes, 'node')}"
    others = [row for row in choice.rows if row.scheme != best.scheme]
    trial = "" if choice.trial is None else f"; {choice.trial}"
    if not choice.keep_ddp:
        gain = format_gain(best.gain, best.gain_low, best.gain_high, "shorter step than with DDP ")
        yield f"{where}: use {best.scheme}, {gain}{trial}"
    elif trial or not others:
        yield f"{where}: keep DDP{trial}"
    else:
        most = max(others, key=lambda row: row.gain)
        unfit = {False: ", and does NOT fit", None: ", and may not fit" if most.may_not_fit else ""}.get(most.fits, "")
        gain = format_gain(most.gain, most.gain_low, most.gain_high, "of the step saved ")
        yield f"{where}: keep DDP; the best alternative is {most.scheme}, {gain}{unfit}"


_PLAIN = "plain DDP"
"""What DDP at torch's defaults is called, with the workload's own batch and all layers on every rank."""


def search_text(report: SearchReport, columns: Sequence[str] = ()) -> str:
    """Return the report as a table, of `columns` where there are some, and the lines below it."""
    best, chosen = report.best, (*report.rows, *report.may_not_fit)[0].plan.chosen
    records, unsure = report.describe(*report.rows), report.describe(*report.may_not_fit)
    if not isinstance(report.plain, str):
        (plain,) = report.describe(report.plain)
        records.append({**plain, "scheme": _PLAIN, "gain_over_plain_ddp": None})
    names = columns or list_shown("plan --search", [*records, *unsure])
    where = f"{chosen.topology.name}, {format_count(chosen.nodes, 'node')}"
    lines = [
        f"{report.name} on {where}: {format_count(report.global_batch_size, 'sample')} a step",
        "",
        text_of("plan --search", records, names),
        "",
        *(["may not fit:", text_of("plan --search", unsure, names), ""] if unsure else []),
        *_plain_ddp(report),
        *(["best: none is sure to fit"] if best is None else [f"best: {best.candidate}", f"    {best.plan.advice}"]),
    ]
    if report.trial is not None:
        lines += [break_line(f"{report.trial}:"), f"    {report.trial.torch}"]
    for row in report.may_not_fit:
        if best is None:
            break
        less = f"{100 * (1 - row.step_s[0] / best.step_s[0]):.1f} % shorter step than the best"
        lines.append(break_line(f"faster, but may not fit: {row.candidate}, {less}"))
    if report.within:
        lines += ["as good within its uncertainty:", *(f"    {row.candidate}" for row in report.within)]
    return "\n".join([*lines, *_ruled_out(report)])


def _ruled_out(report: SearchReport) -> Iterator[str]:
    """Yield how many candidates were looked at, and why the others are left."""
    left = sum(each.count for each in report.ruled_out)
    memory = (*report.rows, *report.may_not_fit)[0].plan.chosen.memory
    room = None if memory is None or memory.capacity_bytes is None else memory.capacity_bytes / GIB
    fitting = "" if room is None else f" for GPUs of {room:.1f} GiB"
    candidates = f"{format_count(report.candidates, 'candidate')}{fitting}, {report.simulated} of them simulated"
    yield f"{candidates}; {left} ruled out:"
    for each in report.ruled_out:
        why = each.reason if each.count == 1 else each.reason.replace("does not", "do not")
        yield f"    {each.count} {why}" + (f": {each.example}" if each.example else "")


def _plain_ddp(report: SearchReport) -> Iterator[str]:
    """Yield the best's gain over DDP at torch's defaults, or why there is none."""
    from ddpsim.planning.worth import format_gain

    if isinstance(report.plain, str):
        yield break_line(f"{_PLAIN} cannot train it there: {report.plain}")
        return
    plain, best = report.plain, report.best
    gain = None if best is None else report.gain_band_of(best)
    memory = plain.plan.chosen.memory
    fits = ", which does not fit" if memory is not None and memory.fits is False else ""
    than = f"{_PLAIN}, {format_time(plain.step_s[0])} a step{fits}"
    if gain is not None and gain[0] > 0:
        yield f"the best has a {format_gain(*gain, 'shorter step ')} than {than}"
    elif gain is not None:
        yield f"no candidate that is sure to fit is sure to be faster than {than}"
