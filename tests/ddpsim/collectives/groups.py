"""Process groups on a placement, under the conditions that a test names."""

from __future__ import annotations

from typing import Any

import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import Collectives
from ddpsim.topology.graph import Placement


def group_on(
    placement: Placement,
    backend: str = "nccl",
    calibration: Calibration | None = None,
    env: simpy.Environment | None = None,
    **options: Any,
) -> Collectives:
    """Return the collectives of all ranks of a placement; `options` are of `CollectiveOptions`."""
    conditions = CollectiveOptions(**options)
    return Collectives(env, placement, backend=backend, calibration=calibration, options=conditions)
