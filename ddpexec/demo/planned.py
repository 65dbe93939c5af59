"""The demo's first half: the best buckets of two models on machines one does not have, one of them one's own."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ddpexec.capturing.estimate import estimate_step
from ddpexec.demo.saying import progress, say
from ddpsim.cli.output import write
from ddpsim.cli.plan import draw, write_plan
from ddpsim.cli.plan_text import text
from ddpsim.planning.planner import plan
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload

NODES = (1, 2, 4, 8)
"""Nodes of each machine that the demo plans for."""
MACHINES = {
    "p3.8xlarge": "v100-fp32",
    "p3.16xlarge": "v100-fp32",
    "dgx-1v": "v100-fp32",
    "dgx-a100": "a100-tf32",
    "dgx-h100": "h100-amp",
}
"""Each machine with the device and precision whose workloads it runs."""

MODELS = {"resnet50": 32}
"""Each shipped model with its batch size."""

OWN = "ddpexec.demo.own_model:make_training"
"""A step as a user has one, which the shipped workloads do not hold."""


def plan_ahead(out: Path) -> None:
    """Plan each model on each machine at each node count; write plan and picture to `out`."""
    say("1. Which bucket size, on machines one does not have?")
    subjects = {model: load_shipped_workloads(model, size) for model, size in MODELS.items()} | {
        "own": estimate_own_workloads()
    }
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
        write(f"\n{model}\n{text(report)}")
        write_plan(report, str(out / f"plan-{model}.json"))
        draw(report.rows, str(out / f"plan-{model}.png"))


def load_shipped_workloads(model: str, batch_size: int) -> dict[str, Workload]:
    """Return a shipped model's workload for each machine's GPUs."""
    return {machine: load_workload(f"{model}@{device}-b{batch_size}") for machine, device in MACHINES.items()}


def estimate_own_workloads() -> dict[str, Workload]:
    """Return the own step estimated for each machine's GPUs."""
    say(f"the own model: python -m ddpexec estimate --step {OWN} --gpu ...")
    models = {machine: load_topology(machine).compute_device for machine in MACHINES}
    found = {gpu: estimate_step(OWN, gpu) for gpu in dict.fromkeys(models.values())}
    return {machine: found[gpu] for machine, gpu in models.items()}


def plan_one(cell: tuple[Workload, str, int]) -> PlanRow:
    """Return the plan of one workload on one machine at one node count."""
    workload, machine, nodes = cell
    return plan(workload, [load_topology(machine)], nodes=[nodes]).rows[0]
