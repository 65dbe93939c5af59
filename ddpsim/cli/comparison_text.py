"""A comparison as text of 100 columns: what each machine takes, what it costs, and what is worth knowing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpsim.tables import Column, ResultTable
from ddpsim.tables.table import WIDEST
from ddpsim.units import GIB, format_count, format_time

if TYPE_CHECKING:
    from ddpsim.planning.advice import Advice
    from ddpsim.planning.break_even import BreakEven
    from ddpsim.planning.comparison import Comparison
    from ddpsim.planning.comparison_row import ComparisonRow
    from ddpsim.planning.goal import RateGoal

Columns = list[Column["ComparisonRow"]]
_WHAT = {
    "hidden": "communication hidden",
    "link": "faster NICs gain < 1 %",
    "buckets": "buckets",
}


def text(found: Comparison, efficiency: float) -> str:
    """Return the comparison as tables and the lines under them, a part a model."""
    return "\n\n".join("\n".join(_part(found, model, efficiency)) for model in found.models)


def _part(found: Comparison, model: str, efficiency: float) -> Iterator[str]:
    rows = found.of(model)
    columns = find_varying(rows)
    yield _title(model, rows)
    yield ""
    whole = ResultTable.of([*_PLACE, *columns, *_TIME, *_tokens(rows), *_BINDS], rows).text()
    if max(map(len, whole.splitlines())) <= WIDEST:
        yield whole
    else:
        yield ResultTable.of([*_PLACE, *columns, *_TIME, *_tokens(rows)], rows).text()
        yield ""
        yield ResultTable.of([*_PLACE, *columns, *_BINDS], rows).text()
    if any(row.price is not None for row in rows):
        yield ""
        yield _prices(rows)
        yield ""
        yield ResultTable.of([*_PLACE, *columns, *_cost(rows)], [row for row in rows if row.price is not None]).text()
    yield ""
    yield from _verdict(found, model, rows)
    for advice in found.advice:
        if advice.row.model == model and (lines := list(_format_advice(advice, efficiency))):
            yield ""
            yield _format_advised_row(advice.row)
            yield from (f"    {line}" for line in lines)


def _tokens(rows: Sequence[ComparisonRow]) -> Columns:
    """Return the column of tokens a second, where a row's workload knows how long its sequences are."""
    known = any(row.prediction.tokens_per_s is not None for row in rows)
    return (
        [Column("tokens/s", lambda row: "" if (t := row.prediction.tokens_per_s) is None else f"{t:.0f}")]
        if known
        else []
    )


def _title(model: str, rows: Sequence[ComparisonRow]) -> str:
    """Return model, batch and precision where all rows have the same, and whose pace it is where that was estimated."""
    parts = [model]
    precisions = {row.prediction.workload.precision for row in rows}
    batches = {row.batch_size for row in rows}
    if len(precisions) == 1:
        parts.append(precisions.pop())
    if len(batches) == 1:
        parts.append(f"batch {batches.pop()} a GPU")
    if all(row.prediction.workload.estimated for row in rows):
        kept = dict.fromkeys(row.prediction.workload.device_label for row in rows if row.prediction.other_devices)
        parts.append(f"pace of {', '.join(kept)} estimated" if kept else "each GPU's pace estimated")
    return ", ".join(parts)


def find_varying(rows: Sequence[ComparisonRow]) -> Columns:
    """Return the columns of what differs from row to row beside machine and nodes."""
    columns: Columns = [
        Column("precision", lambda row: row.prediction.workload.precision),
        Column("batch", lambda row: row.batch_size),
        Column("cap MiB", lambda row: _cap(row)),
        Column("scheme", lambda row: row.prediction.options.scheme),
    ]
    found = [column for column in columns if len({column.cell(row) for row in rows}) > 1]
    if any(row.prediction.options.accumulate > 1 for row in rows):
        found.append(Column("micro-batch ms", _micro_batch))
    if any(row.link for row in rows):
        found.append(Column("rate", _link, words=True))
    if any(row.prediction.pace_kept for row in rows):
        found.append(Column("pace", _pace, words=True))
    return found


def _micro_batch(row: ComparisonRow) -> str:
    return f"{format_short(row.prediction.iteration_s * 1e3)} of {row.prediction.options.accumulate}"


def _pace(row: ComparisonRow) -> str:
    label = row.prediction.workload.device_label
    return f"{label}, kept" if row.prediction.pace_kept else label


def _cap(row: ComparisonRow) -> str:
    cap = row.prediction.options.caps.bucket_cap_mb
    return "default" if cap is None else f"{cap:g}"


def _link(row: ComparisonRow) -> str:
    if row.link is None or row.link_rate is None:
        return "as declared"
    name = "" if row.link == "nic" else f"{row.link} "
    return name + rate(row.link_rate)


def rate(bytes_per_s: float) -> str:
    """Return the rate of a link as it is sold: `100 Gb/s`."""
    return f"{bytes_per_s * 8e-9:.3g} Gb/s" if bytes_per_s < 125e9 else f"{bytes_per_s * 8e-12:.3g} Tb/s"


def span(band: tuple[float, float, float], factor: float = 1.0) -> str:
    """Return a number with its band, to three digits: `162 (121-218)`."""
    return "{} ({}-{})".format(*(format_short(value * factor) for value in band))


def format_short(value: float) -> str:
    """Return a number to three digits, without an exponent: `1.24`, `18.0`, `162`, `12345`."""
    # Of three digits 99.95 is the first number that would be written `100.`, with a point.
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}" if value >= 0.1 else f"{value:.2g}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %" if share < 0.1 else f"{share * 100:.0f} %"


def _format_binds(row: ComparisonRow) -> str:
    from ddpsim.planning.bound import describe_bound

    return describe_bound(row.bound, row.prediction.workload)


def _memory(row: ComparisonRow) -> str:
    memory = row.prediction.memory
    if memory is None:
        return ""
    known = "" if memory.activations_bytes is not None else ">"
    of = "" if memory.capacity_bytes is None else f"/{memory.capacity_bytes / GIB:.0f}"
    return f"{known}{memory.step_bytes / GIB:.1f}{of}{ {False: ' NO', None: ' ?'}.get(memory.fits, '') }"


_PLACE: Columns = [
    Column("machine", lambda row: row.machine, words=True),
    Column("GPUs", lambda row: f"{row.nodes} x {row.prediction.placement.gpus_per_node}"),
]
_TIME: Columns = [
    Column("step ms", lambda row: span(row.step_s, 1e3)),
    Column("samples/s", lambda row: f"{row.samples_per_s[0]:.0f}"),
    Column("eff.", lambda row: _percent(row.efficiency[0])),
]
_BINDS: Columns = [
    Column("exposed", lambda row: _percent(row.bound.exposed_share)),
    Column("bound", _format_binds, words=True),
    Column("link", lambda row: row.bound.link, words=True),
    Column("GiB", _memory),
]


def _cost(rows: Sequence[ComparisonRow]) -> Columns:
    priced = next(row for row in rows if row.price is not None)
    currency = "" if priced.price is None else priced.price.currency
    columns: Columns = [
        Column(f"{currency}/h", lambda row: format_short(row.per_hour or 0.0)),
        Column(f"{currency} a million samples", lambda row: span(row.per_million_samples or _NOTHING)),
    ]
    if priced.epoch_s is not None:
        unit, seconds = _unit(max(row.epoch_s[0] for row in rows if row.epoch_s is not None))
        columns.append(Column(f"{unit} an epoch", lambda row: span(row.epoch_s or _NOTHING, 1 / seconds)))
        columns.append(Column(f"{currency} an epoch", lambda row: span(row.per_epoch or _NOTHING)))
    return [*columns, Column("front", lambda row: "*" if row.pareto else "", words=True)]


_NOTHING = (0.0, 0.0, 0.0)
_LONG_S = 3 * 3600
"""From here on epochs are in hours, below in minutes; chosen by hand, for digits that are read at a glance."""


def _unit(longest_s: float) -> tuple[str, float]:
    return ("h", 3600.0) if longest_s >= _LONG_S else ("min", 60.0)


def _prices(rows: Sequence[ComparisonRow]) -> str:
    """Return the prices with their days, as they were given."""
    given = {row.machine: row.price for row in rows if row.price is not None}
    said = [f"    {m} {p.per_hour:g} {p.currency}/h, {p.date or 'no date given'}" for m, p in given.items()]
    return "\n".join(["prices of a node, as given:", *said])


def _verdict(found: Comparison, model: str, rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield which is best and whose bands leave that open, and which rows are not in question."""
    from ddpsim.planning.ranking import describe_borrowed, list_unranked

    ranked, best = found.list_ranked(model), found.best_of(model)
    if best is not None:
        yield from _format_ranking(found, best, [row for row in ranked if row.fits is not False] or ranked)
    yield from describe_borrowed(row.prediction for row in rows)
    if unfit := [row for row in rows if row.fits is False]:
        yield f"does NOT fit its GPUs: {', '.join(dict.fromkeys(map(_format_where, unfit)))}"
    for why, kept in list_unranked(row.prediction for row in rows):
        places = (_format_where(row) for row in rows if any(row.prediction is each for each in kept))
        yield f"not ranked: {', '.join(dict.fromkeys(places))}: {why}"


def _format_ranking(found: Comparison, best: ComparisonRow, fitting: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield which of the rows that may fit is fastest, which is cheapest, and which meets the goal."""
    from ddpsim.planning.ranking import describe_overlap

    fastest = max(fitting, key=lambda row: row.samples_per_s[0])
    yield f"fastest: {_format_where(fastest)}, {format_short(fastest.samples_per_s[0])} samples/s"
    near = [f"    {describe_overlap(names)}"] if (names := found.rivals(best.model)) else []
    cost = best.per_million_samples
    if cost is not None and best.price is not None:
        what = "cheapest" if found.goal is None else f"cheapest that meets {found.goal.describe()}"
        yield f"{what}: {_format_where(best)}, {span(cost)} {best.price.currency} a million samples"
        yield from _goal_lines(best, found.goal)
        yield from near
        yield "front of cost over time (*): what nothing beats in both"
        if unpriced := dict.fromkeys(row.machine for row in fitting if row.price is None):
            yield f"without a price, so not in question: {', '.join(unpriced)}"
    elif found.goal is not None:
        yield from near
        yield f"meets {found.goal.describe()}: {_format_where(best)}"
        yield from _goal_lines(best, found.goal)
    else:
        yield from near


def _goal_lines(best: ComparisonRow, goal: RateGoal | None) -> Iterator[str]:
    """Yield what the best row comes to in the terms of the goal, and whether its whole band meets it."""
    if goal is not None:
        sure = "its whole band meets it" if goal.is_met_by(best.samples_per_s[1]) else "the slow end misses it"
        yield f"    {goal.describe_reached(best.samples_per_s)}; {sure}"


def _format_where(row: ComparisonRow) -> str:
    parts = [f"{format_count(row.nodes, 'node')} of {row.machine}"]
    if row.link_rate is not None:
        parts.append(_link(row))
    return ", ".join(parts)


def _format_advised_row(row: ComparisonRow) -> str:
    at = "" if row.link_rate is None else f", {_link(row)}"
    return f"{row.machine}, batch {row.batch_size}, {row.prediction.workload.precision}{at}"


def _format_advice(advice: Advice, efficiency: float) -> Iterator[str]:
    """Yield what is worth knowing of a machine, a line each."""
    for found in advice.break_even:
        yield _break_even(found, efficiency)
    if advice.apart is not None:
        cost = advice.apart
        shares = _shares(cost.cost)
        kept = "keep them in one machine" if cost.cost[0] > 0 else "one machine gains nothing"
        one_s, two_s = (cost.micro_batches * each_s for each_s in (cost.together_s, cost.apart_s))
        times = f"{format_time(one_s)} a step on one node, {format_time(two_s)} on two"
        yield f"{cost.ranks} ranks take {times}: {kept}, {shares} less"
    for each in advice.accumulating:
        saved = f"saves {_shares(each.saving)} of each micro-batch on {_nodes(advice.row)}"
        yield f"no_sync, reducing every {each.every} micro-batches, which make a step, {saved}"


def _break_even(found: BreakEven, efficiency: float) -> str:
    if found.what == "efficiency":
        what = f"efficiency of {efficiency:.0%} or more".replace("%", " %")
        expected = found.why if found.value is None else f"expected up to {format_count(round(found.value), 'node')}"
        sure = "surely on no number" if found.low is None else f"surely up to {found.low:.0f}"
        not_sure = "never ruled out" if found.high is None else f"surely not beyond {found.high:.0f}"
        return f"{what}: {expected}; {sure}, {not_sure}"
    what = f"{_WHAT[found.what]} on {_nodes(found.row)}"
    if found.advised is not None:
        return f"{what}: {_plan_at_own_rate(found)}; {_where_buckets_matter(found)}"
    expected = found.why if found.value is None else f"expected from {rate(found.value)} a NIC on"
    sure = "surely at no rate" if found.high is None else f"surely from {rate(found.high)}"
    not_sure = "never ruled out" if found.low is None else f"surely not below {rate(found.low)}"
    return f"{what}: {expected}" + (f"; {sure}, {not_sure}" if found.value is not None or found.high else "")


def _plan_at_own_rate(found: BreakEven) -> str:
    """Return what `plan` says of buckets at the machine's own rate."""
    from ddpsim.planning.worth import arguments_of, format_gain

    line, gain = found.advised or ("", (0.0, 0.0, 0.0))
    said = f"{arguments_of(line)}, {format_gain(*gain, 'gained ')}" if gain[0] else "torch's default stays"
    return f"{said}; {found.trial}" if found.trial else said


def _where_buckets_matter(found: BreakEven) -> str:
    if found.value is None or found.low is None or found.high is None:
        return found.why
    between = f"between {rate(found.low)} and {rate(found.high)}"
    return f"others gain under 1 % from about {rate(found.value)} a NIC on ({between})"


def _shares(band: tuple[float, float, float]) -> str:
    """Return a share with its band in percent: `82 % (73 to 95)`."""
    return "{:.0f} % ({:.0f} to {:.0f})".format(*(100 * share for share in band))


def _nodes(row: ComparisonRow) -> str:
    return format_count(row.nodes, "node")
