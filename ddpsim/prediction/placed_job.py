"""A job on a machine: what `predict` is asked about."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ddpsim.collectives.calibration import Calibration
from ddpsim.simulation import Options
from ddpsim.topology.graph import Cluster
from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A workload with its options on the first GPUs of a machine's first nodes, as they were asked for.

    Attributes:
        nodes: None is the machine's own number.
        gpus_per_node: None is all.
        calibration: measured constants; None is the documented priors.
    """

    workload: Workload
    topology: Cluster
    nodes: int | None
    gpus_per_node: int | None
    options: Options
    calibration: Calibration | None

    @property
    def parts(self) -> tuple[object, ...]:
        """All that its prediction rests on."""
        return tuple(getattr(self, each.name) for each in fields(PlacedJob))
