"""What a rank's builder writes: a gradient's nodes in one go, and no more kernels ahead than a stream's queue holds."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from ddpsim.simulation.ddp_costs import KERNELS, Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.graph import Cause, ExecutionModel, NodeKind, StepGraph
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.linear import Linear
from ddpsim.simulation.rank_builder import AT_ONCE, QUEUED, RankBuilder
from ddpsim.topology.spec import load_topology
from tests.ddpsim.simulation.builders import workload

HOOK_S, COPY_S = Linear.of("hook_s", 3e-6), Linear.of("copy_s", 5e-6)


def builder() -> RankBuilder:
    """A rank on a GPU that has just begun backward."""
    made = RankBuilder(StepGraph(), ExecutionModel(one_thread=False), Costs.of("nccl", None), 0.0, 0, 1)
    made.host(1e-3)
    made.event()
    made.graph.writing = Cause.BACKWARD
    return made


@pytest.mark.parametrize("work_s", [0.0, 2e-3])
@pytest.mark.parametrize(("host_s", "owed_s"), [(1e-3, 0.0), (1e-3, HOOK_S), (0.0, HOOK_S)])
@pytest.mark.parametrize("copy_s", [0.0, 1e-5, COPY_S])
def test_a_gradient_in_one_go_is_its_parts(work_s: float, host_s: float, owed_s: float, copy_s: float) -> None:
    whole, parts = builder(), builder()
    for _ in range(3):
        ready = whole.gradient(work_s, host_s, owed_s, copy_s)
        parts.device(work_s)
        parts.host(host_s + owed_s)
        assert ready == parts.mark()
        parts.copies(copy_s)
    assert asdict(whole.graph) == asdict(parts.graph)
    assert whole.graph.kind[ready] is NodeKind.MARK
    assert all(type(seconds) is float for seconds in whole.graph.seconds)


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
