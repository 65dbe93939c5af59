"""Carry a campaign out, configuration by configuration, and go on where an interrupted one stopped.

Start with `carry_out`. A configuration's prediction is written before its runs, with fingerprints of all its inputs;
`refuse_hindsight` stops a campaign in which runs exist that are older than their prediction. `TimeLeft` adds up what is
left to do, corrected by how long the configurations so far have taken.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import ddpsim
from ddpexec.lab.campaign import stages
from ddpexec.lab.campaign.report import markdown
from ddpexec.lab.campaign.results import Result, summarise_results
from ddpexec.lab.campaign.spec import CODE, Campaign, Configuration
from ddpexec.lab.campaign.stages import MeasuredNetwork
from ddpexec.lab.netlab import support
from ddpexec.running.provenance import utc
from ddpexec.running.settings import DISCARDED
from ddpsim.collectives.calibration_file import load_calibration
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.files import json_text, write_whole
from ddpsim.common.options.option import build
from ddpsim.prediction.document import load_prediction
from ddpsim.prediction.first import predict_first_iterations
from ddpsim.prediction.predict import predict
from ddpsim.schedules.named import names_code
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload


def write_prediction(configuration: Configuration, network: MeasuredNetwork, workload: Workload, folder: Path) -> None:
    """Predict and write the document with the time and fingerprints of all that went in; skip where it is there.

    It tells the construction and the iterations that runs discard too, but where layers are left out.
    """
    path = folder / "prediction.json"
    if path.exists():
        return
    calibration = load_calibration(str(network.calibration))
    topology = load_topology(str(network.topology))
    prediction = predict(Job(workload, topology, options=options(configuration), calibration=calibration))
    stamp = {
        "written_at": utc(time.time()),
        "inputs_fingerprint": inputs_fingerprint(configuration, network, folder),
        "simulator_fingerprint": simulator_fingerprint(),
        "configuration": configuration.name,
    }
    begins = {} if prediction.options.drop else {"first": predict_first_iterations(prediction, DISCARDED).document()}
    write_whole(path, json_text({**prediction.document(), **begins, "campaign": stamp}))


def refuse_hindsight(configuration: Configuration, network: MeasuredNetwork, folder: Path) -> None:
    """Delete a prediction whose inputs have changed since.

    Raises:
        InputError: there are runs, but no prediction that was made before them from what is there now.
    """
    path, what = folder / "prediction.json", "it has run, but its prediction is gone"
    if path.exists():
        stamp = load_prediction(path).get("campaign")
        inputs = inputs_fingerprint(configuration, network, folder)
        if isinstance(stamp, dict) and stamp.get("inputs_fingerprint") == inputs:
            return
        what = "its workload, network or constants have changed since it was predicted"
    # A prediction made after its runs would be worth nothing: the runs must go first.
    if any(folder.glob("run*/run.json")):
        raise InputError(what, place=str(folder), remedy="delete the folder to predict and run it anew")
    path.unlink(missing_ok=True)


def simulator_fingerprint() -> str:
    """Return 16 hexadecimal digits of the simulator's source."""
    package = Path(ddpsim.__file__).parent
    content = b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))
    return hashlib.sha256(content).hexdigest()[:16]


def inputs_fingerprint(configuration: Configuration, network: MeasuredNetwork, folder: Path) -> str:
    """Return 16 hexadecimal digits that change with any input of a prediction."""
    inputs = [folder / "workload.json.gz", network.topology, network.calibration]
    content = b"".join(each.read_bytes() for each in inputs) + configuration.fingerprint().encode()
    return hashlib.sha256(content).hexdigest()[:16]


def options(configuration: Configuration) -> Options:
    """Return the configuration as the simulation takes it."""
    run_options = configuration.run.options
    return cast("Options", build(Options, {**run_options, "backend": "gloo", "seed": run_options["seed"] + 1}))


START_S = 8.0
"""About what a run takes beside its steps, to weigh short steps against long ones; measured time corrects the sum."""


def least_step_s(configuration: Configuration) -> float | None:
    """Return what a step takes at least: one process's time or the wire's; None for a model that computes."""
    if configuration.run.workload is None:
        return None
    workload = stages.stretch_workload(configuration, load_workload(configuration.run.workload))
    phases = (workload.forward, workload.backward, workload.optimizer)
    computing_s = sum(float(phase.device_s.mean()) for phase in phases)
    if configuration.run.options["compression"] != "none" or configuration.run.options["comm"] == "noop":
        return computing_s
    return max(computing_s, stages.wire_s(configuration, workload))


class TimeLeft:
    """Says how long the configurations that are left of a campaign will take.

    Args:
        configurations: those to be run.
        longest_step_s: what a model's step is taken for until it has run.
    """

    def __init__(self, configurations: Sequence[Configuration], longest_step_s: float) -> None:
        self._expected = {each.name: self._run_s(each, longest_step_s) for each in configurations}
        self._taken_s = self._planned_s = 0.0

    def done(self, configuration: Configuration, seconds: float | None) -> None:
        """Note that `configuration` took `seconds`; None where it was found done, which says nothing of time."""
        planned_s = self._expected.pop(configuration.name)
        if seconds is not None:
            self._taken_s += seconds
            self._planned_s += planned_s

    @property
    def seconds(self) -> float:
        """What the configurations not noted will take."""
        factor = self._taken_s / self._planned_s if self._planned_s > 0 else 1.0
        return factor * sum(self._expected.values())

    @staticmethod
    def _run_s(configuration: Configuration, longest_step_s: float) -> float:
        step_s = least_step_s(configuration) or longest_step_s
        steps = DISCARDED + configuration.iterations * int(configuration.run.options["accumulate"])
        return configuration.repeats * (START_S + steps * step_s)


def format_spoken(seconds: float) -> str:
    """Return a duration as people say it: `40 s`, `12 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


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
        # A configuration that was done before takes no time, and says nothing of how long others take.
        time_left.done(configuration, None if was_done else time.monotonic() - begin_s)
        # Written after each, so that an interrupted campaign has its summary.
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
            path = str(each.run.options[name])
            if not names_code(path):
                continue
            if not trust_code:
                what, remedy = f"`{name}: {path}` would import and run code", "give --trust-code if you trust it"
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
    refuse_hindsight(configuration, network, own)
    write_prediction(configuration, network, workload, own)
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
