"""Another job on the same fabric: what it trains, on which nodes, and how it sends."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from statistics import median

from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.workload import Workload
from ddpsim.workload.files import locate_workload, read_workload, workload_document


@dataclass(frozen=True, slots=True)
class JobBeside:
    """Another job, which trains for as long as the one that is asked about, on other nodes of the same machine.

    Attributes:
        workload: what one of its ranks computes, or its name as `Model.of` takes it.
        job: its options.
        nodes: how many it has, or which of the machine's.
        alternate: whether a count of nodes lies between those of the job asked about, every other one; else after them.
        gpus_per_node: of each of its nodes; None is all.
        phase: share of what it computes in a step by which it begins later.
        idle: whether it has its nodes and does nothing, so that the fabric is the other's alone.
        digest: of the workload's content, by which two of one name differ.
    """

    workload: Workload | str = field(repr=False, compare=False)
    job: JobOptions
    nodes: int | tuple[int, ...]
    alternate: bool = False
    gpus_per_node: int | None = None
    phase: float = 0.0
    idle: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        workload, name = self.workload, ""
        if isinstance(workload, str):
            name, path = workload, locate_workload(workload)[0]
            workload = read_workload(path, name)
        content = json.dumps([name, workload_document(workload)], default=str)
        object.__setattr__(self, "digest", hashlib.sha256(content.encode()).hexdigest()[:16])

    def share_of(self, workload: Workload) -> float:
        """Return what a rank of it computes in a step over what one of `workload` does; 1 where it is not loaded."""
        if isinstance(self.workload, str):
            return 1.0
        other_s, own_s = _computing_s(self.workload), _computing_s(workload)
        return other_s / own_s if own_s > 0 else 1.0


def _computing_s(workload: Workload) -> float:
    phases = (workload.forward, workload.backward, workload.optimizer)
    return sum(max(median(map(float, phase.host_s)), median(map(float, phase.device_s))) for phase in phases)
