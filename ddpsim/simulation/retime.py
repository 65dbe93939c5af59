"""A GPU's workload on another device: its work scaled phase by phase and gradient by gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ddpsim.simulation.pace import paces
from ddpsim.workload import Phase, Workload
from ddpsim.workload.profile import Seconds


@dataclass(frozen=True, slots=True)
class Factors:
    """These are factors on the device's work.

    Attributes:
        forward, tail, optimizer: on that of forward, of backward after its last gradient, and of the optimizer.
        gradients: on what completes each gradient, by registration index.
    """

    forward: float
    gradients: Seconds
    tail: float
    optimizer: float


def retimed(workload: Workload, factors: Factors) -> Workload:
    """Return `workload` with its device's work scaled; the host's stays, and gradients come when both allow."""
    use, ready, backward = workload.forward_use_s, workload.gradient_ready_s.copy(), np.empty(workload.iterations)
    for iteration, pace in enumerate(paces(workload)):
        hooks, complete = workload.gradient_hook_s[iteration], 0.0
        order = list(pace.order)
        work = pace.work * factors.gradients[order]
        for place, index in enumerate(order):
            # The two clocks start apart, so that a completion may stand before its hook: it did then too.
            launched = min(hooks[index] + pace.lag[place], workload.gradient_ready_s[iteration, index])
            complete = max(complete + work[place], launched)
            ready[iteration, index] = complete
        backward[iteration] = work.sum() + pace.tail_work * factors.tail
    return replace(
        workload,
        forward=Phase(workload.forward.host_s, workload.forward.device_s * factors.forward),
        backward=Phase(workload.backward.host_s, backward),
        optimizer=Phase(workload.optimizer.host_s, workload.optimizer.device_s * factors.optimizer),
        gradient_ready_s=ready,
        forward_use_s=use and use.repaced(factors.forward),
    )
