"""DataParallel against closed forms: what is sent and when, the interpreter that replicas share, the batches of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpsim.bucketing import Parameter
from ddpsim.collectives.execute import make_transport
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.schedules.dataparallel import BUFFER_BYTES
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.scheduling import REPLICATE_S
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload.profile import ForwardUse
from tests.ddpsim.simulation.builders import ALIKE, workload

RANKS = 4
FORWARD, BACKWARD, OPTIMIZER = 0.03, 0.08, 0.01
HOSTLESS = {"host_share": 1e-3}
MACHINE = load_topology("4xv100-pcie")


def step(source, scheme="dataparallel", topology=MACHINE, **options):
    return summarise(simulate(source, topology.place(), Options(scheme=scheme, **options), ALIKE))


def sent_s(parameters, *operations):
    """Return the time on the wire of a schedule's messages, one after the other."""
    setup = SchemeInputs(parameters=parameters, buckets=[tuple(range(len(parameters)))], world_size=RANKS)
    transport = make_transport(MACHINE.place(), "nccl", ALIKE)
    schedule = scheme_named("dataparallel").schedule(setup)
    return sum(transport.time_s(each.op, each.size_bytes) for each in schedule if each.op in operations)


def test_parameters_go_out_before_forward_and_sums_come_in_after_backward_with_nothing_hidden():
    source = workload(device="V100", size=1_000_000, **HOSTLESS)
    found = step(source)
    wire_s = sent_s(source.parameters, Operation.BROADCAST, Operation.REDUCE)
    assert found.exposed_comm_s == pytest.approx(wire_s, rel=0.03)
    copies_s = found.iteration_s - wire_s - FORWARD - BACKWARD - OPTIMIZER
    assert 0 < copies_s < 2e-3
    assert step(source, "ddp").iteration_s < found.iteration_s


def test_what_goes_together_is_what_torch_packs():
    torch = pytest.importorskip("torch", reason="needs the extra `exec`")
    from torch._utils import _take_tensors

    sizes = [3_000_000, 1_000_000, 2_000_000, 200_000, 1, 2_600_000, 2_600_000, 2_621_440, 1, 2_621_441]
    parameters = [Parameter(f"p{i}", (size,), "float32" if i % 3 else "float16") for i, size in enumerate(sizes)]
    setup = SchemeInputs(parameters=parameters, buckets=[tuple(range(len(sizes)))], world_size=RANKS)
    schedule = scheme_named("dataparallel").schedule(setup)
    tensors = [torch.empty(each.shape, dtype=getattr(torch, each.dtype), device="meta") for each in parameters]
    index = {id(tensor): number for number, tensor in enumerate(tensors)}
    torchs = [tuple(index[id(tensor)] for tensor in chunk) for chunk in _take_tensors(tensors, BUFFER_BYTES)]
    for operation in (Operation.BROADCAST, Operation.REDUCE):
        assert [each.parameters for each in schedule if each.op is operation] == torchs


def test_forwards_share_one_interpreter_and_backwards_do_not():
    """A host that needs as long as the device: forward takes the hosts' time of all ranks, and backward one's."""
    source = workload(device="V100", size=1000, host_share=1.0, synchronises=("after_forward", "after_optimizer"))
    found = step(source)
    host_s = RANKS * (FORWARD + REPLICATE_S * len(source.parameters))
    assert found.forward_s + found.exposed_comm_s == pytest.approx(host_s, rel=0.02)
    assert found.backward_compute_s == pytest.approx(BACKWARD, rel=0.02)
    assert step(source, "ddp").forward_s == pytest.approx(FORWARD, rel=0.02)


@pytest.mark.parametrize(
    ("stage", "each_s"),
    [
        ("copy=60MB,rate=3GB/s", RANKS * 0.02),
        ("copy=60MB,pinned", RANKS * 0.005),
        ("load=20ms", RANKS * 0.02),
        ("load=20ms,workers=2", 0.0),
        ("copy=60MB,pipelined", 0.0),
    ],
)
def test_one_thread_loads_and_copies_the_batches_of_all(stage, each_s):
    """Not pinned, one after the other at the host's pace; pinned all at once, over the one switch they are below."""
    source = workload(device="V100", synchronises=("after_optimizer",), **HOSTLESS)
    plain, found = step(source), step(source, input_stage=stage)
    assert found.input_s == pytest.approx(each_s, abs=1e-3)
    assert found.iteration_s == pytest.approx(plain.iteration_s + each_s, abs=1e-3)


@pytest.mark.parametrize("known", [False, True])
def test_outputs_go_to_the_first_gpu_and_their_gradients_back(known):
    """By hand: three GPUs' 20 MB each over the first one's link, in and out, between forward and backward."""
    source, others = workload(device="V100", size=1_000_000, **HOSTLESS), (RANKS - 1) * 20_000_000
    if known:
        use = np.arange(8) / 8 * FORWARD
        source = replace(source, forward_use_s=ForwardUse(use, use))
    transport = make_transport(MACHINE.place(), "nccl", ALIKE)
    wire_s = transport.time_s(Operation.REDUCE, others) + transport.time_s(Operation.BROADCAST, others)
    plain, found = step(source), step(source, "dataparallel:output=20MB")
    assert [b.size_bytes for b in found.buckets if not b.parameters] == [others, others]
    # They begin an eighth of forward or of backward early, whichever is known.
    hidden_s = FORWARD / 8 if known else BACKWARD / 8
    assert found.iteration_s - plain.iteration_s == pytest.approx(wire_s - hidden_s, rel=0.1)


def test_one_gpu_sends_nothing():
    source = workload(device="V100", **HOSTLESS)
    here = MACHINE.place(gpus_per_node=1)
    alone = summarise(simulate(source, here, Options(scheme="dataparallel:output=9MB"), ALIKE))
    assert alone.exposed_comm_s == pytest.approx(0.0, abs=1e-4)
    assert alone.iteration_s == pytest.approx(FORWARD + BACKWARD + OPTIMIZER, rel=0.01)


def test_several_nodes_and_gloo_are_refused():
    with pytest.raises(InputError, match="threads of one process, 2 nodes"):
        simulate(workload(device="V100"), load_topology("dgx-1v").place(2), Options(scheme="dataparallel"))
    with pytest.raises(InputError, match="not by gloo"):
        simulate(workload(device="V100"), MACHINE.place(), Options(scheme="dataparallel", backend="gloo"))
    with pytest.raises(InputError, match="not by gloo"):
        simulate(workload(), load_topology("lab-flat").place(1), Options(scheme="dataparallel"))
