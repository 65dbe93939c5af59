"""The main job, end to end: plan buckets for machines one does not have, then hold a prediction against a real run.

    make demo

Everything printed here can be had from the command line; each command is shown before it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ddpsim.cli.output import table
from ddpsim.cli.plan import draw, text, write_plan
from ddpsim.planner import PlanReport, PlanRow, plan
from ddpsim.report import HEADER, validation_row
from ddpsim.topology.spec import load_topology
from ddpsim.trace_json import read_trace
from ddpsim.validate import load_prediction, validate
from ddpsim.workload.files import load_workload

MACHINES = ("p3.8xlarge", "p3.16xlarge", "dgx-1v", "dgx-a100", "dgx-h100")
NODES = (1, 2, 4, 8)
PACE = {
    "p3.8xlarge": "v100-fp32",
    "p3.16xlarge": "v100-fp32",
    "dgx-1v": "v100-fp32",
    "dgx-a100": "a100-tf32",
    "dgx-h100": "h100-bf16",
}
MODELS = {"resnet50": 32, "bert-large": 8}

MODEL, RANKS, CAPS_MB = "mlp", 2, (1, 5, 25)


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
    cells = [(model, machine, nodes) for model in MODELS for machine in MACHINES for nodes in NODES]
    rows: dict[str, list[PlanRow]] = {model: [] for model in MODELS}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, (cell, row) in enumerate(zip(cells, pool.map(plan_one, cells), strict=True), start=1):
            rows[cell[0]].append(row)
            progress(f"planned {done} of {len(cells)}: {cell[0]} on {cell[2]} x {cell[1]}")
    progress("")
    for model, found in rows.items():
        report = PlanReport(tuple(found))
        print(f"\n{model}\n{text(report)}")
        write_plan(report, str(out / f"plan-{model}.json"))
        draw(report, str(out / f"plan-{model}.png"))


def plan_one(cell: tuple[str, str, int]) -> PlanRow:
    """Return the plan of one model on one machine at one node count."""
    model, machine, nodes = cell
    workload = load_workload(f"{model}@{PACE[machine]}-b{MODELS[model]}")
    return plan(workload, [load_topology(machine)], nodes=[nodes]).rows[0]


def hold_against_a_real_run(out: Path) -> None:
    """Capture one process, measure allreduce, predict, then run for real and compare."""
    say(f"2. Should one believe it? {MODEL} on {RANKS} ranks over gloo, here")
    capture, table_file, calibration = (
        str(out / name) for name in ("capture.json", "allreduce.json", "calibration.json")
    )
    module("ddpexec", "capture", "--model", MODEL, "--threads", 1, "--iterations", 10, "-o", capture)
    torchrun("microbench", "-b", "4K", "-e", "64M", "-f", 4, "-o", table_file)
    module("ddpsim", "calibrate", table_file, "--topology", "loopback", "-o", calibration, quiet=True)
    rows = []
    for cap in CAPS_MB:
        options = ("--bucket-cap-mb", cap)
        here = ("--workload", capture, "--topology", "loopback", "--gpus-per-node", RANKS, "--calibration", calibration)
        predicted, measured = out / f"predicted-{cap}.json", out / f"run-{cap}"
        predicted.write_text(module("ddpsim", "predict", *here, *options, "--json", quiet=True))
        torchrun("run", "--model", MODEL, *options, "--iterations", 20, "--out", measured)
        result = validate(load_prediction(predicted), read_trace(measured))
        (out / f"validation-{cap}.json").write_text(json.dumps(result.document(), indent=2))
        rows.append(validation_row(f"{cap} MiB", result))
    print("\nPredicted beside measured; the last two columns are the step errors of trivial predictors.")
    print(table(HEADER, rows))


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


def module(name: str, *arguments: object, quiet: bool = False, shown: str | None = None) -> str:
    """Show and run `python -m name arguments` with one thread a process; return what it printed."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ {shown or f'python -m {name}'} {' '.join(words)}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", name, *words], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        print(done.stdout)
        sys.exit(f"demo: the command above failed with exit code {done.returncode}")
    if not quiet:
        print(done.stdout.rstrip())
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
