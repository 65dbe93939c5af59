"""A gradient's nodes in one go are those that its parts would add one after the other."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.graph import Cause, ExecutionModel, NodeKind, StepGraph
from ddpsim.simulation.linear import Linear
from ddpsim.simulation.rank_builder import RankBuilder

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
        assert ready == parts.moment()
        parts.copies(copy_s)
    assert asdict(whole.graph) == asdict(parts.graph)
    assert whole.graph.kind[ready] is NodeKind.MARK
    assert all(type(seconds) is float for seconds in whole.graph.seconds)
