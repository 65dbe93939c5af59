"""Parallax's messages held to counted bytes, and its step to closed forms of a server's link and of DDP."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from ddpsim.bucketing import Parameter
from ddpsim.collectives.servers import ServerPlaces
from ddpsim.common.errors import InputError, PlanError
from ddpsim.common.operation import Operation
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import TRAINERS, updated_elsewhere
from ddpsim.schedules.servers import SERVERS
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.trace.metrics import summarise
from tests.ddpsim.simulation.builders import workload
from tests.ddpsim.simulation.test_servers import ONE, byte_s, flat

SPARSE = Parameter("words", (1000, 16), sparse=True)
DENSE = [Parameter("one", (40,)), Parameter("two", (2, 30))]


def setup_of(world_size: int, parameters: list[Parameter]) -> SchemeInputs:
    order = tuple(range(len(parameters)))[::-1]
    return SchemeInputs(parameters=parameters, buckets=[order], world_size=world_size, update_s=1.0)


def test_rows_go_with_their_indices_and_dense_gradients_among_who_trains() -> None:
    made = scheme_named("parallax:servers=2,density=0.25").schedule(setup_of(4, [SPARSE, *DENSE]))
    bucket, push, pull = made
    assert (bucket.group, bucket.parameters, bucket.size_bytes) == (TRAINERS, (2, 1), 400)
    assert made.groups == {SERVERS: 4, TRAINERS: 2}
    # A quarter of 1000 rows of 16 floats and an index each; of two ranks' rows 1 - 0.75^2 are touched.
    assert (push.op, push.size_bytes) == (Operation.REDUCE, 250 * (64 + 8))
    assert (pull.op, pull.size_bytes) == (Operation.BROADCAST, round(0.4375 * 1000 * (64 + 8)))
    assert pull.delay_s == pytest.approx(0.4375 * 64000 / 64400 / 2)
    assert push.sparse
    assert pull.sparse
    assert not bucket.sparse


@pytest.mark.parametrize(
    ("scheme", "indices"),
    [
        ("parallax", {0}), ("parameter-server", {0, 1, 2}), ("parameter-server:async,beside=1", {0, 1, 2}),
        ("ddp", ()), ("dear", ()), ("zero1", ()), ("zero3", ()), ("dataparallel", ()), ("averaging:2", ()),
    ],
)  # fmt: skip
def test_others_update_what_comes_back_from_who_summed_its_gradient(scheme: str, indices: Collection[int]) -> None:
    made = scheme_named(scheme).schedule(setup_of(4, [SPARSE, *DENSE]))
    assert updated_elsewhere(made) == {*indices}


def test_a_dense_model_s_parameter_is_sparse_where_it_is_named() -> None:
    dense = [replace(SPARSE, sparse=False), *DENSE]
    made = scheme_named("parallax:sparse=word").schedule(setup_of(2, dense))
    assert [message.parameters for message in made if message.sparse] == [(0,), (0,)]
    with pytest.raises(PlanError, match="no parameter has a sparse gradient"):
        scheme_named("parallax").schedule(setup_of(2, dense))


@pytest.mark.parametrize(
    ("asked", "kind", "needle"),
    [
        ("parallax:servers=2", PlanError, "without clients"),
        ("parallax:density=0", InputError, "nothing"),
        ("parallax:density=2", InputError, "no share"),
    ],
)
def test_what_cannot_be_is_refused(asked: str, kind: type[Exception], needle: str) -> None:
    with pytest.raises(kind, match=needle):
        scheme_named(asked).schedule(setup_of(2, [SPARSE, *DENSE]))


def test_who_serves_does_not_train() -> None:
    assert scheme_named("parallax:servers=3,sparse=x").trainers(8) == 5
    assert Options(scheme="parallax:servers=3,sparse=x").ranks_meet
    assert scheme_named("parallax:servers=3,sparse=x").servers == ServerPlaces(servers=3)


@pytest.mark.parametrize(("ranks", "servers"), [(3, 1), (5, 2)])
def test_a_step_of_rows_waits_for_push_update_and_pull(ranks: int, servers: int) -> None:
    # One gradient of a million rows, all of which are touched; nothing of their exchange is hidden.
    source, placement, costs = workload(gradients=1, size=1_000_000), flat(ranks), Costs.of("gloo", None)
    alpha, beta, launch_s = byte_s(placement)
    workers, size = ranks - servers, 1_000_000 * (4 + 8)
    exchange_s = 2 * (alpha + launch_s + workers / servers * size * beta) + 0.01 / servers
    own_s = costs.forward_s + costs.hook_s + costs.copies_s(1, size) + costs.launch_s + costs.finish_s
    scheme = f"parallax:servers={servers},density=1,sparse=p"
    found = summarise(simulate(source, placement, Options(backend="gloo", scheme=scheme)))
    assert found.iteration_s == pytest.approx(0.03 + 0.08 + exchange_s + own_s, rel=2e-3)
    assert found.optimizer_s == 0


def test_dense_gradients_are_ddp_s_among_who_trains_and_updated_there() -> None:
    source = workload(gradients=4, size=4_000_000)
    ours, theirs = (
        summarise(simulate(source, flat(ranks), Options(backend="gloo", scheme=scheme, caps=ONE)))
        for ranks, scheme in ((3, "parallax:density=1e-9,sparse=p3"), (2, "ddp"))
    )
    assert ours.optimizer_s == pytest.approx(0.75 * theirs.optimizer_s)
    _, beta, _ = byte_s(flat(2))
    # Three of four gradients are in the bucket, which two ranks sum once backward has ended: its bytes each way, and
    # once more to copy them out.
    expected = 16e6 * beta + Costs.of("gloo", None).copies_s(1, 16_000_000)
    assert theirs.exposed_comm_s - ours.exposed_comm_s == pytest.approx(expected, rel=0.01)
