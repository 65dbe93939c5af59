"""Shards that live on the host: what is copied, what waits for it, and where the optimizer steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpsim.bucketing import Parameter
from ddpsim.collectives.copies import byte_copy_s
from ddpsim.common.errors import InputError, PlanError
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import Trace
from ddpsim.workload import Workload
from tests.ddpsim.simulation.builders import ALIKE, period, workload

RANKS, ELEMENTS, BLOCKS = 4, 4_000_000, 6
"""Of a unit 16 MB, of a rank's shard of it 4 MB."""
PLACE = load_topology("dgx-1v").place(1, RANKS)


def blocks(**given: float) -> Workload:
    made = workload(device="V100", gradients=BLOCKS, size=ELEMENTS, **given)
    return replace(made, parameters=tuple(Parameter(f"blocks.{i}.weight", (ELEMENTS,)) for i in range(BLOCKS)))


def schedule(scheme: str, world: int = RANKS, dtype: str = "float32", **given: Any) -> Schedule:
    parameters = [replace(each, dtype=dtype) for each in blocks().parameters]
    buckets = [(index,) for index in range(BLOCKS)]
    return scheme_named(scheme).schedule(
        SchemeInputs(parameters=parameters, buckets=buckets, world_size=world, **given)
    )


def simulated(scheme: str, source: Workload | None = None, **given: Any) -> Trace:
    return simulate(source or blocks(), PLACE, Options(scheme=scheme, **given), ALIKE)


@pytest.mark.parametrize(
    ("scheme", "shard"), [("fsdp2:offload", 4), ("fsdp2:offload,gather=bf16", 4), ("hsdp:2,offload,reduce=bf16", 2)]
)
def test_a_shard_is_copied_before_each_gather_and_its_sum_to_the_host(scheme: str, shard: int) -> None:
    made, plain = schedule(scheme), schedule(scheme.replace("offload,", "").replace(":offload", ""))
    copied = [(each.from_host_bytes, each.to_host_bytes) for each in made]
    own = ELEMENTS * 4 // shard  # in fp32, whatever is sent
    gathers = [each for each in made if each.id.startswith("gather")]
    last = "sum" if "hsdp" in scheme else "scatter"
    assert {each.from_host_bytes for each in gathers} == {own}
    assert {each.to_host_bytes for each in made if each.id.startswith(last)} == {own}
    assert sum(to for _, to in copied) == BLOCKS * own
    assert sum(of for of, _ in copied) == len(gathers) * own
    assert [each.size_bytes for each in made] == [each.size_bytes for each in plain]
    assert not any(each.from_host_bytes or each.to_host_bytes for each in plain)


def test_gpus_copy_at_the_rate_of_their_links_all_at_once() -> None:
    # On a DGX-1V two GPUs share a PCIe switch, each on a slot of its own, and the switch has one slot to the host.
    alone_s = byte_copy_s(load_topology("dgx-1v").place(1, 1))
    slots = {each.link.bandwidth for each in _links_of_first()}
    assert alone_s == pytest.approx(1 / min(slots))
    assert byte_copy_s(PLACE) == pytest.approx(2 * alone_s)


def _links_of_first() -> list[Any]:
    from ddpsim.collectives.routes import PlacementLinks
    from ddpsim.topology.paths import find_paths

    place = load_topology("dgx-1v").place(1, 1)
    node, _, node_class = place.node_of(0)
    paths = find_paths(node_class.template)
    return list(PlacementLinks(place).at(node, paths.from_host(place.gpus(node_class)[0])))


def test_the_optimizer_takes_the_hosts_time_and_waits_for_the_last_copy() -> None:
    host = simulated("fsdp2:offload,host_update=50ms")
    assert summarise(host).optimizer_s == pytest.approx(0.05, rel=0.01)
    # By hand: an element of momentum 0.67 ns, a quarter of them on a rank.
    own = simulated("fsdp2:offload", replace(blocks(), optimizer_kind="momentum"))
    assert summarise(own).optimizer_s == pytest.approx(0.67e-9 * BLOCKS * ELEMENTS / RANKS, rel=0.02)
    assert period(host) > period(own)


def test_copies_that_take_longer_than_the_step_are_all_of_it() -> None:
    copy_s = byte_copy_s(PLACE) * ELEMENTS * 4 / RANKS
    fast = blocks(forward=3e-5, backward=8e-5, optimizer=1e-5)
    gathers = sum(each.id.startswith("gather") for each in schedule("fsdp2:offload"))
    step_s = period(simulated("fsdp2:offload,host_update=1us", fast))
    # One copy after the other from the host; those to the host go beside, but the last one.
    assert step_s > (gathers + 1) * copy_s
    assert step_s > period(simulated("fsdp2", fast)) + 2 * copy_s


def test_on_cpus_nothing_is_copied() -> None:
    source = replace(workload(device="cpu", gradients=BLOCKS, size=ELEMENTS), parameters=blocks().parameters)
    place = load_topology("loopback").place(1, RANKS)
    both = [simulate(source, place, Options(scheme=each)) for each in ("fsdp2", "fsdp2:offload,host_update=9s")]
    assert period(both[0]) == period(both[1])


def test_what_cannot_be_offloaded_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'hsdp:1'.*`offload` of one shard.*take 2 ranks to a copy"):
        schedule("hsdp:1,offload")
    with pytest.raises(PlanError, match="the host would add gradients, of 2 micro-batches a step"):
        schedule("fsdp2:offload", accumulate=2)
    with pytest.raises(InputError, match="`host_update` says nothing without `offload`"):
        scheme_named("fsdp2:host_update=3ms")
