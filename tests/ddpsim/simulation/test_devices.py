"""Ranks of several devices: closed forms, what each device sends, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.copies import copies_of
from ddpsim.collectives.execute import make_transport
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.operation import Operation
from ddpsim.prediction.memory import Memory
from ddpsim.simulation.communication import Assumptions, Communication
from ddpsim.simulation.engine import run_job, simulate, simulate_local
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.placement import place
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace, write_trace
from ddpsim.trace.metrics import summarise
from ddpsim.workload.devices import DevicePart
from tests.ddpsim.simulation.builders import ALIKE, workload

SENT = 120_000_000
MACHINE = load_topology("dgx-a100")


def on_devices(count=2, sent=SENT, **given):
    """A step of 8 gradients whose first parameters are on the first device, and so on."""
    source = replace(workload(device="A100", **given), forward_use_s=None)
    forward_host, forward = (float(source.forward.host_s[0]), float(source.forward.device_s[0]))
    each = 8 // count
    names = [f"cuda:{number}" for number in range(count)]
    parameters = tuple(replace(p, device=names[index // each]) for index, p in enumerate(source.parameters))
    parts = [
        DevicePart(name, forward_host * (n + 1) / count, forward * (n + 1) / count, sent if n + 1 < count else 0)
        for n, name in enumerate(names)
    ]
    return replace(source, parameters=parameters, devices=tuple(parts))


def nvlink_s(size=SENT):
    """What a copy between two GPUs of a DGX A100 takes: 12 links into its switches, all of a GPU's."""
    demand, capacities = copies_of(place(MACHINE, 1, 2, 2), (0,), size, (0, 1))
    return demand.latency_s + size / min(capacities[link] / load for link, load in demand.loads.items())


def test_a_copy_goes_over_the_nvlink_between_two_gpus_of_a_rank():
    demand, _ = copies_of(place(MACHINE, 1, 4, 2), (0, 1), SENT, (0, 1))
    ends = {end for rank in (0, 1) for end in (f"gpu{2 * rank}>", f">gpu{2 * rank + 1}")}
    assert len(demand.loads) == 4
    assert all(any(end in str(link) for link in demand.loads) for end in ends)
    assert set(demand.loads.values()) == {1.0}
    assert demand.weight == 2


@pytest.mark.parametrize("count", [2, 4])
def test_without_messages_a_step_is_the_sum_of_its_parts_and_of_its_copies(count):
    source, whole = on_devices(count), workload(device="A100")
    placement = place(MACHINE, 1, count, count)
    assert placement.world_size == 1
    found = simulate_local(source, Options(), placement=placement)[-1].iteration_s
    alone = simulate_local(whole, Options())[-1].iteration_s
    # Devices update their own parameters at once, each its share.
    optimizer = 0.01 * (1 - 1 / count)
    assert found == pytest.approx(alone - optimizer + 2 * (count - 1) * nvlink_s(), rel=1e-9)


def test_one_process_without_a_machine_copies_through_slots_of_its_gpus():
    found = simulate_local(on_devices(), Options())[-1].iteration_s
    assert found == pytest.approx(0.03 + 0.08 + 0.005 + 2 * SENT / 24e9, rel=0.1)


def test_ranks_that_send_nothing_take_what_one_alone_does():
    source, options = on_devices(gradients=8), Options(comm="noop", gradient_as_bucket_view=True)
    placement = place(MACHINE, 1, 8, 2)
    assert placement.world_size == 4
    own = simulate(source, placement, options, ALIKE)
    local = simulate_local(source, options, placement=placement)[-1].iteration_s
    assert summarise(own).iteration_s == pytest.approx(local, rel=0.01)


def test_buckets_are_of_one_device_each_and_are_summed_among_its_gpus_of_all_ranks():
    source, options = on_devices(), Options(caps=BucketCaps(bucket_cap_mb=2.0))
    trace = simulate(source, place(MACHINE, 2, 8, 2), options, ALIKE)
    assert trace.world_size == 8
    last = trace.iterations[-1]
    for bucket in last.buckets:
        assert {index // 4 for index in bucket.parameters} == {bucket.device}
    # torch puts buckets that are not full last, in whichever order its map has them: the second device's is late.
    assert [bucket.device for bucket in last.buckets] == [1, 0, 0, 1]
    streams = {span.stream for span in trace.spans}
    assert {"compute", "compute 1", "communication 0", "communication 1"} <= streams


def test_whichever_rank_is_busy_slows_what_each_device_of_all_ranks_sends(monkeypatch):
    asked, own = [], Communication.on_busy
    monkeypatch.setattr(Communication, "on_busy", lambda shared, lanes=None: asked.append(lanes) or own(shared, lanes))
    run_job(on_devices(), place(MACHINE, 2, 8, 2), Options(stragglers={1: 1.3}), Assumptions(ALIKE))
    assert asked == [(0,), (1,)]


def test_a_lone_bucket_of_each_device_takes_an_allreduce_among_every_second_gpu():
    source = on_devices(size=4_000_000)
    placement = place(MACHINE, 2, 8, 2)
    trace = simulate(source, placement, Options(caps=BucketCaps(bucket_cap_mb=0)), ALIKE)
    assert placement.gpus(placement.classes[0]) == ("gpu0", "gpu2", "gpu4", "gpu6")
    assert placement.of_device(1).gpus(placement.classes[0]) == ("gpu1", "gpu3", "gpu5", "gpu7")
    for device in (0, 1):
        took = next(b for b in trace.iterations[-1].buckets if b.device == device)
        transport = make_transport(placement.of_device(device), "nccl", ALIKE)
        assert took.finished_s - took.wire_s == pytest.approx(
            transport.time_s(Operation.ALLREDUCE, took.size_bytes), rel=0.02
        )


def test_bytes_between_nodes_are_those_of_a_ring_of_each_devices_ranks():
    """By hand: of 8 ranks on two nodes each sends 2 x 7/8 of a message, of which one a node goes to the other node."""
    placement = place(MACHINE, 2, 8, 2)
    for device in (0, 1):
        transport = make_transport(placement.of_device(device), "nccl", None, CollectiveOptions(algorithm="ring"))
        demand = transport.demand(Operation.ALLREDUCE, 64 << 20)
        out = sum(load for link, load in demand.loads.items() if str(link).startswith("node0") and ">net" in str(link))
        assert out * transport.calibration["nccl.efficiency.net.simple"] == pytest.approx(2 * 7 / 8, rel=0.01)


def test_devices_compute_in_turn_and_hand_over_by_copies():
    trace = simulate(on_devices(), place(MACHINE, 1, 8, 2), Options(), ALIKE)
    parts = trace.iterations[-1].parts
    told = [(part.device, part.name) for part in parts]
    assert told == [
        (0, "forward"), (0, "Memcpy PtoP"), (1, "forward"), (1, "backward"), (1, "Memcpy PtoP"), (0, "backward"),
        (0, "optimizer"), (1, "optimizer"),
    ]  # fmt: skip
    for before, after in pairwise(parts[:6]):
        assert after.started_s >= before.finished_s - 1e-12
    copies = [part.finished_s - part.started_s for part in parts if part.name == "Memcpy PtoP"]
    assert copies == pytest.approx([nvlink_s()] * 2, rel=1e-6)


def test_a_trace_keeps_what_each_device_did(tmp_path):
    trace = simulate(on_devices(), place(MACHINE, 1, 8, 2), Options(), ALIKE)
    write_trace(trace, tmp_path)
    again = read_trace(tmp_path)
    assert [it.parts for it in again.iterations] == [it.parts for it in trace.iterations]
    assert [b.device for b in again.iterations[-1].buckets] == [b.device for b in trace.iterations[-1].buckets]


def test_memory_is_of_the_device_that_needs_most():
    source, asked = on_devices(), Options()
    source = replace(source, activations_bytes=900_000_000)
    plan = asked.bucket_plan(source)
    first, second = (Memory.of(source, plan, asked, None, device=device) for device in (0, 1))
    whole = Memory.of(replace(source, devices=()), plan, asked, None)
    assert first.parameters_bytes == second.parameters_bytes == whole.parameters_bytes / 2
    assert first.buckets_bytes + second.buckets_bytes == whole.buckets_bytes
    assert first.activations_bytes == 450_000_000


def test_one_node_of_an_nvlink_domain_has_such_ranks_and_several_do_not():
    rack = load_topology("gb200-nvl72")
    assert place(rack, 1, 4, 2).world_size == 2
    with pytest.raises(TopologyError, match="2 nodes of gb200-nvl72 are an NVLink domain"):
        place(rack, 2, 4, 2)


def test_the_parts_of_an_iteration_sum_to_it_and_the_first_devices_waits_are_exposed():
    source = on_devices(size=60_000_000)
    summary = summarise(simulate(source, place(MACHINE, 4, 8, 2), Options(), ALIKE))
    names = ("forward_s", "backward_compute_s", "exposed_comm_s", "buffer_broadcast_s", "ddp_overhead_s", "optimizer_s")
    assert sum(getattr(summary, name) for name in names) == pytest.approx(summary.iteration_s)
    assert summary.exposed_comm_s > 0.05 * summary.iteration_s
    assert summary.ddp_overhead_s >= 0
    # What is computed stays what it is, with the copies.
    computed = summary.forward_s + summary.backward_compute_s
    assert computed == pytest.approx(0.11 + 2 * nvlink_s(), rel=0.03)


@pytest.mark.parametrize("fidelity", ["flow", "closed"])
def test_all_fidelities_that_tell_of_flows_agree_where_nothing_is_shared(fidelity):
    source = on_devices(size=1_000_000)
    found = summarise(simulate(source, place(MACHINE, 1, 8, 2), Options(fidelity=fidelity), ALIKE)).iteration_s
    assert found == pytest.approx(
        summarise(simulate(source, place(MACHINE, 1, 8, 2), Options(), ALIKE)).iteration_s, rel=0.01
    )


def test_buffers_are_broadcast_on_the_device_that_they_are_on():
    source = on_devices(buffers=4)
    source = replace(source, buffers=tuple(replace(b, device=f"cuda:{n % 2}") for n, b in enumerate(source.buffers)))
    ran = run_job(source, place(MACHINE, 1, 8, 2), Options(), Assumptions(ALIKE))
    sent = [(each.lane, each.size_bytes) for each in ran.graph.collectives.values() if each.operation == "buffers"]
    assert set(sent) == {(0, 2 * 64 * 4), (1, 2 * 64 * 4)}


REFUSED = {
    "scheme=zero1": {"scheme": "zero1"},
    "process_groups=2": {"process_groups": 2},
    "find_unused_parameters": {"find_unused_parameters": True},
    "compiled": {"compiled": True},
}


@pytest.mark.parametrize("place_named", REFUSED)
def test_what_is_not_simulated_on_several_devices_is_refused_by_name(place_named):
    with pytest.raises(InputError, match="has 2 devices a rank, with which it is not simulated") as error:
        simulate(on_devices(), place(MACHINE, 1, 8, 2), Options(**REFUSED[place_named]))
    assert error.value.place == place_named


def test_a_machine_of_cpus_or_gloo_is_refused():
    with pytest.raises(InputError, match="GPUs: NCCL or RCCL sums their gradients"):
        simulate(on_devices(), place(MACHINE, 1, 8, 2), Options(backend="gloo"))


def test_gpus_that_do_not_divide_into_ranks_and_ranks_of_another_number_of_gpus_are_refused():
    with pytest.raises(TopologyError, match="ranks of 2 GPUs on nodes of 3"):
        place(MACHINE, 1, 3, 2)
    with pytest.raises(InputError, match="is of 2 devices a rank, ranks are placed on 1"):
        simulate(on_devices(), place(MACHINE, 1, 8), Options())


def test_a_rank_of_one_device_is_what_it_was():
    source = workload(device="A100")
    assert place(MACHINE, 2, 8, 1) == place(MACHINE, 2, 8)
    assert [it.parts for it in simulate(source, place(MACHINE, 2, 8), Options()).iterations] == [()] * 2
