"""Small workloads for the simulation's tests, where they run, and what a closed form takes of them."""

from dataclasses import replace

import numpy as np
import simpy

from ddpsim.bucketing import Parameter
from ddpsim.collectives.execute import Collectives
from ddpsim.common.operation import Operation
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from ddpsim.simulation.engine import Simulated, run_resolved, trace_of
from ddpsim.simulation.jobs.plans import plans_of
from ddpsim.simulation.jobs.representatives import representatives_of
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import SimulatedIterations, Workloads, resolve
from ddpsim.topology.placement import Placement
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import Trace
from ddpsim.workload import Buffer, Phase, Workload

ALIKE = remove_overlap_costs("nccl", None).with_values(
    {"nccl.ddp.pace_spread": 0.0, "nccl.ddp.shared_compute_slowdown": 1.0}, source="devices alike, nothing disturbed"
)
"""Constants under which only wires, launches and copies cost anything."""


def workload(
    *, device="cpu", gradients=8, size=250_000, iterations=1, jitter=0.0, forward=0.03, backward=0.08, optimizer=0.01,
    host_share=0.1, buffers=0, synchronises=(), seed=0,
):  # fmt: skip
    """`gradients` equal gradients at equal intervals, last parameter first; the host needs `host_share` of the time."""
    factor = 1 + jitter * np.random.default_rng(seed).random(iterations)
    share = 1.0 if device == "cpu" else host_share
    ready = np.arange(gradients, 0, -1)[None] / gradients * backward * factor[:, None]

    def phase(seconds):
        return Phase(seconds * factor * share, seconds * factor)

    return Workload(
        name="small",
        device=device,
        precision="fp32",
        batch_size=4,
        threads=1 if device == "cpu" else None,
        estimated=False,
        parameters=tuple(Parameter(f"p{i}", (size,)) for i in range(gradients)),
        buffers=tuple(Buffer(f"b{i}", (64,)) for i in range(buffers)),
        forward=phase(forward),
        backward=phase(backward),
        optimizer=phase(optimizer),
        gradient_hook_s=ready * share,
        gradient_ready_s=ready,
        synchronises=tuple(synchronises),
    )


def named(source):
    """Return a workload of which each parameter is a layer's own weight: `layerN.weight`."""
    parameters = tuple(replace(p, name=f"layer{i}.weight") for i, p in enumerate(source.parameters))
    return replace(source, parameters=parameters)


def place(name: str = "loopback", nodes: int = 1, ranks: int | None = 2) -> Placement:
    return load_topology(name).place(nodes, ranks)


def wire_s(
    placement: Placement, size_bytes: int, operation: Operation = Operation.ALLREDUCE, backend: str = "gloo"
) -> float:
    """Return what a collective takes that is alone on the wire."""
    return Collectives(simpy.Environment(), placement, backend=backend).estimate_s(size_bytes, operation)


def every_rank(
    source: Workload | Workloads, placement: Placement, options: Options, extent: SimulatedIterations | None = None
) -> Simulated:
    """Return the trace of a job each of whose ranks is simulated as itself; devices then do not spread."""
    usual = resolve(source, placement, options, extent=extent)
    asked, total, cycle = usual.job.options, usual.extent.total, usual.job.options.sync_every
    alone = [(rank, replace(kind, ranks=[rank])) for kind in usual.kinds for rank in kind.ranks]
    kinds = [kind for _, kind in sorted(alone, key=lambda each: each[0])]
    draws = [draw for kind in kinds for draw in representatives_of(kind, asked, total, placement.world_size)]
    seen = [view for draw in draws for view in draw.seen]
    plans = plans_of(asked, kinds[0].workload, seen, range(cycle - 1, total, cycle), total)
    return trace_of(run_resolved(resolve(source, placement, options, extent=extent, drawn=(draws, plans))))


def period(trace: Trace) -> float:
    return float(summarise(trace).iteration_s)
