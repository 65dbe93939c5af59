"""The machine of a traced run: the one that the user names, or a shipped one with its GPU and the traced wire times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim.calibrating.calibrate import calibrate
from ddpsim.calibrating.measured import read_tables
from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.common.errors import TopologyError, TraceError
from ddpsim.common.files import display_name, read_text
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.units import format_count
from ddpsim.explaining.ranks import TracedRank
from ddpsim.explaining.run_facts import RunFacts
from ddpsim.topology.gpus.table import find_shipped_gpu
from ddpsim.topology.graph import Topology
from ddpsim.topology.importers import import_topology
from ddpsim.topology.placement import place
from ddpsim.topology.spec import load_topology
from ddpsim.workload.gpus import kind_of

_ASSUMED = {
    "A100": "dgx-a100", "A800": "dgx-a100", "V100": "dgx-1v", "H100": "dgx-h100", "H200": "hgx-h200",
    "B200": "dgx-b200", "L40S": "8xl40s-pcie", "RTX4090": "8xrtx4090", "RTXPRO6000": "8xrtxpro6000",
    "T4": "g4dn.metal", "A10G": "g5.48xlarge", "L4": "g6.48xlarge",
    "MI250X": "mi250x-4", "MI300X": "mi300x-8", "MI325X": "mi325x-8", "MI355X": "mi355x-8",
}  # fmt: skip
"""Shipped machine by GPU, for a trace whose machine nobody names; its collectives then take what the trace has."""

APART = 2
"""Largest over smallest message from which on their times separate bytes from latency: half the bytes take half as long
where the time is all bytes, and as long where it is all latency; times of one size differ by less than that."""


@dataclass(frozen=True, slots=True)
class TracedMachine:
    """Where the traced ranks ran, as far as that is known."""

    topology: Topology
    nodes: int
    gpus_per_node: int
    calibration: Calibration | None
    """Of its collectives; None is the priors."""
    assumed: str = ""
    """The sentence that says which machine was assumed; empty where the user named it."""
    one_size: CurvePoint | None = None
    """Size and time of the traced collectives where all are about as large, so that they do not show which share of the
    time grows with bytes; None where sizes differ, or a table says it."""
    notes: tuple[str, ...] = ()
    """What else was assumed of it."""

    def library(self, backend: str) -> str:
        """Return the library behind a backend on this machine: torch calls RCCL, on AMD's GPUs, `nccl` too."""
        return _library(self.topology, backend)


def _library(topology: Topology, backend: str) -> str:
    return topology.backend if backend == "nccl" and topology.backend == "rccl" else backend


def machine_of(
    world_size: int,
    device: str,
    points: Sequence[CurvePoint],
    backend: str,
    facts: RunFacts | None = None,
    node_gpus: int = 0,
) -> TracedMachine:
    """Return the machine of a run.

    Args:
        world_size: ranks.
        device: GPU model, or `cpu`.
        points: wire times of its allreduces, by size, ascending.
        backend: of the run.
        facts: what the user says of the machine.
        node_gpus: GPUs that one of its nodes has at least, as the trace shows.

    Raises:
        InputError: a machine on which the run cannot have been, a file that cannot be read, a GPU that no shipped
            machine has.
    """
    topology, topo, nccl_tests = (None,) * 3 if facts is None else (facts.topology, facts.topo, facts.nccl_tests)
    refuse_excluded(None, "explain", TopologyError, beside={"topology": topology, "topo": topo})
    if topology is None and topo is None:
        return _assume_machine(world_size, device, points, backend)
    if topology is not None:
        known = load_topology(topology)
    else:
        remedy = "give what `nvidia-smi topo -m` or `rocm-smi --showtopo` printed, or NCCL's XML"
        gpu = kind_of(device).lower() if device not in ("cpu", "GPU") else None
        name = Path(str(topo)).name.partition(".")[0] or "imported"
        known = import_topology(
            read_text(str(topo), TopologyError, remedy), display_name(str(topo)), gpu=gpu, name=name
        )
    check_machine(known, world_size, device, node_gpus, "topo" if topology is None else "topology")
    nodes, per_node, notes = _place_ranks(known, world_size)
    calibration = None
    if nccl_tests is not None:
        calibration = calibrate(read_tables(nccl_tests), known, backend=backend, accept_misfit=True).calibration
    return TracedMachine(known, nodes, per_node, calibration, notes=notes)


def _place_ranks(topology: Topology, world_size: int) -> tuple[int, int, tuple[str, ...]]:
    """Return how many nodes of how many GPUs hold `world_size` ranks, with a note where nodes are not filled.

    Traces do not say how ranks lie on nodes: taken are the fullest nodes of equal size.

    Raises:
        TopologyError: no node count of this machine does.
    """
    whole = place(topology, 1, None).gpus_per_node
    if not topology.elastic and topology.nodes == 1:
        # `place` takes one process a GPU, or what the file counts; ranks on CPUs may be more on the one node there is.
        whole = max(whole, seats_of(topology))
    per_node = min(whole, world_size)
    while world_size % per_node:
        per_node -= 1
    nodes = world_size // per_node
    place(topology, nodes, per_node)
    if nodes == 1 or per_node == whole:
        return nodes, per_node, ()
    taken = f"{format_count(nodes, 'node')} of {format_count(per_node, 'rank')} each"
    return nodes, per_node, (f"{world_size} ranks do not fill nodes of {whole} of {topology.name}: {taken} are taken",)


def _assume_machine(world_size: int, device: str, points: Sequence[CurvePoint], backend: str) -> TracedMachine:
    """Return a shipped machine with this GPU whose allreduces take as long on the wire as the traced ones."""
    name = "loopback" if device == "cpu" else _ASSUMED.get(kind_of(device))
    if name is None:
        what = f"no shipped machine has {device}s: nothing says what its collectives should take"
        raise TraceError(what, place="topology", remedy="give --topology, or --topo with `nvidia-smi topo -m`")
    known = load_topology(name)
    nodes, per_node, notes = _place_ranks(known, world_size)
    priors = Calibration.priors(_library(known, backend))
    assumed = f"no machine is given: {name} is assumed"
    if not points:
        return TracedMachine(known, nodes, per_node, None, assumed, notes=notes)
    curve = Curve(known.fingerprint(), nodes, per_node, tuple(points))
    largest = points[-1]
    alike = largest.size_bytes < APART * points[0].size_bytes
    assumed = f"{assumed}, its allreduces as long as traced"
    calibration, one_size = replace(priors, curves=(curve,)), largest if alike else None
    return TracedMachine(known, nodes, per_node, calibration, assumed, one_size, notes)


def count_node_gpus(ranks: Sequence[TracedRank]) -> int:
    """Return the GPUs that a node of the run has at least: those that a process saw, or the ranks that share a host.

    Ranks on CPUs do not count: in a shaped network (`ddpexec netlab`) all nodes are one host.
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
        place: the option that named the machine, for errors.

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
    # A file of one node, or of one rack, describes a kind of which a job may take as many as it likes.
    grows = topology.elastic and (topology.nodes == 1 or topology.nvlink_domain is not None)
    if world_size > (seats := seats_of(topology)) and not grows:
        where = format_count(topology.nodes, "node")
        what = f"{format_count(world_size, 'rank')} were traced, {topology.name} has room for {seats} on {where}"
        raise TopologyError(what, place=place, remedy=f"{remedy}, or raise `nodes` in its file")


def _kind(model: str) -> str | None:
    """Return the kind of a GPU in the table of shipped ones, `cpu` for a processor; None where no table has it."""
    spec = find_shipped_gpu(model)
    return model if model == "cpu" else None if spec is None else spec.kind
