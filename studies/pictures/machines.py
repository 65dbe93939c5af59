"""BERT-large on machines of five kinds by number of GPUs: each step with the band that holds eight of ten steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ddpexec.lab.demo.planned import MACHINES
from ddpsim import Prediction, load_topology, load_workload, predict
from ddpsim.report.plots import plot_steps

GPUS = (8, 16, 32, 64)


@cache
def predictions() -> Mapping[str, Mapping[int, Prediction]]:
    """Return the predictions by machine with its precision, then by number of GPUs, with torch's default buckets."""
    return {
        f"{name}, {pace.rpartition('-')[2]}": _by_gpus(name, f"bert-large@{pace}-b8") for name, pace in MACHINES.items()
    }


def _by_gpus(machine: str, workload: str) -> Mapping[int, Prediction]:
    topology, profile = load_topology(machine), load_workload(workload)
    of_a_node = topology.place(1).world_size
    return {gpus: predict(profile, topology, nodes=gpus // of_a_node) for gpus in GPUS}


def draw(path: Path) -> None:
    """Draw the steps over the number of GPUs, a line a machine."""
    lines = {
        name: [(str(gpus), (one.iteration_s, one.low_s, one.high_s)) for gpus, one in by_gpus.items()]
        for name, by_gpus in predictions().items()
    }
    plot_steps({"BERT-large, 8 samples a GPU, torch's default buckets": lines}, path, "GPUs")
