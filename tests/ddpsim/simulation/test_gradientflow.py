"""Important chunks in the simulator: bytes by hand, the step by a closed form, and what the consensus costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.collectives.execute import Collectives
from ddpsim.common.errors import PlanError
from ddpsim.prediction.predict import predict
from ddpsim.schedules.chunks import GradientFlow
from ddpsim.schedules.fused import gradientflow
from ddpsim.schedules.schedule import check
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload.files import load_workload
from tests.ddpsim.simulation.builders import workload


def test_bytes_are_a_norm_a_chunk_and_the_chosen_chunks() -> None:
    parameters = [Parameter("a", (1000,)), Parameter("b", (50,)), Parameter("c", (5,))]
    setup = SchemeInputs(parameters=parameters, buckets=[(1, 0), (2,)], world_size=4)
    made = gradientflow(setup, GradientFlow(density=0.3, chunk=100))
    check(made, parameters, 4)
    # 1050 elements are eleven chunks, of which 3.3 are four; five elements are one, smaller than a chunk.
    assert [message.size_bytes for message in made] == [4 * 11, 4, 4 * 400, 4 * 5]


@pytest.mark.parametrize(("momentum", "passes"), [("", 0.0), (",momentum=0.9", 2.5)])
def test_a_step_is_norms_and_chunks_and_the_passes_over_them(momentum: str, passes: float) -> None:
    source, placement = workload(gradients=1, size=1_000_000), load_topology("loopback").place(1, 2)
    costs = Costs.of("gloo", None)
    wire = Collectives(None, placement, backend="gloo")
    copy_s, size = costs.copies_s(1, 4_000_000), 4 * 250_000
    # Copied by the hook; three passes for norms, those of a velocity where there is one, one when the chunks are there.
    own_s = costs.forward_s + costs.hook_s + (5 + passes) * copy_s + 2 * costs.launch_s + costs.finish_s
    expected = 0.12 + own_s + wire.estimate_s(4 * 4) + wire.estimate_s(size)
    options = Options(backend="gloo", scheme=f"gradientflow:density=0.25,chunk=250000{momentum}")
    assert summarise(simulate(source, placement, options)).iteration_s == pytest.approx(expected, rel=1e-6)


def test_the_consensus_eats_the_gain_where_communication_is_hidden_and_not_where_it_is_exposed() -> None:
    def gain(machine: str, nodes: int) -> float:
        job = Job(load_workload("resnet50"), load_topology(machine), nodes)
        ddp, sparse = (
            predict(replace(job, options=Options(scheme=scheme)), band=False).iteration_s
            for scheme in ("ddp", "gradientflow")
        )
        return 1 - sparse / ddp

    assert gain("dgx-1v", 2) < 0 < gain("p3.8xlarge", 4)


def test_micro_batches_that_are_summed_one_by_one_are_refused() -> None:
    options = Options(backend="gloo", scheme="gradientflow", accumulate=2, sync="every", caps=BucketCaps(1))
    with pytest.raises(PlanError, match="micro-batches"):
        simulate(workload(), load_topology("loopback").place(1, 2), options)
