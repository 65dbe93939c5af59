"""The demo's second half: predictions written first, then the same job run for real on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddpexec.demo.saying import module, say
from ddpsim.cli.output import table, write
from ddpsim.files import json_text
from ddpsim.plots import plot_timeline, plot_validation
from ddpsim.prediction.document import load_prediction
from ddpsim.trace.json import read_trace
from ddpsim.validation.report import HEADER, validation_row
from ddpsim.validation.result import Validation
from ddpsim.validation.validate import validate

SIDES = {"predicted": "predicted", "measured": "run"}
MODEL, BATCH, RANKS, CAPS_MB = "resnet50", 2, 2, (1, 25, 100)
LOCAL_ITERATIONS = 5
"""Steps without communication at the end of each run. A machine that others share is faster in one minute than in the
next: the overhead is over what one process takes in the same run, not over the capture of minutes before."""


def hold_against_a_real_run(out: Path) -> None:
    """Capture all ranks at once, measure allreduce, predict, then run for real and compare."""
    say(f"2. Should one believe it? {MODEL} on {RANKS} ranks over gloo, on this machine")
    capture, table_file, calibration = (str(out / f"{name}.json") for name in ("capture", "allreduce", "calibration"))
    subject = ("--model", MODEL, "--batch-size", BATCH)
    torchrun("capture", *subject, "--device", "cpu", "--threads", 1, "--iterations", 10, "-o", capture)
    measured = ("-b", "64K", "-e", "64M", "-f", 4, "--under-load", capture)
    torchrun("microbench", "--backend", "gloo", *measured, "-o", table_file)
    module("ddpsim", "calibrate", table_file, "--topology", "loopback", "-o", calibration)
    here = ("--workload", capture, "--topology", "loopback", "--gpus-per-node", RANKS, "--calibration", calibration)
    for cap in CAPS_MB:
        options = (*here, "--bucket-cap-mb", cap, "--trace", out / f"predicted-{cap}")
        (out / f"predicted-{cap}.json").write_text(module("ddpsim", "predict", *options, "--json"))
    results = {}
    for cap in CAPS_MB:
        trained = (*subject, "--backend", "gloo", "--bucket-cap-mb", cap, "--iterations", 10)
        torchrun("run", *trained, "--local-iterations", LOCAL_ITERATIONS, "--out", out / f"run-{cap}")
        results[cap] = validate(load_prediction(out / f"predicted-{cap}.json"), read_trace(out / f"run-{cap}"))
        (out / f"validation-{cap}.json").write_text(json_text(results[cap].document()))
    write("\nPredicted beside measured; the last two columns are the step errors of trivial predictors.")
    write(table(HEADER, [validation_row(f"{cap} MiB", result) for cap, result in results.items()]))
    write(pace_line(results))
    draw_comparison(out, results)


def pace_line(results: Mapping[int, Validation]) -> str:
    """Return what one process alone took in each run, and in the capture that the predictions rest on."""
    alone = [result.local for result in results.values()]
    runs = ", ".join(f"{each.measured_s * 1e3:.1f}" for each in alone)
    captured = f"{alone[0].predicted_s * 1e3:.1f} ms when captured"
    counted = "a machine that is faster or slower by now counts in the step's error, not in the overhead's."
    return f"One process alone took {runs} ms in these runs, {captured}:\n{counted}"


def draw_comparison(out: Path, results: Mapping[int, Validation]) -> None:
    """Draw predicted over measured, and one step of each side by side."""
    steps = {f"{cap} MiB": [(r.iterations.measured_s, r.iterations.predicted_s)] for cap, r in results.items()}
    plot_validation(steps, out / "validation.png")
    cap = CAPS_MB[1]
    sides = {f"{side}, {cap} MiB": read_trace(out / f"{name}-{cap}") for side, name in SIDES.items()}
    plot_timeline(sides, out / "timeline.png")


def torchrun(*arguments: object) -> None:
    """Run a ddpexec command on every rank."""
    launcher = ("--standalone", "--nproc-per-node", RANKS, "-m", "ddpexec")
    module("torch.distributed.run", *launcher, *arguments, shown="torchrun")
