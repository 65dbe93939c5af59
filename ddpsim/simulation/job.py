"""A job: a workload with its options on a machine, all that a prediction rests on, and the key it is kept under."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.options.option import option_values
from ddpsim.common.version import __version__
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.declared import Cluster
from ddpsim.topology.placement import Placement, place
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload, workload_document


@dataclass(frozen=True, slots=True)
class Job:
    """A workload with its options on the first GPUs of a machine's first nodes.

    >>> from ddpsim import Job, predict
    >>> predict(Job("resnet50", "dgx-1v", nodes=2)).nodes
    2

    Attributes:
        workload: one rank's iteration without communication; for `ddpsim.predict` also a name or a file's path.
        topology: the machine; for `ddpsim.predict` also a name or a file's path.
        nodes: how many; None is the machine's own number.
        gpus_per_node: ranks on the first so many GPUs of each node; None is all.
        options: bucket caps among them.
        calibration: measured constants; None is the documented priors.
    """

    workload: Workload
    topology: Cluster
    nodes: int | None = None
    gpus_per_node: int | None = None
    options: Options = field(default_factory=Options)
    calibration: Calibration | None = None

    @property
    def placement(self) -> Placement:
        """Which ranks, where; `TopologyError` as `ddpsim.topology.placement.place`."""
        return place(self.topology, self.nodes, self.gpus_per_node, len(self.workload.device_shares))

    def key(self) -> str:
        """Return what it is kept under: equal for equal jobs of the same version, here and elsewhere."""
        return Keys().of(self)


class Keys:
    """Makes keys, equal for the same question to the same version, here and elsewhere."""

    def __init__(self) -> None:
        # Thousands of points share a few objects: each is hashed once, and kept here, so that no other gets its id.
        self._seen: dict[int, tuple[object, str]] = {}

    def of(self, *parts: object) -> str:
        """Return the key of a point: of jobs, workloads, machines, options, calibrations, and values that JSON has."""
        return hashlib.sha256(f"{__version__} {self._join_parts(parts)}".encode()).hexdigest()[:24]

    def _join_parts(self, parts: tuple[object, ...]) -> str:
        return " ".join(map(self._format_part, parts))

    def _format_part(self, part: object) -> str:
        if part is None or isinstance(part, int | float):
            return repr(part)
        if isinstance(part, Job):
            own: dict[str, Any] = {n: getattr(part.topology, n, None) for n in _COUNTS if getattr(part, n) is None}
            counted = replace(part, **own)
            return self._join_parts(tuple(getattr(counted, each.name) for each in fields(Job)))
        if id(part) not in self._seen:
            # A cap of 25 is a cap of 25.0.
            text = json.dumps(json.loads(json.dumps(_contents(part), default=str), parse_float=_whole))
            self._seen[id(part)] = part, hashlib.sha256(text.encode()).hexdigest()
        return self._seen[id(part)][1]


_COUNTS = ("nodes", "gpus_per_node")
"""What a job has of its machine where it says nothing else."""


def _whole(number: str) -> float:
    value = float(number)
    return int(value) if value.is_integer() else value


def _contents(part: Any) -> object:
    """Return everything that an answer rests on of a part of its question."""
    match part:
        case Workload():
            return workload_document(part)
        case Cluster():
            others = sorted({g.template.workload for g in part.groups if g.template.workload is not None})
            return [part.name, part.fingerprint(), [workload_document(load_workload(name)) for name in others]]
        case Options():
            return [option_values(part), None if part.plan is None else part.plan.document()]
        case Calibration():
            return part.document()
        case _:
            return part
