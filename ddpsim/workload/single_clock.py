"""A workload as timed layers replay it: on one clock, at which gradients arrive whatever the host does meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddpsim.workload.profile import Phase, Seconds, Workload

TICK_S = 1e-9
"""Between gradients that are complete at one time, so that the order of their hooks is not lost."""


def single_clock(workload: Workload, scale_compute: float = 1.0) -> Workload:
    """Return `workload` with host and device as one clock, all times multiplied by `scale_compute`.

    Each phase takes the longer of its host and device times; a gradient is there when the device has made it, never
    before one whose hook fired earlier. The result is marked as `timed`.
    """
    ready = _in_hook_order(workload) * scale_compute
    use = workload.forward_use_s
    last = np.nanmax(np.where(np.isnan(ready), 0.0, ready), axis=1)
    return replace(
        workload,
        timed=True,
        forward=_merged(workload.forward, scale_compute),
        backward=_merged(workload.backward, scale_compute, last),
        optimizer=_merged(workload.optimizer, scale_compute),
        gradient_hook_s=ready,
        gradient_ready_s=ready,
        forward_use_s=use and use.on_one_clock().scaled(scale_compute, scale_compute),
    )


def _merged(phase: Phase, scale: float, at_least: Seconds | float = 0.0) -> Phase:
    seconds = np.maximum(np.maximum(phase.host_s, phase.device_s) * scale, at_least)
    return Phase(seconds, seconds)


def _in_hook_order(workload: Workload) -> Seconds:
    ready = workload.gradient_ready_s.copy()
    for iteration in range(workload.iterations):
        order = [i for i in workload.arrival_order(iteration) if not np.isnan(ready[iteration, i])]
        ticks = TICK_S * np.arange(len(order))  # gradients of one kernel are complete together, but hook in turn
        ready[iteration, order] = np.maximum.accumulate(ready[iteration, order]) + ticks
    return ready
