"""Several captures of one step as one workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ddpsim.common.errors import WorkloadError
from ddpsim.workload.profile import Phase, Workload, median_use
from ddpsim.workload.times import Seconds

_ALIKE = ("name", "device", "precision", "batch_size", "threads", "parameters", "buffers", "synchronises", "ranks")


def pool_captures(captures: Sequence[Workload]) -> Workload:
    """Return a workload with the iterations of all `captures`, in their order.

    Where a process's memory comes to lie makes it faster or slower for as long as it lives, by some percent: captures
    of several processes say more than one that is longer.

    Raises:
        WorkloadError: captures of different steps: another name, device, precision, batch size or parameters, or with
            another number of ranks that ran at the same time.
    """
    first = captures[0]
    for each in captures[1:]:
        for name in _ALIKE:
            if getattr(each, name) != getattr(first, name):
                raise WorkloadError(f"captures differ in {name}", place=first.name, remedy="pool captures of one step")

    def joined(times: Callable[[Workload], Seconds]) -> Seconds:
        return np.concatenate([times(each) for each in captures])

    uses = [use for each in captures if (use := each.forward_use_s) is not None]
    return replace(
        first,
        forward=Phase(joined(lambda w: w.forward.host_s), joined(lambda w: w.forward.device_s)),
        backward=Phase(joined(lambda w: w.backward.host_s), joined(lambda w: w.backward.device_s)),
        optimizer=Phase(joined(lambda w: w.optimizer.host_s), joined(lambda w: w.optimizer.device_s)),
        gradient_hook_s=joined(lambda w: w.gradient_hook_s),
        gradient_ready_s=joined(lambda w: w.gradient_ready_s),
        forward_use_s=median_use(uses) if uses else None,
        provenance={**first.provenance, "processes": sum(map(_processes, captures))},
    )


def _processes(capture: Workload) -> int:
    known = capture.provenance.get("processes", 1)
    return known if isinstance(known, int) else 1
