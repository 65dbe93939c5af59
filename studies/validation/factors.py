"""What distinguishes the configurations of a campaign, and how well each value of each factor is predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ddpexec.lab.campaign.report import percent
from ddpexec.lab.campaign.spec import Configuration
from studies.validation.evidence import Held, Recorded

SIDES = ("before", "now")


def factors(configuration: Configuration) -> Mapping[str, str]:
    """Return the value of every factor, in words."""
    run, network, options = configuration.run, configuration.network, configuration.run.options
    caps = "default" if options["bucket_cap_mb"] is None else f"{options['bucket_cap_mb']:g} MiB"
    return {
        "network": run.network,
        "shape": "slow link" if network.slow else "trunk" if network.trunk else "flat",
        "ranks": str(network.ranks),
        "delay": f"{network.delay * 1e3:g} ms",
        "wire / backward": "real computation" if run.model else _wire(configuration),
        "implementation": options["implementation"],
        "workload": run.workload or f"{run.model}, computed",
        "caps": "list" if options["bucket_cap_mb_list"] else caps,
        "gradients as views": "yes" if options["gradient_as_bucket_view"] else "no",
        "synchronised every": str(options["accumulate"]),
        "process groups": str(options["process_groups"]),
        "straggler": "yes" if options["stragglers"] else "no",
    }


def _wire(configuration: Configuration) -> str:
    wire = configuration.run.wire_over_backward
    return "as scaled" if wire is None else f"{wire:g}"


def by_factor(recorded: Sequence[Recorded]) -> Iterator[str]:
    """Yield the breakdown as a table; factors of one value are left out."""
    yield "| factor | value | n | step error before, signed | now | step error before, absolute | now " + (
        "| overhead error before, signed | now | bucket finish, now |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for factor in factors(recorded[0].configuration):
        groups: dict[str, list[Recorded]] = {}
        for each in recorded:
            groups.setdefault(factors(each.configuration)[factor], []).append(each)
        for value in sorted(groups, key=_in_order) if len(groups) > 1 else []:
            yield f"| {factor} | {value} | {len(groups[value])} | {' | '.join(_cells(groups[value]))} |"


def _cells(group: Sequence[Recorded]) -> Iterator[str]:
    sides = [[each.before.result for each in group], [each.now.result for each in group]]
    for results in sides:
        yield percent(median(result.error for result in results), signed=True)
    for results in sides:
        yield percent(median(abs(result.error) for result in results))
    for results in sides:
        known = [result.overhead_error for result in results if result.overhead_error is not None]
        yield percent(median(known) if known else None, signed=True)
    finishes = [abs(error) for result in sides[1] for error in result.bucket_errors]
    yield percent(median(finishes) if finishes else None)


def _in_order(value: str) -> tuple[float, str]:
    try:
        return float(value.split()[0]), value
    except ValueError:
        return float("inf"), value


def by_term(recorded: Sequence[Recorded]) -> Iterator[str]:
    """Yield which terms of the step, and of the buckets' ways, are off, as shares of the step."""
    yield "| term | n | before, signed median | median absolute | largest in | now, signed | absolute | largest in |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    names = list(dict.fromkeys(name for each in recorded for name in each.before.terms))
    for name in names:
        cells = [cell for side in SIDES for cell in _term([getattr(each, side) for each in recorded], name)]
        count = sum(name in each.before.terms for each in recorded)
        yield f"| {name.replace('_', ' ')} | {count} | {' | '.join(cells)} |"


def _term(held: Sequence[Held], name: str) -> Iterator[str]:
    shares = [each.terms[name] for each in held if name in each.terms]
    yield percent(median(shares) if shares else None, signed=True)
    yield percent(median(map(abs, shares)) if shares else None)
    yield str(sum(each.result.largest_term == name for each in held))
