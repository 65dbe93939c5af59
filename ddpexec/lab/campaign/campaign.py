"""Carry a campaign out, configuration by configuration, and go on where an interrupted one stopped."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ddpexec.lab.campaign import predicting, stages
from ddpexec.lab.campaign.report import markdown
from ddpexec.lab.campaign.results import Result, summarise_results
from ddpexec.lab.campaign.spec import CODE, Campaign, Configuration
from ddpexec.lab.campaign.time_left import TimeLeft, format_spoken, least_step_s
from ddpexec.lab.netlab import support
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.files import json_text, write_whole
from ddpsim.schedules.named import names_code

Progress = Callable[[str], None]


def carry_out(
    campaign: Campaign, folder: Path, progress: Progress, only: Sequence[str] = (), *, trust_code: bool = False
) -> tuple[list[Result], list[str]]:
    """Run what is not there yet and write the summary.

    Args:
        campaign: what to run.
        folder: what was done before lies here, and is kept where its configuration is unchanged.
        progress: called with a line of text.
        only: names or glob patterns of the configurations to run; none is all. The others count where they are done.
        trust_code: import and run the functions that the file names as schemes.

    Returns:
        results in file order, and what failed, one line a configuration; a failure does not stop the others.

    Raises:
        InputError: a machine without lab networks, a step longer than the campaign's `max_step`, a pattern that fits
            no configuration, or a scheme that is code without `trust_code`.
    """
    chosen = select_configurations(campaign, only)
    check_code(chosen, trust_code=trust_code)
    if lacking := support.list_missing():
        raise InputError(f"a campaign needs {'; '.join(lacking)}", place="campaign")
    check_steps(campaign, chosen)
    names = {each.name for each in chosen}
    time_left = TimeLeft(chosen, campaign.max_step_s)
    results, failures, number = [], [], 0
    for configuration in campaign.configurations:
        if configuration.name not in names:
            results += [result] if (result := find_finished(configuration, folder)) else []
            continue
        number += 1
        progress(f"[{number}/{len(chosen)}] {configuration.name} (about {format_spoken(time_left.seconds)} left)")
        begin_s, was_done = time.monotonic(), find_finished(configuration, folder) is not None
        outcome = _attempt(configuration, folder)
        if isinstance(outcome, Result):
            results.append(outcome)
            progress(f"    {_line(outcome)}")
            for line in outcome.notes():
                progress(f"    note: {line}")
        else:
            failures.append(f"{configuration.name}: {outcome}")
            progress(f"    FAILED: {outcome}")
        time_left.done(configuration, None if was_done else time.monotonic() - begin_s)
        write_summary(campaign, results, folder)
    write_summary(campaign, results, folder)
    return results, failures


def select_configurations(campaign: Campaign, only: Sequence[str]) -> tuple[Configuration, ...]:
    """Return the configurations whose name is, or fits, one of `only`; all of them where there is none.

    Raises:
        UnknownNameError: one that fits no name; the nearest names are given.
    """
    if not only:
        return campaign.configurations
    names = [each.name for each in campaign.configurations]
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UnknownNameError.among("configuration", pattern, names, place="only")
    return tuple(each for each in campaign.configurations if any(fnmatchcase(each.name, pattern) for pattern in only))


def is_current(configuration: Configuration, folder: Path) -> bool:
    """Return whether what `folder` has of this name was begun for this very configuration."""
    mark = folder / "runs" / configuration.name / "configuration.txt"
    return mark.exists() and mark.read_text() == _mark(configuration)


def find_finished(configuration: Configuration, folder: Path) -> Result | None:
    """Return the result of `configuration` in `folder`; None where it has none, or another one's of this name."""
    return stages.read_result(folder / "runs" / configuration.name) if is_current(configuration, folder) else None


def check_steps(campaign: Campaign, chosen: Sequence[Configuration] | None = None) -> None:
    """Raise `InputError` where a step would last longer than `max_step`, naming every such configuration."""
    too_long = []
    for each in campaign.configurations if chosen is None else chosen:
        least_s = least_step_s(each)
        if least_s is not None and least_s > campaign.max_step_s:
            too_long.append(f"{each.name} takes at least {least_s:.2f} s")
    if too_long:
        raise InputError(
            "; ".join(too_long),
            place="max_step",
            remedy=f"raise the rate or lower the scale: {campaign.max_step_s:g} s",
        )


def check_code(chosen: Sequence[Configuration], *, trust_code: bool) -> None:
    """Refuse the first function or class of one's own, or with `trust_code` the first that cannot be run."""
    for each in chosen:
        for name in CODE:
            given = str(each.run.options[name])
            if not names_code(given):
                continue
            if not trust_code:
                what, remedy = f"`{name}: {given}` would import and run code", "give --trust-code if you trust it"
                raise InputError(what, place=each.name, remedy=remedy)
            each.settings()


def write_summary(campaign: Campaign, results: list[Result], folder: Path) -> None:
    """Write `summary.json` and `summary.md`."""
    summary = summarise_results(results)
    document = {"campaign": campaign.name, **summary, "results": [result.document() for result in results]}
    write_whole(folder / "summary.json", json_text(document))
    write_whole(folder / "summary.md", markdown(campaign.name, summary, results))


def _attempt(configuration: Configuration, folder: Path) -> Result | str:
    """Return the result of `configuration`, or what went wrong; a failure must not cost the hours of the others."""
    try:
        return _run_one(configuration, folder)
    except InputError as error:
        return str(error)
    except Exception as error:
        where = folder / "runs" / configuration.name / "failure.txt"
        write_whole(where, traceback.format_exc())
        return f"{type(error).__name__}: {error}; see {where}"


def _run_one(configuration: Configuration, folder: Path) -> Result:
    """Do what is not done yet; what was done for another configuration of this name is thrown away."""
    own = folder / "runs" / configuration.name
    if own.exists() and (not is_current(configuration, folder) or stages.workload_changed(configuration, own)):
        shutil.rmtree(own)
    if not own.exists():
        write_whole(own / "configuration.txt", _mark(configuration))
    if (done := stages.read_result(own)) is not None:
        return done
    network = stages.describe_network(configuration, folder)
    workload = stages.prepare_workload(configuration, network, own)
    stages.measure_network(configuration, network, own)
    predicting.refuse_hindsight(configuration, network, own)
    predicting.write_prediction(configuration, network, workload, own)
    for repeat in range(configuration.repeats):
        stages.measure_run(configuration, network, workload, own, repeat)
    return stages.conclude(configuration, network, workload, own)


def _mark(configuration: Configuration) -> str:
    return configuration.fingerprint() + "\n"


def _line(result: Result) -> str:
    return (
        f"measured {result.step_s * 1e3:.1f} ms, predicted {result.predicted_s * 1e3:.1f} ms, "
        f"{result.error:+.2%}; largest term {result.largest_term}"
    )
