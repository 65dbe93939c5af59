"""gloo's collectives, held against single figures measured on the lab's networks and on loopback.

`microbench`, here MB, measures each anew, on the network that the test names:

    python -m ddpexec netlab --ranks 4 --rate 1gbit --delay 5ms -- python -m ddpexec MB -b 64K -e 64K -o table.json
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from pathlib import Path

import pytest
import simpy

from ddpsim import Calibration, calibrate, load_topology, read_table
from ddpsim.collectives.gloo.transport import adapt_to_group
from ddpsim.collectives.network.fluid import Speed
from ddpsim.collectives.schedules import ring_s
from ddpsim.common.errors import CalibrationError, InputError, UnknownNameError
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.topology.graph import Placement, Topology
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.shaped import shaped


def allreduce_s(placement: Placement, size_bytes: int, fidelity: str = "flow", **options: bool) -> float:
    return group_on(placement, "gloo", fidelity=fidelity, **options).simulate_s(size_bytes)


def test_figures_measured_on_shaped_links_and_on_loopback() -> None:
    """`netlab --ranks 4 --rate 1gbit -- MB -b 25M -e 25M`; `torchrun --nproc-per-node 2 -m ddpexec MB -b 4K -e 25M`."""
    assert allreduce_s(shaped(4), 25 * MIB) == pytest.approx(0.3309, rel=0.01)
    loopback = load_topology("loopback").place(1, 2)
    assert allreduce_s(loopback, 4096) == pytest.approx(0.25e-3, rel=0.1)
    assert 25 * MIB / allreduce_s(loopback, 25 * MIB) == pytest.approx(1.5e9, rel=0.02)


def test_a_small_message_waits_for_a_round_trip_a_step() -> None:
    """`netlab --ranks 4 --rate 1gbit --delay 5ms -- MB -b 64K -e 64K` gave 68 ms.

    Two ports of 2.5 ms each: 10 ms a round trip, six steps on four ranks.
    """
    assert allreduce_s(shaped(4, "2.5ms"), 65536) == pytest.approx(0.068, rel=0.05)


@pytest.mark.parametrize(
    ("size_bytes", "delay", "measured_s"),
    [(MIB, "2.5ms", 0.0392), (4 * MIB, "2.5ms", 0.0929), (64 * MIB, "2.5ms", 1.5225), (64 * MIB, "0.5ms", 1.2244)],
)
def test_every_segment_waits_for_its_handshake(size_bytes: int, delay: str, measured_s: float) -> None:
    """`netlab --ranks 2 --rate 500mbit --delay 5ms -- MB -b 1M -e 64M -f 4`, and with 1 ms; torch 2.13, user space."""
    assert allreduce_s(shaped(2, delay, "500mbit"), size_bytes) == pytest.approx(measured_s, rel=0.05)


@pytest.mark.parametrize("size_bytes", [65_536, 25 * MIB])
def test_busy_threads_slow_small_messages_the_same_at_either_fidelity(size_bytes: int) -> None:
    times = []
    for fidelity in ("flow", "steps"):
        collectives = group_on(load_topology("loopback").place(1, 4), "gloo", fidelity=fidelity)
        quiet_s = collectives.simulate_s(size_bytes)
        collectives.network.set_speed(Speed(host=1 / 8))
        times.append((quiet_s, collectives.simulate_s(size_bytes)))
    (flow_s, flow_busy_s), (_, steps_busy_s) = times
    assert steps_busy_s == pytest.approx(flow_busy_s, rel=0.01)
    assert flow_busy_s > 4 * flow_s or size_bytes > MIB


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("size_bytes", [4096, 262_144, 3 * MIB, 25 * MIB])
@pytest.mark.parametrize("machine", ["loopback", "p3.8xlarge", "shaped"])
def test_flow_equals_steps_where_nothing_contends(machine: str, ranks: int, size_bytes: int) -> None:
    placement = {
        "loopback": lambda: load_topology("loopback").place(1, ranks),
        "p3.8xlarge": lambda: load_topology("p3.8xlarge").place(ranks, 2),
        "shaped": lambda: shaped(ranks, "0.1ms"),
    }[machine]()
    flow = allreduce_s(placement, size_bytes)
    assert flow == pytest.approx(allreduce_s(placement, size_bytes, "steps"), rel=0.01)
    assert flow == pytest.approx(allreduce_s(placement, size_bytes, "steps", expand=True), rel=0.01)
    assert flow == pytest.approx(allreduce_s(placement, size_bytes, "closed"), rel=1e-9)


@pytest.mark.parametrize("fidelity", ["flow", "steps", "closed"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_on_a_fast_network_sums_on_the_processor_set_the_rate(ranks: int, fidelity: str) -> None:
    size_bytes = 512 * MIB
    slow_sums = 4e9
    start = group_on(shaped(ranks), "gloo").calibration
    constants = start.with_values({"gloo.reduce.bandwidth": slow_sums}, source="test")
    placement = shaped(ranks, rate="800gbit")
    took_s = group_on(placement, "gloo", calibration=constants, fidelity=fidelity).simulate_s(size_bytes)
    summed_s = (ranks - 1) / ranks * size_bytes / slow_sums
    assert took_s == pytest.approx(summed_s + start["gloo.launch_s"], rel=0.01)


@pytest.mark.parametrize(("sm", "passes"), [("V100", 2), (None, 0)])
def test_tensors_of_a_gpu_are_staged_in_host_memory_both_ways(sm: str | None, passes: int) -> None:
    machine = load_topology("p3.8xlarge" if sm else "loopback").place(1, 2)
    one = group_on(machine, "gloo")
    grow_s = one.transport.allreduce(64 * MIB).latency_s - one.transport.allreduce(MIB).latency_s
    staged = one.calibration["gloo.staging.efficiency"] * 12e9
    assert grow_s == pytest.approx(passes * 63 * MIB / staged, abs=1e-12)


@pytest.mark.parametrize(("size_bytes", "segments"), [(4096, 8), (8 * MIB, 8), (8 * MIB + 1, 12), (100 * MIB, 100)])
def test_segments_are_at_most_a_mebibyte_and_at_least_two_a_rank(size_bytes: int, segments: int) -> None:
    transport = group_on(shaped(4), "gloo").transport
    lane = transport.steps(Operation.ALLREDUCE, size_bytes).lanes[0]
    assert size_bytes / lane.chunk_bytes == pytest.approx(segments)


@pytest.mark.parametrize("fidelity", ["flow", "steps", "closed"])
def test_a_large_ring_equals_the_closed_form(fidelity: str) -> None:
    placement = shaped(4)
    efficiency = group_on(placement, "gloo").calibration["gloo.efficiency.network"]
    size_bytes = 256 * MIB
    expected = ring_s(4, size_bytes, 0.0, 1 / (1.25e8 * efficiency))
    assert allreduce_s(placement, size_bytes, fidelity) == pytest.approx(expected, rel=0.005)


def test_two_small_collectives_in_flight_take_the_time_of_one() -> None:
    collectives = group_on(shaped(4, "2.5ms"), "gloo")
    alone = collectives.estimate_s(65536)
    for event in [collectives.allreduce(65536) for _ in range(2)]:
        collectives.env.run(event)
    assert collectives.env.now == pytest.approx(alone, rel=0.05)


@functools.cache
def recorded(network: str) -> tuple[Topology, Calibration]:
    """Return a shaped network, and the constants fitted to the allreduces measured on it."""
    folder = Path(__file__).parent / "recorded" / network
    topology = load_topology(str(folder / "topology.yaml"))
    return topology, calibrate([read_table(folder / "allreduce.json")], topology, backend="gloo").calibration


@pytest.mark.parametrize(
    ("network", "sizes_mib", "measured_s"),
    [
        ("pair-1ms", [8, 8], 0.1466),
        ("pair-1ms", [16, 32], 0.4494),
        ("pair-5ms", [16, 16], 0.5754),
        ("pair-5ms", [4, 4, 4, 4], 0.3285),
        ("quad-1ms", [8, 8], 0.3639),
        ("quad-1ms", [4, 4, 4, 4], 0.3676),
    ],
)
def test_two_in_flight_hide_each_others_handshakes(network: str, sizes_mib: list[int], measured_s: float) -> None:
    """`netlab --topology recorded/pair-1ms/topology.yaml -- MB --together 8M,8M`; constants are of other runs."""
    topology, constants = recorded(network)
    collectives = group_on(topology.place(), "gloo", calibration=constants)
    env, left, ends = collectives.env, list(sizes_mib), list[float]()

    def stream() -> Generator[simpy.Event]:
        while left:
            yield collectives.allreduce(left.pop(0) * MIB)
            ends.append(env.now)

    env.run(env.all_of([env.process(stream()), env.process(stream())]))
    assert max(ends) == pytest.approx(measured_s, rel=0.045)


def test_groups_have_connections_of_their_own() -> None:
    def both_s(*groups: int) -> float:
        collectives = group_on(shaped(2, "2.5ms"), "gloo")
        env = collectives.env
        first = collectives.allreduce(65536, groups[0])
        env.run(env.timeout(1e-3))
        env.run(first & collectives.allreduce(4 * MIB, groups[1]))
        return float(env.now)

    assert both_s(0, 1) < both_s(0, 0) == both_s(1, 1)


def test_one_rank_takes_a_launch_and_no_link() -> None:
    collectives = group_on(load_topology("loopback").place(1, 1), "gloo")
    assert collectives.simulate_s(MIB) == collectives.calibration["gloo.launch_s"]
    assert collectives.network.capacities == {}


def test_bad_choices_are_named() -> None:
    placement = load_topology("loopback").place(1, 2)
    with pytest.raises(UnknownNameError, match="unknown fidelity 'step'"):
        group_on(placement, "gloo", fidelity="step")
    with pytest.raises(UnknownNameError, match="unknown backend 'glo'"):
        group_on(placement, "glo")
    with pytest.raises(InputError, match="gloo has no algorithm 'tree'"):
        group_on(placement, "gloo", algorithm="tree")
    gloo = group_on(placement, "gloo").calibration
    with pytest.raises(CalibrationError, match="calibration is of gloo"):
        group_on(placement, calibration=gloo)


def test_a_fitted_launch_is_shared_by_steps_in_groups_of_fewer_ranks() -> None:
    prior = Calibration.priors("gloo")
    fitted = prior.with_values({"gloo.launch_s": 9e-3}, source="fitted to a table")
    assert adapt_to_group(fitted, 4, 2)["gloo.launch_s"] == pytest.approx(9e-3 * 2 / 6)
    assert adapt_to_group(fitted, 4, 4) is fitted
    assert adapt_to_group(prior, 4, 2) is prior
    # No less than the call itself.
    small = prior.with_values({"gloo.launch_s": 2e-4}, source="fitted to a table")
    assert adapt_to_group(small, 4, 2)["gloo.launch_s"] == prior["gloo.launch_s"]
