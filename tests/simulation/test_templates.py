"""Node templates whose GPUs keep a pace of their own."""

from dataclasses import replace

import pytest

from ddpsim.errors import InputError
from ddpsim.simulation import Options, simulate
from ddpsim.topology.spec import parse_topology
from tests.simulation.builders import workload

OPTIONS = Options(backend="gloo")

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
    trace = simulate(source, placement, OPTIONS, workloads={"slower": slower}, every_rank=True)
    found = {record.rank: record.forward_s for record in trace.iterations}
    assert found[1] - found[0] == pytest.approx(0.06)


def test_a_template_may_not_train_another_model():
    placement = parse_topology(MIXED, "mixed").place(2, 1)
    with pytest.raises(InputError, match="'other' has other parameters") as error:
        simulate(workload(), placement, OPTIONS, workloads={"slower": replace(workload(gradients=3), name="other")})
    assert "node template 'old'" in str(error.value)
