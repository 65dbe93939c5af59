from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives.network.fairness import share_rates
from ddpsim.collectives.network.fluid import Demand, Network, Speed, max_min_rates
from ddpsim.common.errors import TopologyError
from tests.profile import examples

LINKS = ("a", "b", "c", "d")


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, float], list[Demand]]:
    capacities = {link: float(draw(st.integers(1, 40))) for link in LINKS}
    demands = [
        Demand(
            latency_s=draw(st.integers(0, 8)) / 4,
            size_bytes=float(draw(st.integers(1, 100))),
            loads=draw(st.dictionaries(st.sampled_from(LINKS), st.integers(1, 4).map(float), min_size=1)),
            rate_limit=draw(st.one_of(st.just(math.inf), st.integers(1, 30).map(float))),
            weight=float(draw(st.integers(1, 3))),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]
    return capacities, demands


def exact_rates(capacities: dict[str, float], demands: list[Demand]) -> list[Fraction]:
    """Solve by fixing the scarcest link first, in rationals; a rate limit is a link of its own."""
    shares = [Fraction(d.weight) / Fraction(d.peak_load) for d in demands]
    links = {link: Fraction(capacity) for link, capacity in capacities.items()}
    use = {link: {i: Fraction(d.loads[link]) for i, d in enumerate(demands) if link in d.loads} for link in capacities}
    for i, demand in enumerate(demands):
        if math.isfinite(demand.rate_limit):
            links[f"limit {i}"], use[f"limit {i}"] = Fraction(demand.rate_limit), {i: Fraction(1)}
    fixed: dict[int, Fraction] = {}
    while len(fixed) < len(demands):
        level = {}
        for link, users in use.items():
            free = {i: load for i, load in users.items() if i not in fixed}
            if free:
                taken = sum((fixed[i] * load for i, load in users.items() if i in fixed), Fraction(0))
                level[link] = (links[link] - taken) / sum(shares[i] * load for i, load in free.items())
        scarcest = min(level, key=lambda link: (level[link], link))
        for i in use[scarcest]:
            fixed.setdefault(i, shares[i] * level[scarcest])
    return [fixed[i] for i in range(len(demands))]


@given(problems())
@settings(max_examples=examples(120), deadline=None)
def test_rates_equal_an_exact_solver(problem: tuple[dict[str, float], list[Demand]]) -> None:
    capacities, demands = problem
    expected = exact_rates(capacities, demands)
    assert max_min_rates(demands, capacities) == pytest.approx([float(rate) for rate in expected], rel=1e-9)


@given(problems())
@settings(max_examples=examples(60), deadline=None)
def test_the_network_moves_every_byte_no_faster_than_its_links(
    problem: tuple[dict[str, float], list[Demand]],
) -> None:
    capacities, demands = problem
    ends = run(capacities, demands)
    for demand, end in zip(demands, ends, strict=True):
        alone = min(demand.alone_rate(capacities), demand.rate_limit)
        assert end >= (demand.latency_s + demand.size_bytes / alone) * (1 - 1e-9)
    for link, capacity in capacities.items():
        users = [(d, end) for d, end in zip(demands, ends, strict=True) if link in d.loads]
        if users:
            carried = sum(d.size_bytes * d.loads[link] for d, _ in users)
            span = max(end for _, end in users) - min(d.latency_s for d, _ in users)
            assert carried <= capacity * span * (1 + 1e-9)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
@settings(max_examples=examples(40), deadline=None)
def test_a_shared_link_conserves_work(sizes: list[int]) -> None:
    ends = run({"a": 4.0}, [Demand(0.0, float(size), {"a": 1.0}) for size in sizes])
    assert max(ends) == pytest.approx(sum(sizes) / 4.0)
    # Processor sharing: by the time the smallest is out, each has moved as much as it.
    assert min(ends) == pytest.approx(min(sizes) * len(sizes) / 4.0)


def run(capacities: dict[str, float], demands: list[Demand]) -> list[float]:
    env = simpy.Environment()
    network = Network(env, capacities)
    ends = [math.nan] * len(demands)

    def send(index: int, demand: Demand) -> simpy.events.ProcessGenerator:
        yield network.transfer(demand)
        ends[index] = env.now

    for index, demand in enumerate(demands):
        env.process(send(index, demand))
    env.run()
    assert network.in_flight == 0
    return ends


def test_a_late_message_slows_the_first_and_gives_the_link_back() -> None:
    # 10 bytes alone at 1 B/s; from t=4 the second shares, 2 bytes each take 4 s; the first has 4 left at t=8.
    first, second = run({"a": 1.0}, [Demand(0.0, 10.0, {"a": 1.0}), Demand(4.0, 2.0, {"a": 1.0})])
    assert (first, second) == pytest.approx((12.0, 8.0))


def test_a_message_alone_takes_latency_and_the_slowest_of_links_and_limit() -> None:
    capacities = {"a": 10.0, "b": 3.0}
    assert run(capacities, [Demand(0.5, 6.0, {"a": 2.0, "b": 1.0})]) == pytest.approx([2.5])
    assert run(capacities, [Demand(0.5, 6.0, {"a": 2.0, "b": 1.0}, rate_limit=2.0)]) == pytest.approx([3.5])
    assert run({}, [Demand(0.5, 6.0, {}, rate_limit=2.0)]) == pytest.approx([3.5])
    assert run({}, [Demand(0.5, 0.0, {})]) == pytest.approx([0.5])


def test_bad_capacities_and_links_are_named() -> None:
    env = simpy.Environment()
    with pytest.raises(TopologyError, match=r"link 'a' has capacity -1\.0"):
        Network(env, {"a": -1.0})
    with pytest.raises(TopologyError, match="no link 'b'"):
        Network(env, {"a": 1.0}).transfer(Demand(0.0, 1.0, {"b": 1.0}))


def test_a_slower_speed_stretches_what_is_left() -> None:
    env = simpy.Environment()
    network = Network(env, {"a": 2.0})
    first, second = network.transfer(Demand(0.0, 10.0, {"a": 1.0})), network.transfer(Demand(0.0, 10.0, {"a": 1.0}))

    def change() -> simpy.events.ProcessGenerator:
        yield env.timeout(4.0)
        network.set_speed(Speed(0.5))
        yield env.timeout(4.0)
        network.set_speed(Speed(1.0))

    env.process(change())
    env.run(first & second)
    assert env.now == pytest.approx(12.0)  # 8 of 20 bytes by t=4, 4 more by t=8, 8 more by t=12


def test_a_busy_sender_slows_its_own_messages_and_no_others() -> None:
    env = simpy.Environment()
    network = Network(env, {"a": 1.0, "b": 1.0, "c": 1.0})
    network.set_speed(Speed(0.5), "busy")
    senders = {"a": "quiet", "b": "busy", "c": None}
    quiet, slow, of_all = (network.transfer(Demand(0.0, 4.0, {link: 1.0}), by) for link, by in senders.items())
    env.run(quiet & of_all)
    assert env.now == pytest.approx(4.0)
    network.set_speed(Speed(), "busy")
    env.run(slow)
    assert env.now == pytest.approx(6.0)


def test_one_that_stalls_meets_others_for_the_time_they_are_there() -> None:
    # 1 s on the link a byte, 1 s beside it: each is there half of its time, so a byte takes 1 + 1 * (1 + 1/2).
    half = Demand(0.0, 4.0, {"a": 1.0}, stall_s=4.0)
    assert share_rates([half, half], {"a": 1.0}, [0.0, 0.3]) == pytest.approx([0.4, 0.4])
    # In step they meet at every byte; beside one that never stalls the link is always taken.
    assert share_rates([half, half], {"a": 1.0}, [0.0, 0.0]) == pytest.approx([1 / 3, 1 / 3])
    always = Demand(0.0, 4.0, {"a": 1.0})
    assert share_rates([half, always], {"a": 1.0})[0] == pytest.approx(1 / 3)
    # Those of one queue meet at every byte too; one with a queue of its own passes while they stall.
    first = replace(half, queue="a connection")
    assert share_rates([first, first], {"a": 1.0}, [0.0, 0.3]) == pytest.approx([1 / 3, 1 / 3])
    second = replace(half, queue="another")
    assert share_rates([first, second], {"a": 1.0}, [0.0, 0.3]) == pytest.approx([0.4, 0.4])
    # One tight hop in four, the others with room for all: chunks queue there, and stalls pass behind them.
    queued = Demand(0.0, 4.0, {"a": 1.0}, stall_s=0.4, hops=((0.25, 1.0), (0.75, 8.0)))
    assert share_rates([queued, queued], {"a": 1.0}) == pytest.approx([0.5, 0.5])


@given(problems(), st.lists(st.integers(0, 20).map(float), min_size=6, max_size=6))
@settings(max_examples=examples(60), deadline=None)
def test_stalls_never_put_a_link_over_capacity_nor_speed_one_alone(
    problem: tuple[dict[str, float], list[Demand]], stalls: list[float]
) -> None:
    capacities, demands = problem
    demands = [replace(demand, stall_s=stall_s) for demand, stall_s in zip(demands, stalls, strict=False)]
    rates = share_rates(demands, capacities)
    for link, capacity in capacities.items():
        used = sum(rate * d.loads.get(link, 0.0) for rate, d in zip(rates, demands, strict=True))
        assert used <= capacity * (1 + 1e-9)
    for rate, demand in zip(rates, demands, strict=True):
        assert 0 < rate <= demand.unshared_rate(capacities) * (1 + 1e-9)


def test_a_slower_speed_slows_bytes_and_not_stalls() -> None:
    env = simpy.Environment()
    network = Network(env, {"a": 1.0})
    network.set_speed(Speed(0.5))
    env.run(network.transfer(Demand(0.0, 4.0, {"a": 1.0}, stall_s=4.0)))
    assert env.now == pytest.approx(12.0)


def test_busy_hosts_slow_what_waits_for_their_threads_and_nothing_else() -> None:
    # Threads keep up with 2 B/s, 0.5 B/s when busy: a link of 1 B/s is the limit of a quiet host, not of a busy one.
    env = simpy.Environment()
    network = Network(env, {"a": 1.0, "b": 1.0})
    by_threads = network.transfer(Demand(0.0, 8.0, {"a": 1.0}, host_limit=2.0))
    by_links = network.transfer(Demand(0.0, 8.0, {"b": 1.0}))
    env.run(4.0)
    network.set_speed(Speed(host=0.25))
    env.run(6.0)
    network.set_speed(Speed(host=1.0))
    env.run(by_links)
    assert env.now == pytest.approx(8.0)
    env.run(by_threads)
    assert env.now == pytest.approx(9.0)
