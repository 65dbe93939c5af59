"""Parameter servers, held to closed forms of their link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import Collectives, find_rank_paths
from ddpsim.collectives.servers import ServerPlaces, parameter_server
from ddpsim.common.errors import InputError, PlanError, TopologyError
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.prediction.predict import predict
from ddpsim.schedules.named import scheme_named
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.contention import slow_messages
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import run_job, simulate, trace_of
from ddpsim.simulation.graph import Collective
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.parameter_servers import ServerConnection, ServerLinks
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology, parse_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload.profile import ForwardUse
from tests.ddpsim.collectives.closed_forms import count_sent_chunks
from tests.ddpsim.collectives.shaped import SHAPED_100US
from tests.ddpsim.simulation.builders import workload

SIZE = 4_000_000
ONE = BucketCaps(bucket_cap_mb=100)


def flat(ranks: int) -> Placement:
    """Return nodes of one rank each, with links of 1 Gbit/s."""
    return parse_topology(SHAPED_100US, "shaped.yaml").place(ranks)


def byte_s(placement: Placement) -> tuple[float, float, float]:
    """Return what a message takes before its bytes, what a byte takes, and what a launch takes."""
    get = Collectives(None, placement, backend="gloo").calibration
    alpha = get["gloo.step_s"] + get["gloo.round_trips"] * 4 * 0.1e-3
    return alpha, 1 / (1.25e8 * get["gloo.efficiency.network"]), get["gloo.launch_s"]


@pytest.mark.parametrize(("ranks", "servers"), [(4, 1), (5, 2), (3, 2)])
def test_servers_of_their_own_take_the_closed_form(ranks: int, servers: int) -> None:
    placement, size = flat(ranks), 64 * MIB
    alpha, beta, launch_s = byte_s(placement)
    options = CollectiveOptions(algorithm=f"parameter-server:{servers}")
    found = Collectives(None, placement, backend="gloo", options=options).simulate_s(size)
    # A server's link carries its part of all workers' messages, or a worker's its whole message, where that is more.
    expected = launch_s + 2 * alpha + 2 * max((ranks - servers) / servers, 1.0) * size * beta
    assert found == pytest.approx(expected, rel=1e-3)
    sent = count_sent_chunks(parameter_server(ranks, range(ranks - servers, ranks), ranks - servers))
    assert sent == [servers] * (ranks - servers) + [ranks - servers] * servers


@pytest.mark.parametrize(("ranks", "servers"), [(3, 1), (5, 1), (5, 2)])
def test_a_synchronous_step_waits_for_push_update_and_pull(ranks: int, servers: int) -> None:
    # One gradient, so that nothing of its exchange is hidden.
    source, placement, costs = workload(gradients=1, size=4_000_000), flat(ranks), Costs.of("gloo", None)
    alpha, beta, launch_s = byte_s(placement)
    workers, size = ranks - servers, source.gradient_bytes
    # A send takes a step of an allreduce before its bytes.
    exchange_s = 2 * (alpha + launch_s / (2 * (ranks - 1)) + workers / servers * size * beta) + 0.01 / servers
    own_s = costs.forward_s + costs.hook_s + costs.copies_s(1, size) + costs.launch_s + costs.finish_s
    found = summarise(
        simulate(source, placement, Options(backend="gloo", caps=ONE, scheme=f"parameter-server:servers={servers}"))
    )
    # The pull is launched under the push.
    assert found.iteration_s == pytest.approx(0.03 + 0.08 + exchange_s + own_s, rel=2e-3)
    assert found.optimizer_s == 0


@pytest.mark.parametrize("scheme", ["parameter-server", "parameter-server:async"])
def test_pushes_under_way_together_share_the_server_s_link(scheme: str) -> None:
    # Gradients come far faster than the link takes them, so that it is busy until the last has been pushed and pulled.
    source, placement = workload(gradients=8, size=1_000_000, backward=0.008), flat(2)
    _, beta, _ = byte_s(placement)
    options = Options(backend="gloo", caps=BucketCaps(bucket_cap_mb=3.8), scheme=scheme)
    found = summarise(simulate(source, placement, options))
    pushes = [bucket for bucket in found.buckets if bucket.operation == "reduce"]
    assert len(pushes) == 8
    span_s = max(push.finished_s for push in pushes) - min(push.started_s for push in pushes)
    assert span_s == pytest.approx(source.gradient_bytes * beta, rel=0.05)


def test_asynchronous_ranks_share_the_server_s_link_and_count_their_staleness() -> None:
    source, placement = workload(gradients=1, size=4_000_000), flat(5)
    _, beta, _ = byte_s(placement)
    options = Options(backend="gloo", caps=ONE, scheme="parameter-server:async", iterations=20)
    trace = simulate(source, placement, options)
    one_s, size = summarise(trace).iteration_s, source.gradient_bytes
    # Four ranks push over one link: no step is shorter than that takes, nor than a rank's own exchange.
    assert one_s >= 4 * size * beta
    assert one_s >= 0.11 + 2 * size * beta
    # Ranks of one pace begin together and stay so, so that their links are as busy as if they waited for each other.
    synchronous = summarise(
        simulate(source, placement, Options(backend="gloo", caps=ONE, scheme="parameter-server"))
    ).iteration_s
    assert one_s == pytest.approx(synchronous, rel=0.01)
    servers = trace.provenance["servers"]
    # Every step of every rank but its first comes after a pull; in between each of the others pushed once.
    assert servers["staleness_mean"] == pytest.approx(3, abs=0.3)
    assert trace.ranks == [0, 1, 2, 3]


def test_the_doubt_of_the_wire_is_that_of_ranks_that_go_alone_too() -> None:
    source, placement = workload(gradients=1, size=4_000_000), flat(2)

    def step_s(scheme: str, factor: float) -> float:
        options = Options(backend="gloo", caps=ONE, scheme=scheme)
        assumed = Assumptions(wire_factor=lambda size_bytes: factor)
        return summarise(trace_of(run_job(source, placement, options, assumed))).iteration_s

    _, beta, _ = byte_s(placement)
    longer_s = step_s("parameter-server:async", 2) - step_s("parameter-server:async", 1)
    assert longer_s >= 2 * source.gradient_bytes * beta
    # One rank that trains waits as long in either form.
    assert longer_s == pytest.approx(step_s("parameter-server", 2) - step_s("parameter-server", 1), rel=0.01)


def test_only_the_straggler_takes_its_time_where_ranks_go_alone() -> None:
    def periods(scheme: str) -> dict[int, float]:
        options = Options(backend="gloo", caps=ONE, scheme=scheme, stragglers={1: 3.0}, iterations=10)
        trace = simulate(workload(gradients=1, size=400_000), flat(4), options)
        return {rank: summarise(replace(trace, iterations=trace.of_rank(rank))).iteration_s for rank in trace.ranks}

    alone, together = periods("parameter-server:async"), periods("parameter-server")
    assert alone[0] < 0.5 * alone[1]
    assert together[0] > alone[1]


def test_a_rank_s_computation_slows_its_own_pushes_and_not_those_of_others() -> None:
    slowed = Calibration.priors("gloo").with_values({"gloo.ddp.communication_slowdown": 2.0}, source="test")
    placement, bucket = flat(3), (0,)
    _, beta, _ = byte_s(placement)
    env = simpy.Environment()
    ways = find_rank_paths(placement, "gloo", slowed)
    links = ServerLinks(env, ways, [2], [[], [bucket], [bucket]], 0.0)
    slow_messages(links.network, Costs.of("gloo", slowed), {}, 0)(True)
    pushes = [ServerConnection(links, rank).attend(Collective(SIZE, Operation.REDUCE, 1, 0)) for rank in (0, 1)]
    ends = []
    for push in pushes:
        push.callbacks.append(lambda _: ends.append(env.now))
    env.run()
    # They share the server's link until the quiet rank's is over; the busy one's goes at half its rate throughout.
    assert ends == pytest.approx([2 * SIZE * beta, (2 * SIZE + 2 * SIZE / 2) * beta], rel=1e-6)


def test_one_asynchronous_rank_is_never_stale() -> None:
    trace = simulate(workload(), flat(2), Options(backend="gloo", caps=ONE, scheme="parameter-server:async"))
    assert trace.provenance["servers"]["staleness_most"] == 0
    alone, together = (
        summarise(simulate(workload(), flat(2), Options(backend="gloo", caps=ONE, scheme=name))).iteration_s
        for name in ("parameter-server:async", "parameter-server")
    )
    assert alone == pytest.approx(together, rel=1e-3)


def with_pulls_in_order(backward_s: float) -> tuple[float, float]:
    """Return the step with pulls in the order of the pushes, and in forward's."""
    use = np.arange(8) / 8 * 0.3
    source = workload(gradients=8, size=1_000_000, forward=0.3, backward=backward_s)
    source = replace(source, forward_use_s=ForwardUse(use, use))
    caps = BucketCaps(bucket_cap_mb=3.8)
    plain, ordered = (
        summarise(simulate(source, flat(3), Options(backend="gloo", caps=caps, scheme=name))).iteration_s
        for name in ("parameter-server", "parameter-server:tictac")
    )
    return plain, ordered


def test_pulls_in_forward_s_order_are_earlier_where_backward_hides_the_pushes() -> None:
    plain, ordered = with_pulls_in_order(1.0)
    assert ordered < 0.95 * plain


def test_pulls_in_the_order_of_the_pushes_begin_under_them() -> None:
    # What forward needs first is pushed last, so that in its order no pull leaves before all has been pushed.
    plain, ordered = with_pulls_in_order(0.08)
    assert plain < ordered


def test_servers_train_nothing_and_keep_the_optimizer_s_state() -> None:
    source, machine = workload(device="V100"), load_topology("dgx-1v")
    found = predict(Job(source, machine, options=Options(scheme="parameter-server:servers=2")), band=False)
    assert found.memory is not None
    assert found.memory.optimizer_bytes == 0
    assert scheme_named(found.options.scheme).trainers(found.summary.world_size) == 6


def test_what_leaves_no_client_is_refused() -> None:
    with pytest.raises(TopologyError, match="leave a rank"):
        Collectives(None, flat(2), backend="gloo", options=CollectiveOptions(algorithm="parameter-server:2"))
    assert scheme_named("ddp").servers is None


@pytest.mark.parametrize(
    ("places", "trainers", "hosts"),
    [
        (ServerPlaces(), 31, (31,)),
        (ServerPlaces(servers=2), 30, (30, 31)),
        (ServerPlaces(nodes=1), 24, (24,)),
        (ServerPlaces(nodes=2, each=3), 16, (16, 17, 18, 24, 25, 26)),
        (ServerPlaces(beside=2), 32, (0, 1, 8, 9, 16, 17, 24, 25)),
    ],
)
def test_servers_are_where_they_are_asked_for(places: ServerPlaces, trainers: int, hosts: tuple[int, ...]) -> None:
    places.check(32, 8, "parameter-server")
    assert places.trainers(32, 8) == trainers
    assert places.hosts(32, 8) == hosts


def into_a_node(places: ServerPlaces, node: int) -> float:
    """Return the messages that reach a node of four with eight ranks from the others, by the schedule's transfers."""
    schedule = parameter_server(32, places.hosts(32, 8), places.trainers(32, 8))
    into = [
        each for each in schedule.transfers if each.reduce and each.target // 8 == node and each.source // 8 != node
    ]
    return sum((each.stop - each.start) / schedule.chunks for each in into)


def test_bytes_into_a_server_s_node_by_hand() -> None:
    # Twenty-four ranks train beside one node of servers, whose NICs take all their messages, however many serve there.
    assert into_a_node(ServerPlaces(nodes=1), 3) == into_a_node(ServerPlaces(nodes=1, each=8), 3) == 24
    # A quarter of each message goes to each node's servers, from the twenty-four ranks of the others.
    for node in range(4):
        assert into_a_node(ServerPlaces(beside=1), node) == into_a_node(ServerPlaces(beside=4), node) == 24 / 4


@pytest.mark.parametrize("scheme", ["parameter-server:beside=1", "parameter-server:beside=1,async"])
def test_servers_beside_trainers_take_the_closed_form(scheme: str) -> None:
    source, placement, costs, ranks = workload(gradients=1, size=4_000_000), flat(3), Costs.of("gloo", None), 3
    alpha, beta, launch_s = byte_s(placement)
    size = source.gradient_bytes
    # Each rank sends two thirds of its gradient, and a server takes a third of the two others'.
    exchange_s = 2 * (alpha + launch_s / (2 * (ranks - 1)) + (ranks - 1) / ranks * size * beta) + 0.01 / ranks
    own_s = costs.forward_s + costs.hook_s + costs.copies_s(1, size) + costs.launch_s + costs.finish_s
    trace = simulate(source, placement, Options(backend="gloo", caps=ONE, scheme=scheme))
    assert summarise(trace).iteration_s == pytest.approx(0.03 + 0.08 + exchange_s + own_s, rel=1e-2)
    assert trace.ranks == ([0, 1, 2] if "async" in scheme else [0])


def test_one_server_a_node_of_one_rank_is_the_last_ranks() -> None:
    source, placement = workload(gradients=1), flat(4)
    steps = [
        summarise(simulate(source, placement, Options(backend="gloo", scheme=f"parameter-server:{given}"))).iteration_s
        for given in ("servers=2", "nodes=2", "nodes=2,each=1")
    ]
    assert steps[1:] == steps[:1] * 2


def test_beside_trainers_a_server_takes_what_a_node_of_its_own_cannot() -> None:
    source, machine = workload(device="V100", size=8_000_000, gradients=4), load_topology("p3.16xlarge")
    apart, beside = (
        summarise(simulate(source, machine.place(4), Options(scheme=f"parameter-server:{given}"))).exposed_comm_s
        for given in ("nodes=1,each=8", "beside=8")
    )
    assert beside < apart / 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("nodes=2", "2 of 2 nodes are servers', which leaves them without clients; give nodes=1 at most"),
        ("nodes=1,each=9", "9 servers on a node of 8 ranks; give each=8 at most"),
        ("beside=9", "scheme 'parameter-server': 9 servers on a node of 8 ranks; give beside=8 at most"),
        ("servers=16", "without clients; give servers=15 at most"),
        ("each=2", "`each` says nothing without `nodes`"),
        ("servers=2,nodes=1", "scheme 'parameter-server': `servers` and `nodes` are both given"),
        ("nodes=1,beside=1", "`nodes` and `beside` are both given"),
    ],
)
def test_places_that_cannot_be_are_refused(given: str, says: str) -> None:
    placement = load_topology("p3.16xlarge").place(2)
    with pytest.raises((PlanError, InputError)) as refused:
        simulate(workload(device="V100"), placement, Options(scheme=f"parameter-server:{given}"))
    assert says in str(refused.value)


def test_a_straggler_s_gradients_are_stale_by_what_the_others_do_meanwhile() -> None:
    """Two ranks train, one at a third of the pace: the other updates three times between its pull and its push."""
    options = Options(backend="gloo", caps=ONE, scheme="parameter-server:async", stragglers={1: 3.0}, iterations=30)
    servers = simulate(workload(gradients=1, size=4_000), flat(3), options).provenance["servers"]
    steps = 30 + 3 + 1
    # What a rank pushes comes after all that the other has pushed since; behind the faster one's end nothing comes.
    assert servers["staleness_most"] in (3, 4)
    assert servers["gradients"] == pytest.approx(2 * (steps - 1), abs=2)
    expected = (steps + steps / 3) / servers["gradients"]
    assert servers["staleness_mean"] == pytest.approx(expected, rel=0.15)
