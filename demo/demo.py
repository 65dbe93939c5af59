"""The main job, end to end: plan buckets for machines one does not have, then hold a prediction against a real run.

    make demo

Everything printed here can be had from the command line; each command is shown before it runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ddpexec.capturing.estimate import estimate_step
from ddpsim.cli.output import table
from ddpsim.cli.plan import draw, text, write_plan
from ddpsim.files import json_text
from ddpsim.planning.planner import plan
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.plots import plot_timeline, plot_validation
from ddpsim.prediction.document import load_prediction
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace
from ddpsim.validation.report import HEADER, validation_row
from ddpsim.validation.validate import Validation, validate
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload

MACHINES = ("p3.8xlarge", "p3.16xlarge", "dgx-1v", "dgx-a100", "dgx-h100")
NODES = (1, 2, 4, 8)
PACE = {
    "p3.8xlarge": "v100-fp32",
    "p3.16xlarge": "v100-fp32",
    "dgx-1v": "v100-fp32",
    "dgx-a100": "a100-tf32",
    "dgx-h100": "h100-amp",
}
MODELS = {"resnet50": 32}
"""Each shipped model with its batch size."""

OWN = "ddpexec.demo.own_model:training"
"""A step as a user has one, that no file here knows."""

SIDES = {"predicted": "predicted", "measured": "run"}
MODEL, BATCH, RANKS, CAPS_MB = "resnet50", 2, 2, (1, 25, 100)


def main() -> None:
    """Run both parts and say how long each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    plan_ahead(out)
    say(f"part 1 took {time.monotonic() - started:.0f} s")
    middle = time.monotonic()
    hold_against_a_real_run(out)
    say(f"part 2 took {time.monotonic() - middle:.0f} s; everything is in {out}")


def plan_ahead(out: Path) -> None:
    """Plan each model on each machine at each node count, at the pace of the machine's own GPUs."""
    say("1. Which bucket size, on machines one does not have?")
    subjects = {model: {m: load_workload(f"{model}@{PACE[m]}-b{b}") for m in MACHINES} for model, b in MODELS.items()}
    subjects["own"] = own_workloads()
    cells = [(model, machine, nodes) for model in subjects for machine in MACHINES for nodes in NODES]
    work = [(subjects[model][machine], machine, nodes) for model, machine, nodes in cells]
    rows: dict[str, list[PlanRow]] = {model: [] for model in subjects}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, (cell, row) in enumerate(zip(cells, pool.map(plan_one, work), strict=True), start=1):
            rows[cell[0]].append(row)
            progress(f"planned {done} of {len(cells)}: {cell[0]} on {cell[2]} x {cell[1]}")
    progress("")
    for model, found in rows.items():
        report = PlanReport(tuple(found))
        print(f"\n{model}\n{text(report)}")
        write_plan(report, str(out / f"plan-{model}.json"))
        draw(report.rows, str(out / f"plan-{model}.png"))


def own_workloads() -> dict[str, Workload]:
    """Return the own step estimated for each machine's GPU."""
    say(f"the own model: python -m ddpexec estimate --step {OWN} --gpu ...")
    models = {machine: load_topology(machine).compute_device for machine in MACHINES}
    found = {gpu: estimate_step(OWN, gpu) for gpu in dict.fromkeys(models.values())}
    return {machine: found[gpu] for machine, gpu in models.items()}


def plan_one(cell: tuple[Workload, str, int]) -> PlanRow:
    """Return the plan of one workload on one machine at one node count."""
    workload, machine, nodes = cell
    return plan(workload, [load_topology(machine)], nodes=[nodes]).rows[0]


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
        options = (*subject, "--backend", "gloo", "--bucket-cap-mb", cap, "--iterations", 10)
        torchrun("run", *options, "--out", out / f"run-{cap}")
        results[cap] = validate(load_prediction(out / f"predicted-{cap}.json"), read_trace(out / f"run-{cap}"))
        (out / f"validation-{cap}.json").write_text(json_text(results[cap].document()))
    print("\nPredicted beside measured; the last two columns are the step errors of trivial predictors.")
    print(table(HEADER, [validation_row(f"{cap} MiB", result) for cap, result in results.items()]))
    draw_comparison(out, results)


def draw_comparison(out: Path, results: Mapping[int, Validation]) -> None:
    """Draw predicted over measured, and one step of each side by side."""
    steps = {f"{cap} MiB": [(r.iterations.measured_s, r.iterations.predicted_s)] for cap, r in results.items()}
    plot_validation(steps, out / "validation.png")
    cap = CAPS_MB[1]
    sides = {f"{side}, {cap} MiB": read_trace(out / f"{name}-{cap}") for side, name in SIDES.items()}
    plot_timeline(sides, out / "timeline.png")


def torchrun(*arguments: object) -> None:
    """Run a ddpexec command on every rank."""
    module(
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        RANKS,
        "-m",
        "ddpexec",
        *arguments,
        shown="torchrun",
    )


def module(name: str, *arguments: object, shown: str | None = None) -> str:
    """Show and run `python -m name arguments` with one thread a process; return what it printed."""
    words = [str(argument) for argument in arguments]
    print(f"$ {shown or f'python -m {name}'} {' '.join(words)}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", name, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\ndemo: the command above failed with exit code {done.returncode}")
    return done.stdout


def say(message: str) -> None:
    """Print a heading."""
    print(f"\n== {message}", flush=True)


def progress(message: str) -> None:
    """Show `message` on one line of a terminal, or as a line of its own elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)
    elif message:
        print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
