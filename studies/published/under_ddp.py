"""The step of one GPU alone, where a table has that of one GPU under DDP."""

from __future__ import annotations

from collections.abc import Callable

from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.cluster import Topology
from ddpsim.workload import Workload

_CLOSE = 1e-6
"""Share of a step by which what is predicted of a world of one may miss the measured step."""


def alone_s(under_s: float, world_of_one_s: Callable[[float], float]) -> float:
    """Return the step of one GPU without DDP at which a world of one under DDP is predicted to take `under_s`.

    What DDP adds there hardly depends on the pace, so that a few rounds suffice.

    Args:
        under_s: the measured step of one GPU under DDP.
        world_of_one_s: what DDP's step is predicted to take on one GPU, by the step of that GPU alone.

    >>> round(alone_s(1.1, lambda alone: 1.01 * alone + 0.05), 6)
    1.039604
    """
    alone = under_s
    while abs(missed := under_s - world_of_one_s(alone)) > _CLOSE * under_s:
        alone += missed
    return alone


def world_of_one_s(workload: Workload, machine: Topology, options: Options) -> float:
    """Return what one GPU is predicted to take under DDP, whose hooks and copies it has and no other rank."""
    return predict(Job(workload, machine, nodes=1, gpus_per_node=1, options=options), local_s=1.0).iteration_s
