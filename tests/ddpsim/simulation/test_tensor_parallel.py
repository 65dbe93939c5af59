from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.transport import Transport
from ddpsim.common.errors import InputError, PlanError
from ddpsim.common.operation import Operation
from ddpsim.prediction.models import Model
from ddpsim.prediction.periods import periods_under
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.schedules.mesh import DATA, LAYERS, TENSOR
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.placement import place
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace, write_trace
from ddpsim.trace.metrics import LAYERS as LAYERS_PART
from ddpsim.trace.records import LAYERS as LAYERS_STREAM

NODE = load_topology("dgx-a100")
MiB = 1 << 20


MODEL = "bert-large"
"""Its sixteen heads can be in groups of all sizes that a node holds."""


def _predicted(ranks: int, nodes: int = 1, *, band: bool = False, model: str = MODEL, **asked: object) -> Prediction:
    options = Options(tensor_parallel=ranks, **asked)  # type: ignore[arg-type]
    workload = Model.of(model).on(NODE, options=options)
    return predict(Job(workload, NODE, nodes=nodes, options=options), band=band)


def _transports(found: Prediction) -> dict[str, tuple[Transport, int]]:
    """Return by process group its transport, and for how many groups that stands."""
    run = found.run.under(found.options)
    lanes = zip(run.rank_configs[0].scheduled(0).lanes, run.shared.lanes, strict=True)
    return {group: (each.collectives.transport, each.together) for (group, _), each in lanes}


def test_one_rank_is_what_it_was() -> None:
    whole = predict(Job(Model.of(MODEL).on(NODE), NODE, nodes=2), band=False)
    assert _predicted(1, 2).document() == whole.document()
    assert not whole.options.fixed_schedule


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_layers_wait_as_long_as_allreduces_among_their_ranks_take(ranks: int) -> None:
    options = Options(tensor_parallel=ranks)
    alike = Calibration.priors("nccl").with_values({"nccl.ddp.pace_spread": 0.0}, source="a test's")
    workload = Model.of(MODEL).on(NODE, options=options)
    found = predict(Job(workload, NODE, options=options, calibration=alike), band=False)
    transport = make_transport(place(NODE, 1, ranks), "nccl")
    assert found.workload.tensor is not None
    by_hand_s = sum(transport.time_s(Operation.ALLREDUCE, each.size_bytes) for each in found.workload.tensor.messages)
    assert found.summary.layer_comm_s == pytest.approx(by_hand_s, rel=0.02)
    assert sum(found.summary.parts.values()) == pytest.approx(found.iteration_s)
    assert LAYERS_PART in found.summary.parts


def test_gradients_go_over_the_ranks_of_one_place() -> None:
    found = _predicted(8, 2)
    transport, together = _transports(found)[DATA]
    assert together == 8

    def out_of_node(of: Transport, size_bytes: int) -> float:
        demand = of.demand(Operation.ALLREDUCE, size_bytes)
        loads = {str(link): load for link, load in demand.loads.items()}
        return demand.size_bytes * sum(load for link, load in loads.items() if link.endswith(">network"))

    pair = make_transport(place(NODE, 2, 1), "nccl")
    # A ring of two sends each message once; eight groups share the node's cards.
    assert out_of_node(transport, together * 64 * MiB) == pytest.approx(8 * out_of_node(pair, 64 * MiB), rel=1e-3)
    assert sum(bucket.size_bytes for bucket in found.summary.buckets) == found.workload.gradient_bytes


def test_each_group_has_its_ranks() -> None:
    found = _predicted(4, 2)
    run = found.run.under(found.options)
    assert run.rank_configs[0].scheduled(0).lanes[-1] == LAYERS[0]
    assert run.schedule.groups == {TENSOR: 4, DATA: 4}
    assert run.shared.lanes[-1].ranks == 4


def test_ranks_of_one_group_have_nobody_to_sum_with() -> None:
    found = _predicted(8)
    assert all(bucket.finished_s - bucket.started_s < 100e-6 for bucket in found.summary.buckets)
    assert found.samples == 8
    assert _predicted(4).samples == 16


@pytest.mark.parametrize("scheme", ["fsdp2", "zero1", "dear", "flat"])
def test_schemes_shard_over_the_data_group(scheme: str) -> None:
    found = _predicted(2, 2, scheme=scheme)
    assert found.trace.schedule is not None
    assert {message.group for message in found.trace.schedule} == {DATA}
    assert found.summary.layer_comm_s
    if scheme == "fsdp2":
        assert found.trace.schedule.sharding.parameters == 8


def test_every_micro_batch_sends_its_activations() -> None:
    one, four = _predicted(4, 2), _predicted(4, 2, accumulate=4)
    assert four.summary.layer_comm_s == pytest.approx(one.summary.layer_comm_s, rel=0.02)


def test_without_communication_layers_wait_for_nothing() -> None:
    assert _predicted(4, comm="noop").summary.layer_comm_s == pytest.approx(0.0, abs=1e-6)


def test_layers_that_sleep_wait_too() -> None:
    asked = Options(tensor_parallel=2)
    model = Model.of("gpt2-small@A100").on(load_topology("loopback"), options=asked)
    found = predict(Job(model, load_topology("loopback"), gpus_per_node=4, options=asked), band=False)
    assert found.summary.layer_comm_s
    assert sum(found.summary.parts.values()) == pytest.approx(found.iteration_s)


def test_a_slower_wire_is_told_from_the_graph() -> None:
    found = _predicted(4, 2)
    slower = Assumptions(None, wire_factor=lambda size_bytes: 1.5)
    [told], [simulated] = (periods_under(found, [slower], exact=exact) for exact in (False, True))
    assert told.retimed
    assert told.iteration_s == pytest.approx(simulated.iteration_s, rel=0.002)
    assert told.iteration_s > found.iteration_s + 0.4 * (found.summary.layer_comm_s or 0.0)


def test_a_trace_has_a_stream_of_what_layers_wait_for(tmp_path: Path) -> None:
    found = _predicted(4, 2)
    spans = [span for span in found.trace.spans if span.stream == LAYERS_STREAM]
    assert found.workload.tensor is not None
    assert len(spans) == len(found.workload.tensor.messages) * len(found.trace.iterations)
    assert all(after.start_s >= before.end_s for before, after in pairwise(spans))
    write_trace(found.trace, tmp_path)
    assert read_trace(tmp_path).iterations == list(found.trace.iterations)


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="groups of 3 ranks do not divide 16 ranks; give a divisor of 16"):
        _predicted(3, 2, model="gpt2-small")
    options = Options(tensor_parallel=4)
    with pytest.raises(InputError, match="groups of 4 ranks on nodes of 6; give a divisor or a multiple"):
        predict(Job(Model.of("gpt2-small").on(NODE, options=options), NODE, nodes=2, gpus_per_node=6, options=options))
    with pytest.raises(PlanError, match="scheme 'hsdp:2': its ranks cannot be in groups of 2 that share layers"):
        _predicted(2, 2, scheme="hsdp:2")
    with pytest.raises(PlanError, match="its ranks cannot be in groups of 2"):
        _predicted(2, 2, scheme="parameter-server")


def test_other_buckets_of_a_job_that_is_resolved_are_sent() -> None:
    found = _predicted(4, 2)
    caps = BucketCaps(bucket_cap_mb=100)
    again = found.run.with_buckets(caps).plan_and_period()
    anew = _predicted(4, 2, caps=caps)
    assert again == (anew.plan, pytest.approx(anew.iteration_s))
    assert anew.iteration_s != pytest.approx(found.iteration_s)


def test_a_whole_step_is_not_taken_for_a_part() -> None:
    part = Model.of("gpt2-small").on(NODE, options=Options(tensor_parallel=2))
    with pytest.raises(InputError, match="is one of 2 parts of a step, asked for is 1"):
        predict(Job(part, NODE), band=False)
    with pytest.raises(InputError, match="is a whole step, asked for is 2"):
        predict(Job(replace(part, tensor=None), NODE, options=Options(tensor_parallel=2)), band=False)
