"""Carry a campaign out, configuration by configuration, and go on where an interrupted one stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ddpexec.campaign import stages
from ddpexec.campaign.report import markdown
from ddpexec.campaign.results import Result, summarised
from ddpexec.campaign.spec import Campaign, Configuration
from ddpexec.netlab import support
from ddpsim.errors import InputError
from ddpsim.files import json_text, write_whole
from ddpsim.workload.files import load_workload

Progress = Callable[[str], None]


def carry_out(campaign: Campaign, folder: Path, progress: Progress) -> tuple[list[Result], list[str]]:
    """Run what is not there yet and write the summary.

    Args:
        campaign: what to run.
        folder: what was done before lies here, and is kept where its configuration is unchanged.
        progress: called with a line of text.

    Returns:
        results in file order, and what failed, one line a configuration.

    Raises:
        InputError: a machine without lab networks, or a step longer than the campaign's `max_step`.
    """
    if lacking := support.missing():
        raise InputError(f"a campaign needs {'; '.join(lacking)}", place="campaign")
    check_steps(campaign)
    results, failures = [], []
    for number, configuration in enumerate(campaign.configurations, 1):
        progress(f"[{number}/{len(campaign.configurations)}] {configuration.name}")
        try:
            results.append(_one(configuration, folder, progress))
        except InputError as error:
            failures.append(f"{configuration.name}: {error}")
            progress(f"    FAILED: {error}")
            continue
        progress(f"    {_line(results[-1])}")
        write_summary(campaign, results, folder)
    return results, failures


def check_steps(campaign: Campaign) -> None:
    """Raise `InputError` where a step would last longer than `max_step`, naming every such configuration."""
    too_long = []
    for each in campaign.configurations:
        if each.run.workload is None:
            continue
        workload = stages.scaled(each, load_workload(each.run.workload))
        phases = (workload.forward, workload.backward, workload.optimizer)
        least_s = max(sum(float(phase.device_s.mean()) for phase in phases), stages.wire_s(each, workload))
        if least_s > campaign.max_step_s:
            too_long.append(f"{each.name} takes at least {least_s:.2f} s")
    if too_long:
        raise InputError(
            "; ".join(too_long),
            place="max_step",
            remedy=f"raise the rate or lower the scale: {campaign.max_step_s:g} s",
        )


def write_summary(campaign: Campaign, results: list[Result], folder: Path) -> None:
    """Write `summary.json` and `summary.md`."""
    summary = summarised(results)
    document = {"campaign": campaign.name, **summary, "results": [result.document() for result in results]}
    write_whole(folder / "summary.json", json_text(document))
    write_whole(folder / "summary.md", markdown(campaign.name, summary, results))


def _one(configuration: Configuration, folder: Path, progress: Progress) -> Result:
    own = folder / "runs" / configuration.name
    _begin(configuration, own)
    if (done := stages.read_result(own)) is not None:
        return done
    network = stages.measure_network(configuration.run.network, configuration, folder)
    workload = stages.prepare_workload(configuration, network, own)
    stages.write_prediction(configuration, network, workload, own)
    for repeat in range(configuration.repeats):
        stages.measure_run(configuration, network, workload, own, repeat)
    return stages.conclude(configuration, network, workload, own)


def _begin(configuration: Configuration, own: Path) -> None:
    """Throw away what was done for another configuration of this name."""
    mark = own / "configuration.txt"
    fingerprint = configuration.fingerprint() + "\n"
    if mark.exists() and mark.read_text() != fingerprint:
        shutil.rmtree(own)
    if not mark.exists():
        write_whole(mark, fingerprint)


def _line(result: Result) -> str:
    return (
        f"measured {result.step_s * 1e3:.1f} ms, predicted {result.predicted_s * 1e3:.1f} ms, "
        f"{result.error:+.2%}; largest term {result.largest_term}"
    )
