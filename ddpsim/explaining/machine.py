"""The machine of a traced run: the one that is given, or one assumed for its GPU, with the wire as the trace has it."""

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
from ddpsim.explaining.given import RunFacts
from ddpsim.explaining.ranks import TracedRank
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
"""Shipped machines by their GPU, for a trace whose machine nobody names: its wires are then the trace's."""


APART = 2
"""Largest over smallest message from which on bytes and latency are told apart: half of a message whose time is all
bytes takes half as long, of one that is all latency as long, which is more than times of one size differ by."""


@dataclass(frozen=True, slots=True)
class TracedMachine:
    """Where the traced ranks ran, as far as that is known.

    Attributes:
        calibration: of its collectives; None is the priors.
        assumed: why it is this machine, where nobody named it.
        notes: what else was assumed of it.
        one_size: the size and time of the collectives that its times rest on, where all are about as large: those do
            not tell what of it grows with bytes. None elsewhere.
    """

    topology: Topology
    nodes: int
    gpus_per_node: int
    calibration: Calibration | None
    assumed: str = ""
    one_size: CurvePoint | None = None
    notes: tuple[str, ...] = ()

    def library(self, backend: str) -> str:
        """Return the library that a backend is on this machine: `nccl` is RCCL on AMD's GPUs, as torch's traces say."""
        return _library(self.topology, backend)


def _library(topology: Topology, backend: str) -> str:
    return topology.backend if backend == "nccl" and topology.backend == "rccl" else backend


def machine_of(
    world_size: int,
    device: str,
    points: Sequence[CurvePoint],
    backend: str,
    given: RunFacts | None = None,
    node_gpus: int = 0,
) -> TracedMachine:
    """Return the machine of a run.

    Args:
        world_size: ranks.
        device: GPU model, or `cpu`.
        points: what its allreduces took on the wire, by size, ascending.
        backend: of the run.
        given: what is known of the machine; None is nothing.
        node_gpus: GPUs that one of its nodes has at least, as the trace shows.

    Raises:
        InputError: a machine on which the run cannot have been, a file that cannot be read, a GPU that no shipped
            machine has.
    """
    topology, topo, nccl_tests = (None,) * 3 if given is None else (given.topology, given.topo, given.nccl_tests)
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
    """Return nodes, and GPUs of each, that hold so many ranks, and what is to be said of them.

    Raises:
        TopologyError: no node count of this machine does.
    """
    whole = place(topology, 1, None).gpus_per_node
    if not topology.elastic and topology.nodes == 1:
        whole = max(whole, seats_of(topology))  # a machine may run more processes than it does where none are counted
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
    """Return a machine with this GPU whose allreduces take what the trace's took on the wire."""
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
