"""The steps of a campaign other than its predictions, each leaving a file: a network measured, runs, a result.

In order: `describe_network`, `prepare_workload`, `measure_network`, `measure_run`, `conclude`. What needs torch or a
network is a command of ddpexec in a process of its own, once a rank on a lab network (`run_in_lab`); a signal to the
campaign ends its lab too.

`average_runs` makes one measurement of the runs of a configuration: every time is their mean, so that parts still add
up to the whole. `measure_baselines` feeds trivial predictors with measured times: what a simulator must beat.
"""

from __future__ import annotations

import functools
import math
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from ddpexec.groups.environment import module_environment
from ddpexec.lab.campaign.results import Result
from ddpexec.lab.campaign.spec import Configuration, network_topology
from ddpexec.lab.netlab.network import wire_bytes
from ddpexec.running.settings import RunSettings
from ddpsim.calibrating.calibrate import calibrate
from ddpsim.calibrating.measured import read_table
from ddpsim.common.errors import InputError
from ddpsim.common.files import json_text, read_json, write_whole
from ddpsim.common.options.arguments import format_arguments
from ddpsim.common.options.option import option_values
from ddpsim.common.other_work import OtherWork
from ddpsim.common.parent import die_with_parent
from ddpsim.planning.validate import (
    BucketError,
    ComparedQuantity,
    ComparedRatio,
    ErrorTerm,
    Validation,
    baselines,
    validate,
)
from ddpsim.prediction.document import load_prediction
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace
from ddpsim.trace.metrics import BucketSummary, summarise
from ddpsim.trace.records import Trace
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload, save_workload, workload_document
from ddpsim.workload.pool import pool_captures
from ddpsim.workload.replayed import single_clock

Table = Sequence[tuple[int, float]]
"""Measured allreduces: size in bytes, seconds; sizes ascending."""


def interpolate(table: Table, size_bytes: int) -> float:
    """Return the time of an allreduce of `size_bytes`: log-log between rows, the last row's bandwidth beyond them.

    Below the first row its time holds.
    """
    if size_bytes <= table[0][0]:
        return table[0][1]
    for (small, fast), (large, slow) in pairwise(table):
        if size_bytes <= large:
            share = math.log(size_bytes / small) / math.log(large / small)
            return fast * math.exp(share * math.log(slow / fast))
    return table[-1][1] * size_bytes / table[-1][0]


def measure_baselines(
    table: Table, buckets: Sequence[BucketSummary], local_s: float, optimizer_s: float, sync_every: int = 1
) -> Mapping[str, float]:
    """Return what each trivial predictor says of the mean iteration.

    Args:
        table: allreduces measured on this network apart from the run.
        buckets: of the run; their measured `ready_s`, from the start of forward, feeds the pipeline.
        local_s, optimizer_s, sync_every: as `ddpsim.planning.validate.baselines`.
    """
    times = [interpolate(table, bucket.size_bytes) for bucket in buckets]
    predicted = baselines(
        zip((bucket.ready_s for bucket in buckets), times, strict=True),
        local_s=local_s,
        optimizer_s=optimizer_s,
        under_s=local_s,
        communication_s=sum(times),
        sync_every=sync_every,
    )
    return {
        "one_process": predicted.one_process_s,
        "max_of_compute_and_wire": predicted.max_s,
        "sum_of_compute_and_wire": predicted.sum_s,
        "in_order_pipeline": predicted.in_order_pipeline_s,
    }


TIMEOUT_S = 1800.0
"""Seconds a command of a campaign may take before it is ended; chosen by hand, several times the longest one."""
GRACE_S = 30.0
"""How long a lab that is asked to end may take: its ranks have twice `launch.GRACE_S`, then namespaces are removed."""


def run_in_lab(topology: Path, command: Sequence[str]) -> None:
    """Run a command of ddpexec once a rank on the network of `topology`.

    The lab has a process group of its own: what a terminal sends to the campaign's group reaches the lab only as the
    request to end that it gets here, whatever exception passes through.

    Raises:
        InputError: where it fails; the last lines it wrote are in the message.
    """
    lab = ["netlab", "--topology", str(topology), "--", sys.executable, "-m", "ddpexec", *command]
    # A session of its own, so that Ctrl-C reaches the campaign first, which then ends the lab in order; where the
    # campaign dies, the kernel ends the lab (`die_with_parent`).
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpexec", *lab],
        env=module_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),
    )
    try:
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise InputError(f"`{' '.join(command)}` took more than {TIMEOUT_S:.0f} s", place="campaign") from None
    finally:
        _end(process)
    if process.returncode != 0:
        last = " / ".join(stderr.strip().splitlines()[-3:])
        raise InputError(f"`{' '.join(command)}` ended with exit code {process.returncode}: {last}", place="campaign")


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a lab that still stands to end, and wait until it is gone."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def average_runs(runs: Sequence[Validation]) -> Validation:
    """Return one prediction held against the mean of several runs, a validation each.

    Terms that not every run has are left out. One process's time is the runs' own where each of them has it, else the
    prediction's.
    """
    first = runs[0]
    step_s = fmean(run.iterations.measured_s for run in runs)
    # Either all runs timed one process beside themselves, or none counts: means of both kinds would not fit together.
    timed = all(run.local_source == "run" for run in runs)
    local_s = first.iterations.predicted_s - first.overhead.predicted_s
    overhead_s = fmean(
        run.overhead.measured_s if timed or run.local_source != "run" else run.iterations.measured_s - local_s
        for run in runs
    )
    buckets = zip(*(run.buckets for run in runs), strict=False)
    return Validation(
        iterations=ComparedQuantity.of(step_s, first.iterations.predicted_s),
        overhead=ComparedQuantity.of(overhead_s, first.overhead.predicted_s),
        local_source="run" if timed else "prediction",
        buckets=tuple(_bucket(each, step_s) for each in buckets),
        terms=tuple(_terms(runs, step_s)),
        baselines={
            name: {
                "predicted_s": seconds,
                "error": seconds / step_s - 1,
                "overhead_error": (seconds - local_s) / overhead_s - 1 if overhead_s > 0 else None,
            }
            for name, baseline in first.baselines.items()
            if (seconds := baseline["predicted_s"]) is not None
        },
        ratio=_pool([run.ratio for run in runs]),
    )


def mean_of(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each entry."""
    return {name: fmean(value[name] for value in values) for name in values[0]}


def _pool(ratios: Sequence[ComparedRatio | None]) -> ComparedRatio | None:
    """Return the ratio over all runs, each as one round of it; None where one of them took no turns."""
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        return None
    return (
        known[0]
        if len(known) == 1
        else ComparedRatio.of([r.measured for r in known], known[0].predicted, median(r.drift for r in known))
    )


def _bucket(runs: Sequence[BucketError], step_s: float) -> BucketError:
    first, measured = runs[0], mean_of([run.measured for run in runs])
    errors = {name: (first.predicted[name] - measured[name]) / step_s for name in measured}
    return BucketError(first.index, first.size_bytes, measured, first.predicted, errors)


def _terms(runs: Sequence[Validation], step_s: float) -> Iterator[ErrorTerm]:
    by_name = [{term.name: term for term in run.terms} for run in runs]
    for name in by_name[0]:
        if all(name in terms for terms in by_name):
            measured_s = fmean(terms[name].measured_s for terms in by_name)
            predicted_s = fmean(terms[name].predicted_s for terms in by_name)
            yield ErrorTerm(name, measured_s, predicted_s, (predicted_s - measured_s) / step_s)


LAUNCHES, ITERATIONS = 3, 6
"""Of a capture: processes, and iterations of each."""


class MeasuredNetwork:
    """A campaign's network with what was measured on it.

    Attributes:
        topology: the file of what is built and what is predicted on.
        table: allreduces measured on the network.
        calibration: constants fitted to them.
        sizes: which allreduces were asked of the microbenchmark.
        workload: the capture of the model that computes on it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topology, self.workload = folder / "topology.yaml", folder / "workload.json.gz"
        self.table, self.calibration = folder / "allreduce.json", folder / "calibration.json"
        self.sizes = folder / "microbench.txt"

    @classmethod
    def of(cls, configuration: Configuration, folder: Path) -> MeasuredNetwork:
        """Return the one of `configuration` in a campaign's output folder."""
        return cls(folder / "networks" / configuration.bench)

    def forget_measurements(self) -> None:
        """Remove what was measured on it and what was fitted to that."""
        self.calibration.unlink(missing_ok=True)
        self.table.unlink(missing_ok=True)


def describe_network(configuration: Configuration, folder: Path) -> MeasuredNetwork:
    """Write the network's topology, unless it is there; what was measured on another of that name goes."""
    network = MeasuredNetwork.of(configuration, folder)
    text = dump_topology(network_topology(configuration.run.network, configuration.network))
    if not network.topology.exists() or network.topology.read_text() != text:
        network.forget_measurements()
        network.workload.unlink(missing_ok=True)
        write_whole(network.topology, text)
    sizes = " ".join(configuration.microbench.arguments()) + "\n"
    if not network.sizes.exists() or network.sizes.read_text() != sizes:
        if network.sizes.exists():
            network.forget_measurements()
        write_whole(network.sizes, sizes)
    return network


def measure_network(configuration: Configuration, network: MeasuredNetwork, folder: Path) -> None:
    """Measure allreduces on the network, under a model's load if there is one, and fit constants; skip existing files.

    Timed layers take no processor and keep their pace, so nothing is measured beside them.
    """
    if not network.table.exists():
        network.forget_measurements()
        arguments = [*configuration.microbench.arguments(), "--backend", "gloo"]
        if configuration.run.model is not None:
            arguments += ["--under-load", str(folder / "workload.json.gz"), "--threads", "1"]
        run_in_lab(network.topology, ["microbench", *arguments, "-o", str(network.table)])
    fit(network)


def fit(network: MeasuredNetwork) -> None:
    """Fit the constants to what was measured on the network; skip it where they are there."""
    if not network.calibration.exists():
        tables = [read_table(network.table)]
        report = calibrate(tables, load_topology(str(network.topology)), backend="gloo")
        write_whole(network.calibration, json_text(report.calibration.document()))


def workload_changed(configuration: Configuration, folder: Path) -> bool:
    """Return whether `folder` holds another workload than the configuration's file gives today."""
    path, name = folder / "workload.json.gz", configuration.run.workload
    if name is None or not path.exists():
        return False
    today = stretch_workload(configuration, load_workload(name))
    return workload_document(load_workload(str(path))) != workload_document(today)


def prepare_workload(configuration: Configuration, network: MeasuredNetwork, folder: Path) -> Workload:
    """Write the workload that is run and predicted: a recorded one on one clock and scaled, or a model's capture."""
    path = folder / "workload.json.gz"
    run = configuration.run
    if not path.exists():
        if run.workload is not None:
            save_workload(stretch_workload(configuration, load_workload(run.workload)), path)
        else:
            _capture(configuration, network)
            write_whole(path, network.workload.read_bytes())
    return load_workload(path)


def stretch_workload(configuration: Configuration, workload: Workload) -> Workload:
    """Return a recorded workload on one clock, its backward stretched to the configuration's wire time."""
    run = configuration.run
    scale = run.scale_compute or 1.0
    if run.wire_over_backward is not None:
        backward_s = float(single_clock(workload).backward.device_s.mean())
        scale = wire_s(configuration, workload) / run.wire_over_backward / backward_s
    return single_clock(workload, scale)


def wire_s(configuration: Configuration, workload: Workload) -> float:
    """Return how long the bytes of all gradients take a ring's narrowest link, packet headers included.

    A trunk between two halves carries the ring once in each direction, as any link.
    """
    ranks = configuration.network.ranks
    payload = 2 * (ranks - 1) / ranks * workload.gradient_bytes
    return wire_bytes(int(payload)) / configuration.network.narrowest


def measure_run(
    configuration: Configuration, network: MeasuredNetwork, workload: Workload, folder: Path, repeat: int
) -> None:
    """Run the configuration once more, unless the run of that number is there."""
    out = folder / f"run{repeat}"
    if (out / "run.json").exists():
        return
    run_in_lab(network.topology, ["run", *run_arguments(configuration, folder, repeat), "--out", str(out)])


def run_arguments(configuration: Configuration, folder: Path, repeat: int = 0) -> list[str]:
    """Return the configuration as `python -m ddpexec run` takes it."""
    run = configuration.run
    arguments = ["--workload", str(folder / "workload.json.gz")]
    if run.model is not None:
        arguments = ["--model", run.model, "--threads", "1"]
    if configuration.takes_turns:
        arguments.append("--interleave")
    return [*arguments, *format_arguments(RunSettings, option_values(configuration.settings(repeat)))]


def conclude(configuration: Configuration, network: MeasuredNetwork, workload: Workload, folder: Path) -> Result:
    """Hold the prediction against the runs, write `result.json`, and return it.

    One process is timed by the runs where each of them did, else it is as predicted.
    """
    prediction = load_prediction(folder / "prediction.json")
    traces = [read_trace(folder / f"run{repeat}") for repeat in range(configuration.repeats)]
    summaries = [summarise(trace) for trace in traces]
    held = average_runs([validate(prediction, trace) for trace in traces])
    write_whole(folder / "validation.json", json_text(held.document()))
    predicted_local_s = _number(prediction, "local_s")
    measured = held.local_source == "run"
    # Measured overhead is the step less one process; so one process is the step less the overhead.
    local_s = held.iterations.measured_s - held.overhead.measured_s if measured else predicted_local_s
    table = [(row.size_bytes, row.time_s) for row in read_table(network.table).rows]
    wire = wire_s(configuration, workload) / float(workload.backward.device_s.mean())
    settings = configuration.settings()
    optimizer_s = float(np.median(workload.optimizer.device_s)) / settings.accumulate
    result = Result(
        name=configuration.name,
        group=configuration.group,
        caps=configuration.caps,
        world_size=configuration.network.ranks,
        wire_over_backward=wire,
        predicted_s=_number(prediction, "iteration_s"),
        low_s=_number(prediction, "iteration_low_s"),
        high_s=_number(prediction, "iteration_high_s"),
        step_s=held.iterations.measured_s,
        repeats_s=tuple(summary.iteration_s for summary in summaries),
        local_s=local_s,
        predicted_local_s=predicted_local_s,
        local_source="measured" if measured else "predicted",
        bucket_errors=tuple(bucket.errors["finished_s"] for bucket in held.buckets),
        baselines_s=mean_of(
            [
                measure_baselines(table, summary.buckets, local_s, optimizer_s, settings.sync_every)
                for summary in summaries
            ]
        ),
        largest_term=held.largest_term.name,
        scheme=configuration.scheme,
        family=configuration.family,
        ratio=None if held.ratio is None else held.ratio.measured,
        ratio_error=None if held.ratio is None else held.ratio.error,
        **_other_work(traces),
    )
    write_whole(folder / "result.json", json_text(result.document()))
    return result


def _other_work(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the other work on the machine of the busiest run, as a document."""
    uses = [other for trace in traces if (other := OtherWork.read(trace.provenance)) is not None]
    most = max(uses, key=lambda other: other.busy, default=None)
    return {} if most is None else most.document()


def _capture(configuration: Configuration, network: MeasuredNetwork) -> None:
    """Capture the model once for all that run it on the network; skip it where it is there.

    It computes on all ranks at once, as they will share this machine, in several launches.
    """
    if network.workload.exists():
        return
    run = configuration.run
    arguments = ["capture", "--model", str(run.model), "--device", "cpu", "--threads", "1"]
    size = run.options["batch_size"]
    arguments += [] if size is None else ["--batch-size", str(size)]
    parts = [network.folder / f"capture{number}.json.gz" for number in range(LAUNCHES)]
    for part in parts:
        run_in_lab(network.topology, [*arguments, "--iterations", str(ITERATIONS), "-o", str(part)])
    save_workload(pool_captures([load_workload(str(part)) for part in parts]), network.workload)
    for part in parts:
        part.unlink()


def _number(document: Mapping[str, Any], key: str) -> float:
    value = document[key]
    if not isinstance(value, int | float):
        raise InputError(f"{value!r} is not a number", place=key)
    return float(value)


def read_result(folder: Path) -> Result | None:
    """Return the result in `folder`; None where there is none that can be read: it follows from the runs."""
    try:
        document = read_json(folder / "result.json", InputError, "run the campaign again")
        return Result.from_document(document) if isinstance(document, dict) else None
    except (InputError, KeyError, TypeError):
        return None
