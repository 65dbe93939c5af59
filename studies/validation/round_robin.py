"""What round-robin process groups gain over one, measured and predicted, side by side where all else is alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpexec.lab.campaign.report import percent
from ddpexec.lab.campaign.results import Result
from ddpexec.lab.campaign.spec import Configuration
from studies.validation.evidence import Recorded


def gains(recorded: Sequence[Recorded]) -> Iterator[str]:
    """Yield a row a configuration of every family that ran with one group and with several."""
    yield "| network | groups | measured, ms | noise | gain | predicted before, ms | gain | today's code, ms | gain |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    families: dict[str, list[Recorded]] = {}
    for each in recorded:
        families.setdefault(_family(each.configuration), []).append(each)
    for family in families.values():
        one = next((each for each in family if _groups(each) == 1), None)
        if one is None or len(family) < 2:
            continue
        for each in sorted(family, key=_groups):
            yield f"| {' | '.join(_cells(each, one))} |"


def _groups(each: Recorded) -> int:
    return int(each.configuration.run.options["process_groups"])


def _cells(each: Recorded, one: Recorded) -> Iterator[str]:
    run, measured = each.configuration.run, each.before.result
    yield from (run.network, str(_groups(each)), f"{measured.step_s * 1e3:.0f}", percent(measured.noise))
    yield _gain(one.before.result.step_s, measured.step_s)
    for result, base in ((each.before.result, one.before.result), (each.now.result, one.now.result)):
        yield from _predicted(result, base)


def _predicted(result: Result, one: Result) -> Iterator[str]:
    yield f"{result.predicted_s * 1e3:.0f}"
    yield _gain(one.predicted_s, result.predicted_s)


def _gain(one_s: float, step_s: float) -> str:
    return percent(1 - step_s / one_s, signed=True)


def _family(configuration: Configuration) -> str:
    alike = configuration.run.model_copy(update={"process_groups": 1})
    return alike.model_dump_json()
