"""Steps that torch.compile compiled when they were recorded: in one graph, so that their gradients came all at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddpsim.workload.profile import Workload

COMPILED = "compiled"
"""Key of a workload's provenance: whether torch.compile compiled the step."""


def was_compiled(workload: Workload) -> bool:
    """Return whether torch.compile compiled the step of `workload`."""
    return workload.provenance.get(COMPILED) is True


def spread_out(workload: Workload) -> Workload:
    """Return a step that was recorded in one graph with the gradients that smaller graphs would give.

    When they would come nobody recorded: in reverse order of registration, each after the share of backward that its
    bytes are of all. An estimate, which counts operators one by one, stays as it is, and so does an eager step.
    """
    if workload.estimated or not was_compiled(workload):
        return workload
    known = ~np.isnan(workload.gradient_ready_s)
    sizes = np.where(known, [float(parameter.size_bytes) for parameter in workload.parameters], 0.0)
    behind = np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1]
    share = np.where(known, behind / behind[:, :1], np.nan)
    hook_s, ready_s = (
        share * np.nanmax(times, axis=1, keepdims=True)
        for times in (workload.gradient_hook_s, workload.gradient_ready_s)
    )
    return replace(workload, gradient_hook_s=hook_s, gradient_ready_s=ready_s)
