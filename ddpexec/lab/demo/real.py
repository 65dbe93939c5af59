"""The demo's second half: steps that are predicted first and then run on this machine, in turns with one process.

Two ranks over gloo. Loopback is so quick that a cap changes little on it, so each rank sends at 1 Gbit/s at most, which
Linux paces; what the wire then takes is read from `microbench` alone. First layers take their recorded time without
computing, so that only buckets, launches, overlap and wire are judged; then the same model computes for real, and the
two ranks fight for two cores, their caches and their memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpexec.lab.demo.output import RANKS, Commands, say
from ddpsim.bucketing import BucketCaps
from ddpsim.calibrating.calibrate import calibrate
from ddpsim.calibrating.measured import read_table
from ddpsim.cli.output import write
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.files import json_text
from ddpsim.common.tables import Record, table_of
from ddpsim.common.tables.cells import percent
from ddpsim.planning.validate import MOVED, Validation, validate
from ddpsim.prediction.named import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.report.plots import plot_timeline, plot_validation
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace, write_trace
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload, save_workload
from ddpsim.workload.replayed import single_clock

MODEL, BATCH, CAPS_MB, RATE = "gpt2-mini", 2, (1, 5, 25), "1gbit"
IMPLEMENTATIONS = ("torch", "ddpexec")
ITERATIONS = {"timed": 12, "computed": 30}
"""Steps of each cap. Timed ones hardly differ; those that compute meet a machine that others use."""
NEXT = """    ddpsim plan --workload resnet50 --topology dgx-h100 --nodes 4          buckets for a machine of yours
    python -m ddpexec estimate --step my_model.py:train --gpu H100 -o mine.json    a step of yours, as --workload
    torchrun --nproc-per-node 8 -m ddpexec run --model resnet50 --interleave --out run     the same on your GPUs"""
_UNDER_LOAD = ("compute_slowdown", "communication_slowdown", "shared_compute_slowdown")
"""Of the microbenchmark's costs those that it measures beside a computing model."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cap of one implementation: what was predicted before, and what was measured."""

    bucket_cap_mb: int
    implementation: str
    result: Validation


def hold_against_a_real_run(out: Path, commands: Commands) -> dict[str, object]:
    """Capture, calibrate and predict; run timed layers, then the model; return the document of both."""
    say(f"2. Should one believe it? {RANKS} ranks here, {RATE} between them, each step predicted before it ran")
    capture, table = out / "capture.json", out / "allreduce.json"
    subject = ("--model", MODEL, "--batch-size", BATCH)
    # Sixty steps: this machine's pace may change for a second, and the median of a few would be of that second.
    commands.torchrun("capture", *subject, "--device", "cpu", "--threads", 1, "--iterations", 60, "-o", capture)
    sizes = ("-b", "64K", "-e", "32M", "-f", 8, "--under-load", capture, "--load-seconds", 2)
    commands.torchrun("microbench", "--backend", "gloo", "--send-rate", RATE, *sizes, "-o", table)
    computing = load_workload(capture)
    # One iteration, on one clock: each replayed step is then alike, and what differs between prediction and run is no
    # matter of which iteration was drawn.
    timed = single_clock(middle_iteration(computing))
    save_workload(timed, out / "timed.json")
    rows = [
        row
        for name in IMPLEMENTATIONS
        for row in run_in_turns(
            out / f"timed-{name}", timed, calibrate_without_load(table, out), commands, ITERATIONS["timed"],
            "--workload", out / "timed.json", "--impl", name,
        )
    ]  # fmt: skip
    write("Layers that take their recorded time and compute nothing: this judges buckets, launches, overlap and wire.")
    write(table_of("demo: timed", [_record(row) for row in rows]).text())
    computed = run_in_turns(
        out / "computed", computing, calibrate_table(table, out / "calibration.json"), commands,
        ITERATIONS["computed"], *subject, "--impl", "torch",
    )  # fmt: skip
    # On a machine that does other things meanwhile nothing is concluded, rather than a wrong figure shown.
    why = find_doubt(computed)
    write("\nThe same model computing, two ranks on the cores they share: the hardest case, and so as a ratio.")
    write(why if why else table_of("demo: computed", [_record(row) for row in computed]).text())
    draw(out, rows, [] if why else computed)
    return {
        "timed": [
            {
                "bucket_cap_mb": row.bucket_cap_mb,
                "implementation": row.implementation,
                "measured_s": row.result.iterations.measured_s,
                "predicted_s": row.result.iterations.predicted_s,
                "step_error": row.result.iterations.error,
                "overhead_error": row.result.overhead.error,
            }
            for row in rows
        ],
        "computed": {
            "concluded": not why,
            "why": why or "the rounds tell what communication costs, and one process takes what it took when recorded",
            "rows": [
                {
                    "bucket_cap_mb": row.bucket_cap_mb,
                    "ratio": ratio.measured,
                    "ratio_low": ratio.low,
                    "ratio_high": ratio.high,
                    "predicted_ratio": ratio.predicted,
                    "ratio_error": ratio.error,
                    "step_error": row.result.iterations.error,
                }
                for row in computed
                if (ratio := row.result.ratio) is not None
            ],
        },
    }


def run_in_turns(
    folder: Path,
    workload: Workload,
    calibration: Calibration,
    commands: Commands,
    iterations: int,
    *subject: object,
) -> list[Row]:
    """Predict each cap and write it down, then run all of them in turns with one process; return a row a cap."""
    predictions = {cap: predict_cap(workload, calibration, cap) for cap in CAPS_MB}
    for cap, prediction in predictions.items():
        (folder / f"predicted-{cap}").mkdir(parents=True, exist_ok=True)
        write_trace(prediction.trace, folder / f"predicted-{cap}")
        (folder / f"predicted-{cap}.json").write_text(json_text(prediction.document()))
    caps = ",".join(map(str, CAPS_MB))
    turns = ("--interleave", "--bucket-cap-mb", caps, "--send-rate", RATE, "--iterations", iterations)
    commands.torchrun("run", *subject, "--backend", "gloo", "--threads", 1, *turns, "--out", folder)
    implementation = str(subject[-1])
    return [
        Row(cap, implementation, validate(predictions[cap].document(), read_trace(folder / f"cap-{cap}")))
        for cap in CAPS_MB
    ]


def predict_cap(workload: Workload, calibration: Calibration, cap_mb: float) -> Prediction:
    """Return the prediction of two ranks on this machine at one cap."""
    options = Options(caps=BucketCaps(bucket_cap_mb=cap_mb), backend="gloo")
    return predict(workload, load_topology("loopback"), gpus_per_node=RANKS, options=options, calibration=calibration)


def middle_iteration(workload: Workload) -> Workload:
    """Return `workload` with the one recorded iteration whose backward is the median: replayed, each is alike."""
    order = sorted(range(workload.iterations), key=lambda number: float(workload.backward.device_s[number]))
    middle = order[len(order) // 2]
    return workload.pick(slice(middle, middle + 1))


def calibrate_table(table: Path, out: Path) -> Calibration:
    """Fit constants to a microbenchmark's table, and keep them."""
    calibration = calibrate([read_table(table)], load_topology("loopback"), backend="gloo").calibration
    out.write_text(json_text(calibration.document()))
    return calibration


def calibrate_without_load(table: Path, out: Path) -> Calibration:
    """Fit constants for layers that take no processor: without measurements under a computing model's load."""
    document = json.loads(table.read_text())
    document["ddp"] = {name: value for name, value in document["ddp"].items() if name not in _UNDER_LOAD}
    quiet = out / "allreduce-quiet.json"
    quiet.write_text(json_text(document))
    return calibrate_table(quiet, out / "calibration-quiet.json")


def find_doubt(rows: Sequence[Row]) -> str:
    """Return why nothing can be concluded about what computes here; empty where something can."""
    unclear = [row for row in rows if row.result.ratio is None or not row.result.ratio.is_clear]
    if not unclear:
        return ""
    ratio = unclear[0].result.ratio
    assert ratio is not None
    why = (
        f"at {unclear[0].bucket_cap_mb} MiB communication adds {percent(ratio.measured - 1)} to one process's step,\n"
        f"and the rounds leave that open by {percent(ratio.high - ratio.measured)}."
    )
    if abs(ratio.moved) > MOVED:
        why = (
            f"one process was recorded {percent(ratio.drift, signed=True)} from what it takes now,\n"
            f"which by itself moves the predicted ratio by {percent(ratio.moved, signed=True)}."
        )
    return (
        f"Nothing can be concluded about it here: {why} This machine varies too much; try again when nothing else runs."
    )


def draw(out: Path, timed: Sequence[Row], computed: Sequence[Row]) -> None:
    """Draw predicted over measured steps, those that compute where something is concluded, and one step of each."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for what, rows in (("timed", timed), ("computing", computed)):
        for row in rows:
            step = row.result.iterations
            pairs.setdefault(f"{what}, {row.bucket_cap_mb} MiB", []).append((step.measured_s, step.predicted_s))
    plot_validation(pairs, out / "validation.png")
    cap, folder = CAPS_MB[1], out / "timed-torch"
    sides: Mapping[str, Any] = {
        f"predicted, {cap} MiB": read_trace(folder / f"predicted-{cap}"),
        f"measured, {cap} MiB": read_trace(folder / f"cap-{cap}"),
    }
    plot_timeline(sides, out / "timeline.png")


def _record(row: Row) -> Record:
    result, ratio = row.result, row.result.ratio
    return {
        "bucket_cap_mb": row.bucket_cap_mb,
        "DDP of": row.implementation,
        "step / one process": ratio and f"{ratio.measured:.2f}",
        "predicted": ratio and f"{ratio.predicted:.2f}",
        "ratio_error": ratio and ratio.error,
        "measured_s": result.iterations.measured_s,
        "predicted_s": result.iterations.predicted_s,
        "error": result.iterations.error,
        "overhead_error": result.overhead.error,
        "nearest trivial": _trivial(row),
    }


def _trivial(row: Row) -> str:
    """Return the error of the nearest trivial predictor, and its name."""
    name, best = min(row.result.baselines.items(), key=lambda item: abs(item[1]["error"] or 0.0))
    return f"{percent(best['error'], signed=True)} ({_SHORT[name]})"


_SHORT = {
    "one_process": "one process",
    "one_process_plus_communication": "sum",
    "max_of_backward_and_communication": "max",
    "in_order_pipeline": "in order",
}
"""Trivial predictors as a narrow column names them: no communication, no overlap, all of it, buckets in order."""
