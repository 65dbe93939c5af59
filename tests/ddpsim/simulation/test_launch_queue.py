"""How far the host is ahead of the device: by the kernels that a stream's launch queue holds."""

from __future__ import annotations

import pytest

from ddpsim.simulation import Options, simulate
from ddpsim.simulation.ddp_costs import KERNELS
from ddpsim.simulation.rank_builder import AT_ONCE, QUEUED
from ddpsim.topology.spec import load_topology
from tests.ddpsim.simulation.builders import workload


@pytest.mark.parametrize("gradients", [50, 300, 1000])
def test_no_more_kernels_are_launched_and_not_begun_than_the_queue_holds(gradients: int) -> None:
    source = workload(device="V100", gradients=gradients, host_share=0.05)
    trace = simulate(source, load_topology("dgx-1v").place(1, 2), Options(iterations=4))
    iterations = trace.of_rank(0)
    # The host's time of each gradient, and the device's: how many gradients it is ahead, all iterations in one row.
    hooks = sorted(g.hook_s for it in iterations for g in it.gradients)
    ready = sorted(g.ready_s for it in iterations for g in it.gradients)
    done, ahead = 0, 0
    for launched, hook in enumerate(hooks):
        while done < len(ready) and ready[done] <= hook:
            done += 1
        ahead = max(ahead, launched - done)
    kernels = KERNELS + 1  # a copy into its bucket beside those of backward, forward's not counted
    most = QUEUED + AT_ONCE + KERNELS / 2 * gradients
    assert ahead * kernels <= most
    if gradients == 1000:
        assert ahead * kernels > 0.3 * QUEUED, "the host is not held up before the queue is full"
