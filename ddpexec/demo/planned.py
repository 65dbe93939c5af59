"""The demo's first half: the best buckets of two models on machines one does not have."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ddpexec.demo.saying import progress, say
from ddpsim.cli.output import write
from ddpsim.cli.plan import draw, text, write_plan
from ddpsim.planning.planner import plan
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.topology.spec import load_topology
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

MODELS = {"resnet50": 32, "bert-large": 8}
"""Each model with its batch size."""


def plan_ahead(out: Path) -> None:
    """Plan each model on each machine at each node count; write plan and picture to `out`."""
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
        write(f"\n{model}\n{text(report)}")
        write_plan(report, str(out / f"plan-{model}.json"))
        draw(report.rows, str(out / f"plan-{model}.png"))


def plan_one(cell: tuple[str, str, int]) -> PlanRow:
    """Return the plan of one model on one machine at one node count."""
    model, machine, nodes = cell
    workload = load_workload(f"{model}@{MACHINES[machine]}-b{MODELS[model]}")
    return plan(workload, [load_topology(machine)], nodes=[nodes]).rows[0]
