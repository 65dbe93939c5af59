"""Node templates whose GPUs keep a pace of their own."""

from dataclasses import replace

import pytest

from ddpsim.common.errors import InputError
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import resolve
from ddpsim.topology.spec import parse_topology
from tests.ddpsim.simulation.builders import every_rank, workload

OPTIONS = Options(backend="gloo")
NOOP = replace(OPTIONS, comm="noop")

MIXED = """
name: mixed
nodes: {new: 1, old: 1}
templates:
  new: {processes: {count: 1, rate: 10gbit, total: 20gbit}, nics: [{count: 1, rate: 10gbit}]}
  old: {processes: {count: 2, rate: 10gbit, total: 20gbit}, nics: [{count: 1, rate: 10gbit}], workload: slower}
fabric: {kind: flat}
"""


def test_each_rank_keeps_the_pace_of_its_own_template():
    placement = parse_topology(MIXED, "mixed").place(2, 1)
    source, slower = workload(), workload(forward=0.09)
    trace = every_rank({None: source, "slower": slower}, placement, OPTIONS)
    found = {record.rank: record.forward_s for record in trace.iterations}
    assert found[1] - found[0] == pytest.approx(0.06)


def test_each_rank_copies_at_its_own_devices_rate_and_draws_from_its_own_record():
    placement = parse_topology(MIXED, "mixed").place(2, 1)
    source, slower = workload(device="V100"), workload(device="H100", iterations=5)
    trace = every_rank({None: source, "slower": slower}, placement, NOOP)
    for rank, device in enumerate(("V100", "H100")):
        copies = Costs.of("gloo", None, device).copies_s(8, source.gradient_bytes)
        records = trace.of_rank(rank)
        assert len(records) == OPTIONS.iterations_of(slower) == 20
        assert records[-1].ddp_overhead_s == pytest.approx(2 * copies, rel=1e-3)


def test_a_rank_waits_for_its_device_where_its_own_workload_does():
    placement = parse_topology(MIXED, "mixed").place(2, 1)
    source = workload(device="V100", host_share=1.0)
    waiting = replace(source, synchronises=("after_optimizer",))
    trace = every_rank({None: source, "slower": waiting}, placement, NOOP)
    ahead, behind = (trace.of_rank(rank)[-1].iteration_s for rank in (0, 1))
    assert behind > ahead + 20e-6


@pytest.mark.parametrize(("other", "what"), [(workload(gradients=3), "parameters"), (workload(buffers=1), "buffers")])
def test_a_template_may_not_train_another_model(other, what):
    placement = parse_topology(MIXED, "mixed").place(2, 1)
    with pytest.raises(InputError, match=f"'other' has other {what}") as error:
        resolve({None: workload(), "slower": replace(other, name="other")}, placement, OPTIONS)
    assert "node template 'old'" in str(error.value)
