from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.common.errors import InputError, PlanError
from ddpsim.common.operation import Operation
from ddpsim.prediction.models import Model
from ddpsim.prediction.periods import periods_under, with_assumptions
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.schedules.mesh import DATA, EXPERT
from ddpsim.schedules.message import WORLD
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.placement import place
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from tests.mixtures import EXPERT_BYTES, EXPERTS, LAYERS, TOKENS, WIDTH, make_workload

NODE = load_topology("dgx-a100")
MODEL = make_workload()
ALIKE = Calibration.priors("nccl").with_values(
    {"nccl.ddp.pace_spread": 0.0, "nccl.ddp.node_spread": 0.0}, source="a test's"
)
DENSE_BYTES = 4 * LAYERS * (WIDTH * WIDTH + EXPERTS * WIDTH)


def _part(ranks: int, **asked: object) -> tuple[Workload, Options]:
    options = Options(expert_parallel=ranks, **asked)  # type: ignore[arg-type]
    return Model.of(MODEL).on(NODE, options=options), options


def _predicted(ranks: int, nodes: int = 1, gpus: int | None = None, **asked: object) -> Prediction:
    workload, options = _part(ranks, **asked)
    return predict(Job(workload, NODE, nodes=nodes, gpus_per_node=gpus, options=options, calibration=ALIKE), band=False)


def test_one_rank_is_what_it_was() -> None:
    whole = predict(Job(Model.of(MODEL).on(NODE), NODE, nodes=2, calibration=ALIKE), band=False)
    assert _predicted(1, 2).document() == whole.document()
    assert not whole.options.fixed_schedule


@pytest.mark.parametrize(("ranks", "nodes", "gpus"), [(2, 1, 8), (8, 1, 8), (8, 2, 4), (4, 4, 1)])
def test_layers_wait_as_long_as_their_all_to_alls_take(ranks: int, nodes: int, gpus: int) -> None:
    found = _predicted(ranks, nodes, gpus)
    group = place(NODE, max(1, ranks // gpus), min(ranks, gpus))
    once_s = make_transport(group, "nccl", ALIKE).time_s(Operation.ALL_TO_ALL, TOKENS * WIDTH * 2)
    # Gradients that are on the same links meanwhile make them longer.
    alone = _predicted(ranks, nodes, gpus, overlap="off").summary.layer_comm_s
    assert alone == pytest.approx(4 * LAYERS * once_s, rel=0.02)
    assert found.summary.layer_comm_s is not None
    assert found.summary.layer_comm_s >= 0.999 * alone
    assert sum(found.summary.parts.values()) == pytest.approx(found.iteration_s)


@pytest.mark.parametrize("ranks", [2, 8])
def test_gradients_go_over_the_ranks_that_have_them(ranks: int) -> None:
    found = _predicted(ranks, 2)
    schedule = found.trace.schedule
    assert schedule is not None
    assert schedule.groups == {EXPERT: ranks, DATA: 16 // ranks}
    sent = {group: sum(each.size_bytes for each in schedule if each.group == group) for group in (WORLD, DATA)}
    assert sent == {WORLD: DENSE_BYTES, DATA: LAYERS * EXPERTS // ranks * EXPERT_BYTES}
    run = found.run.under(found.options)
    assert {each.ranks for each in run.shared.lanes} == {16, 16 // ranks, ranks}


def test_experts_that_nobody_else_has_are_summed_with_nobody() -> None:
    found = _predicted(8)
    experts = [b for b in found.summary.buckets if b.size_bytes > DENSE_BYTES]
    assert experts
    assert all(bucket.finished_s - bucket.started_s < 100e-6 for bucket in experts)


def test_buckets_hold_experts_or_all_else() -> None:
    workload, options = _part(4, caps=BucketCaps(bucket_cap_mb=10.0))
    assert workload.experts is not None
    own = workload.experts.parameters
    plan = options.bucket_plan(workload)
    assert {len(own & {*bucket.parameters}) in (0, len(bucket.parameters)) for bucket in plan.buckets} == {True}


@pytest.mark.parametrize("scheme", ["naive", "flat", "priority"])
def test_schemes_that_sum_have_the_experts_apart(scheme: str) -> None:
    found = _predicted(4, 2, scheme=scheme)
    assert found.trace.schedule is not None
    sent = dict.fromkeys((WORLD, DATA), 0)
    for each in found.trace.schedule:
        sent[each.group] += each.size_bytes
        names = {"experts" in found.workload.parameters[index].name for index in each.parameters}
        assert names == {each.group == DATA}
    assert sent == {WORLD: DENSE_BYTES, DATA: LAYERS * EXPERTS // 4 * EXPERT_BYTES}


@pytest.mark.parametrize("scheme", ["fsdp2", "zero1", "dear"])
def test_schemes_that_shard_have_the_experts_over_their_own_ranks(scheme: str) -> None:
    found = _predicted(2, 2, scheme=scheme)
    schedule = found.trace.schedule
    assert schedule is not None
    own = LAYERS * EXPERTS // 2 * EXPERT_BYTES
    sent = dict.fromkeys(((op, group) for op in ("reduce_scatter", "all_gather") for group in (WORLD, DATA)), 0)
    for each in schedule:
        sent[each.op.value, each.group] += each.size_bytes
    # fully_shard gathers again in backward all but the last block and what is left of the root.
    again = 2 if scheme == "fsdp2" else 1
    # The gate's eight rows are filled up for sixteen ranks; a unit's filling is parted as its bytes are.
    assert sent["reduce_scatter", DATA] == pytest.approx(own, rel=1e-3)
    assert 0.999 * own <= sent["all_gather", DATA] <= 1.001 * again * own
    assert sent["reduce_scatter", WORLD] == pytest.approx(DENSE_BYTES, rel=0.01)
    shards = schedule.sharding.optimizer
    if scheme != "dear":
        assert shards == pytest.approx((DENSE_BYTES + own) / (DENSE_BYTES / 16 + own / 8))
    if scheme == "fsdp2":
        assert found.memory is not None
        assert found.memory.parameters_bytes == pytest.approx(DENSE_BYTES / 16 + own / 8, abs=2)


def test_slow_links_between_nodes_slow_what_crosses_them() -> None:
    slow = Assumptions(ALIKE, links=frozenset({"nic"}), link_rate=0.25)
    inside, across = _predicted(4, 4, 4, overlap="off"), _predicted(8, 8, 1, overlap="off")
    for found, factor in ((inside, 1.0), (across, 4.0)):
        before, after = found.summary, with_assumptions(found.run, slow)
        assert before.layer_comm_s is not None
        assert after.layer_comm_s == pytest.approx(factor * before.layer_comm_s, rel=0.15)
    after = with_assumptions(inside.run, slow)
    assert after.exposed_comm_s > 2 * inside.summary.exposed_comm_s


def test_tokens_across_nodes_wait_for_gradients_on_the_same_cards() -> None:
    beside, alone = _predicted(4, 8, 1), _predicted(4, 8, 1, overlap="off")
    assert beside.summary.layer_comm_s is not None
    assert alone.summary.layer_comm_s is not None
    assert beside.summary.layer_comm_s > 1.05 * alone.summary.layer_comm_s


def test_every_micro_batch_sends_its_tokens() -> None:
    one, four = _predicted(4, 2, overlap="off"), _predicted(4, 2, overlap="off", accumulate=4)
    assert four.summary.layer_comm_s == pytest.approx(one.summary.layer_comm_s, rel=0.05)
    assert (one.samples, four.samples) == (16 * 8, 16 * 8)


def test_a_slower_wire_is_told_from_the_graph() -> None:
    found = _predicted(4, 4, 2)
    slower = Assumptions(ALIKE, wire_factor=lambda size_bytes: 1.5)
    [told], [simulated] = (periods_under(found, [slower], exact=exact) for exact in (False, True))
    assert told.iteration_s == pytest.approx(simulated.iteration_s, rel=0.005)
    assert told.iteration_s > found.iteration_s


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="expert_parallel"):
        Options(expert_parallel=0)
    with pytest.raises(InputError, match="expert_parallel: groups of 8 ranks do not divide 12 ranks; give a divisor"):
        _predicted(8, 3, 4)
    with pytest.raises(InputError, match="groups of 4 ranks on nodes of 6; give a divisor or a multiple"):
        _predicted(4, 2, 6)
    for scheme in ("hsdp:2", "parameter-server", "gradientflow"):
        with pytest.raises(PlanError, match="cannot be parted where experts in groups of 2 ranks have theirs apart"):
            _predicted(2, 2, scheme=scheme)


def test_a_whole_step_is_not_taken_for_a_part() -> None:
    part, _ = _part(2)
    with pytest.raises(InputError, match="is one of 2 parts of a step, asked for is 1"):
        predict(Job(part, NODE), band=False)
    with pytest.raises(InputError, match="is a whole step, asked for is 2"):
        predict(Job(replace(part, experts=None), NODE, options=Options(expert_parallel=2)), band=False)
