"""Who is simulated where an order trace is replayed: rank 0, and the latest of all others at every point."""

from __future__ import annotations

from ddpsim.errors import WorkloadError
from ddpsim.jobs.simulated import Options
from ddpsim.simulation.draws import Draw
from ddpsim.simulation.pace import Pace, latest, paces
from ddpsim.simulation.plans import Seen
from ddpsim.simulation.rank import LATEST
from ddpsim.workload.order_trace import OrderTrace


def replayed(trace: OrderTrace, world_size: int, options: Options) -> list[Draw]:
    """Return the ranks of `trace`, whose iterations come in their order and begin anew after the last.

    Ranks leave each allreduce together, so that the last of several is at every gradient where the last of them is;
    what one of them does not use, it announces at its first gradient.

    Raises:
        WorkloadError: a world of other ranks than were recorded.
    """
    if world_size != trace.ranks:
        what = f"{trace.name} has {trace.ranks} ranks, the machine {world_size}"
        raise WorkloadError(what, place="traces", remedy=f"place it on {trace.ranks} ranks (`nodes`, `gpus_per_node`)")
    recorded = [
        paces(
            workload,
            options.scale_compute * options.stragglers.get(rank, 1.0),
            options.scale_host,
            options.scale,
        )
        for rank, workload in enumerate(trace.workloads)
    ]
    count = trace.iterations

    def seen(rank: int) -> Seen:
        return Seen(lambda k: recorded[rank][k % count], lambda k: trace.contexts[rank][k % count])

    first = trace.workloads[0]
    draws = [Draw(0, range(1), first, seen(0).pace, recorded[0], (seen(0),))]
    if trace.ranks > 1:
        others = [_latest([recorded[rank][k] for rank in range(1, trace.ranks)]) for k in range(count)]
        known = [seen(rank) for rank in range(1, trace.ranks)]
        draws.append(Draw(LATEST, range(1, trace.ranks), first, lambda k: others[k % count], others, known))
    return draws


def _latest(found: list[Pace]) -> Pace:
    return latest(found, [0.0] * len(found))
