"""The demo's first half: the best buckets of two models on machines one does not have, one of them one's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ddpexec.capturing.estimate import estimate_step
from ddpexec.lab.demo.output import progress, say
from ddpsim.cli.output import write
from ddpsim.cli.plan import draw, write_plan
from ddpsim.cli.plan_text import text
from ddpsim.common.tables import ResultTable, table_of
from ddpsim.common.tables.cells import percent
from ddpsim.common.units import format_count
from ddpsim.planning.planner import plan
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.planning.worth import arguments_of, format_gain
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

OWN = "ddpexec.lab.demo.own_model:make_training"
"""A step as a user has one, which the shipped workloads do not hold."""

OWN_NAME = "own model, 8 sequences a GPU"


def plan_ahead(out: Path) -> None:
    """Plan each model on each machine at each node count; write plan, table and picture to `out`."""
    say("1. Which buckets, on machines one does not have?")
    subjects = {f"{model}, {size} images a GPU": load_shipped_workloads(model, size) for model, size in MODELS.items()}
    subjects[OWN_NAME] = estimate_own_workloads()
    cells = [(subject, machine, nodes) for subject in subjects for machine in MACHINES for nodes in NODES]
    work = [(subjects[subject][machine], machine, nodes) for subject, machine, nodes in cells]
    rows: dict[str, list[PlanRow]] = {subject: [] for subject in subjects}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, (cell, row) in enumerate(zip(cells, pool.map(plan_one, work), strict=True), start=1):
            rows[cell[0]].append(row)
            progress(f"planned {done} of {len(cells)}: {cell[0]} on {cell[2]} x {cell[1]}")
    progress("")
    for subject, by_machine in rows.items():
        name = subject.split(",")[0].replace(" ", "-")
        report = PlanReport(tuple(by_machine))
        write_plan(report, str(out / f"plan-{name}.json"))
        (out / f"plan-{name}.txt").write_text(text(report) + "\n")
        draw(report.rows, str(out / f"plan-{name}.png"))
        write(f"\n{subject}; steps in ms, with the buckets that are advised there\n{summarise(by_machine).text()}")


def summarise(rows: Sequence[PlanRow]) -> ResultTable:
    """Return a row a machine: the step that is advised at each node count, and what to paste at most nodes."""
    by_machine: dict[str, list[PlanRow]] = {}
    for row in rows:
        by_machine.setdefault(row.chosen.topology.name, []).append(row)

    records = [
        {
            "machine": machine,
            **{
                format_count(nodes, "node"): f"{row.chosen.iteration_s * 1e3:.0f}"
                for nodes, row in zip(NODES, estimate, strict=True)
            },
            f"waiting on {NODES[-1]}": percent(waiting(estimate[-1])),
            f"paste on {NODES[-1]} nodes": what_to_paste(estimate[-1]),
        }
        for machine, estimate in by_machine.items()
    ]
    return table_of("", records)


def waiting(row: PlanRow) -> float:
    """Return the share of the advised step in which computing waits for communication."""
    return row.chosen.summary.exposed_comm_s / row.chosen.iteration_s


def what_to_paste(row: PlanRow) -> str:
    """Return the arguments of torch's constructor that are advised, with their gain, or what is worth a trial."""
    if row.trial is not None:
        return f"nothing; {row.trial}"
    if row.keep_default:
        return "nothing: torch's default is best"
    return f"{arguments_of(row.advice)}: {format_gain(*row.gain_band)} faster"


def load_shipped_workloads(model: str, batch_size: int) -> dict[str, Workload]:
    """Return a shipped model's workload for each machine's GPUs."""
    return {machine: load_workload(f"{model}@{device}-b{batch_size}") for machine, device in MACHINES.items()}


def estimate_own_workloads() -> dict[str, Workload]:
    """Return the own step estimated for each machine's GPUs."""
    progress(f"estimating a model of one's own: python -m ddpexec estimate --step {OWN} --gpu ...")
    models = {machine: load_topology(machine).compute_device for machine in MACHINES}
    estimates = {gpu: estimate_step(OWN, gpu) for gpu in dict.fromkeys(models.values())}
    return {machine: estimates[gpu] for machine, gpu in models.items()}


def plan_one(cell: tuple[Workload, str, int]) -> PlanRow:
    """Return the plan of one workload on one machine at one node count."""
    workload, machine, nodes = cell
    return plan(workload, [load_topology(machine)], nodes=[nodes]).rows[0]
