"""What cannot be simulated, and is refused before anything is: node templates, extents and schedules."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.collectives.conditions import GPU_BACKENDS
from ddpsim.common.errors import InputError
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload

MOST_MOMENTS = 4_000_000
"""Gradients of all iterations and ranks that one simulation records: about 1.2 GB of them."""

MOST_APART = 64
"""Ranks that each go their own way; chosen by hand: their steps are events of one queue."""


def check_templates(placement: Placement, workloads: Mapping[str | None, Workload], parts: int = 1) -> None:
    """Refuse node templates whose workload is not given, or is of another model than the one that is trained.

    Args:
        workloads: by name; None is the one that is trained.
        parts: that this model is cut into.

    Raises:
        InputError: such a template.
    """
    trained = workloads[None]
    for node_class in placement.classes:
        place, name = f"node template {node_class.template.name!r}", node_class.template.workload
        if name is None:
            continue
        if parts > 1:
            what = f"it has a workload of its own, {name!r}, and a pipeline cuts one model into stages"
            raise InputError(what, place=place, remedy="leave `workload` out there, or give no `pipeline`")
        if name not in workloads:
            raise InputError(f"names the workload {name!r}, which is not given", place=place)
        other = workloads[name]
        ours, theirs = ([(p.name, p.shape, p.dtype) for p in each.parameters] for each in (trained, other))
        if ours != theirs or trained.buffers != other.buffers:
            what = "parameters" if ours != theirs else "buffers"
            remedy = f"name one of the model that is trained, {trained.name!r}, captured on the template's GPU"
            raise InputError(f"the workload {other.name!r} has other {what}", place=place, remedy=remedy)


def check_extent(iterations: int, parameters: int, kinds: int = 1) -> None:
    """Refuse what would record more moments than memory holds.

    Raises:
        InputError: too many iterations, for so many parameters and kinds of ranks.
    """
    if (moments := iterations * kinds * parameters) > MOST_MOMENTS:
        ranks = f"{kinds} kinds of ranks" if kinds > 1 else "a rank"
        what = f"{iterations} iterations of {parameters} gradients on {ranks} are {moments:.3g} moments to record"
        remedy = f"ask for fewer `iterations`, micro-batches (`accumulate`) or `stragglers`: at most {MOST_MOMENTS} fit"
        raise InputError(what, remedy=remedy)


def check_schedule(
    schedule: Schedule, placement: Placement, backend: str, options: Options, *, one_thread: bool
) -> None:
    """Refuse ranks of one process, and ranks that each go their own way, where they cannot be.

    Args:
        one_thread: whether ranks compute on the thread that launches, as on a CPU.

    Raises:
        InputError: of one process several machines, no GPUs, or another backend than NCCL, which copies between them;
            more ranks than are simulated one by one.
    """
    if not schedule.ranks_meet and options.comm == "real" and placement.world_size > MOST_APART:
        what = f"{placement.world_size} ranks, each of which goes its own way"
        remedy = f"give {MOST_APART} at most, or leave out `async`"
        raise InputError(what, place="scheme 'parameter-server'", remedy=remedy)
    if not schedule.one_process:
        return
    place = f"scheme={schedule.scheme}"
    if placement.nodes > 1:
        what = f"its ranks are threads of one process, {placement.nodes} nodes are asked for"
        raise InputError(what, place=place, remedy="ask for one node, or take `ddp`")
    if one_thread or backend not in GPU_BACKENDS:
        what = f"it moves parameters and gradients between GPUs, not by {backend}"
        raise InputError(what, place=place, remedy="use a workload of a GPU and `backend=nccl`, or take `ddp`")
