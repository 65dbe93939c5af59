"""What the constructor sends, held to torch's pieces by hand arithmetic and to a sum of single messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import Options, load_topology
from ddpsim.bucketing import Parameter
from ddpsim.common.operation import Operation
from ddpsim.prediction.first import construct, messages_of
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.resolve import resolve
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.simulation.builders import workload

MIB = 1 << 20


def constructed(source, name="loopback", nodes=1, ranks=2, **given):
    placement = load_topology(name).place(nodes, ranks)
    return construct(resolve(source, placement, Options(**given))), placement


def test_state_goes_by_dtype_in_pieces_that_end_with_the_tensor_that_fills_them():
    source = workload(gradients=9, size=40 * MIB, buffers=3)
    halves = (Parameter("half", (4, 8), "bfloat16"), *source.parameters[1:])
    count, shapes, *state = messages_of(replace(source, parameters=halves), 6)
    assert (count.operation, count.size_bytes) == (Operation.ALL_GATHER, 6 * 8)
    # One dimension each of eight, two of one; a size and a stride of each.
    assert (shapes.operation, shapes.size_bytes) == (Operation.BROADCAST, 8 * 2 * 10)
    # Eight of 160 MiB: two reach 250 MiB; the buffers are of the same dtype and end the last piece.
    sizes = {(message.size_bytes, message.tensors) for message in state}
    assert sizes == {(320 * MIB, 2), (3 * 64 * 4, 3), (4 * 8 * 2, 1)}
    assert len(state) == 6
    assert {message.operation for message in state} == {Operation.BROADCAST}


def test_on_a_cpu_one_piece_is_a_sum():
    source = workload(buffers=2)
    found, placement = constructed(source, backend="gloo")
    costs, size = Costs.of("gloo", None), source.gradient_bytes + 2 * 64 * 4
    group = group_on(placement, "gloo")
    check_s = group.estimate_s(2 * 8, Operation.ALL_GATHER) + group.estimate_s(8 * 2 * 8, Operation.BROADCAST)
    copies_s = costs.copies_s(10, size)
    expected = 3 * costs.launch_s + check_s + 2 * copies_s + group.estimate_s(size, Operation.BROADCAST)
    assert found.state_bytes == size
    assert found.seconds == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("device", "share"), [("cpu", 1 / 2), ("V100", 0.9)])
def test_pieces_end_in_their_order_and_the_state_takes_at_least_its_wire(device, share):
    source = workload(device=device, size=40 * MIB)
    found, placement = constructed(source, "p3.16xlarge", 2, 8, backend="gloo" if device == "cpu" else None)
    ends = [message.finished_s for message in found.messages]
    assert ends == sorted(ends)
    assert ends[-1] <= found.seconds
    backend = "gloo" if device == "cpu" else "nccl"
    whole_s = group_on(placement, backend).estimate_s(source.gradient_bytes, Operation.BROADCAST)
    # gloo's two in flight overlap, where NCCL sends one after the other.
    assert found.seconds > share * whole_s
