"""Whether the traced run can have been on the machine that somebody names for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpsim.errors import TopologyError
from ddpsim.explaining.ranks import TracedRank
from ddpsim.gpus.table import find_shipped_gpu
from ddpsim.topology.graph import Topology
from ddpsim.units import format_count


def count_node_gpus(ranks: Sequence[TracedRank]) -> int:
    """Return the GPUs that a node of the run has at least: those that a process saw, or as many as ranks on one host.

    Ranks that compute on CPUs say nothing of it: of a shaped network, all its nodes are one host.
    """
    on_gpus = [rank for rank in ranks if rank.device != "cpu"]
    by_clock = Counter(rank.clock for rank in on_gpus if rank.kind == "kineto" and rank.clock is not None)
    return max([*by_clock.values(), *(rank.gpus for rank in on_gpus)], default=0)


def seats_of(topology: Topology) -> int:
    """Return the ranks for which the nodes that its file counts have a GPU, or may run a process."""
    return sum(group.count * len(topology.gpus_of(group.template)) for group in topology.groups)


def check_machine(topology: Topology, world_size: int, device: str, node_gpus: int, place: str) -> None:
    """Refuse a machine on which the run cannot have been.

    One node stands for as many as a job had, and so does a rack; a file that counts its nodes, or joins them to
    nothing, has no more.

    Args:
        world_size: ranks of the run.
        device: GPU model, `cpu`, or `GPU` of one that is not known.
        node_gpus: as `count_node_gpus`.
        place: who named the machine.

    Raises:
        TopologyError: other GPUs, too few on a node, too few in all.
    """
    models = sorted({gpu.model for group in topology.groups for gpu in group.template.gpus})
    kinds = {_kind(model) for model in models}
    remedy = "give the machine that was traced"
    # A machine with GPUs may train on its processors; one without has none to trace.
    if (kind := _kind(device)) not in (None, "cpu") and None not in kinds and kind not in kinds:
        have = "no GPUs" if models == ["cpu"] else ", ".join(models)
        raise TopologyError(f"the traced ranks are on {device}, {topology.name} has {have}", place=place, remedy=remedy)
    most = max(len(group.template.gpus) for group in topology.groups)
    if models != ["cpu"] and node_gpus > most:
        what = f"a traced node has {format_count(node_gpus, 'GPU')} or more, one of {topology.name} has {most}"
        raise TopologyError(what, place=place, remedy=remedy)
    grows = topology.elastic and (topology.nodes == 1 or topology.nvlink_domain is not None)
    if world_size > (seats := seats_of(topology)) and not grows:
        where = format_count(topology.nodes, "node")
        what = f"{format_count(world_size, 'rank')} were traced, {topology.name} has room for {seats} on {where}"
        raise TopologyError(what, place=place, remedy=f"{remedy}, or raise `nodes` in its file")


def _kind(model: str) -> str | None:
    """Return what topologies call a GPU's kind, `cpu` for a processor; None of one that no table has."""
    spec = find_shipped_gpu(model)
    return model if model == "cpu" else None if spec is None else spec.kind
