"""What NCCL's transports give a large allreduce on a placement, and what the other choice of each would give.

Read `paths_taken`. Another choice is the same machine with other keys in its file: it is priced as any machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.nccl.layout import Layout, join_by_nvlink
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.common.units import GIB
from ddpsim.topology.declared import Cluster, NodeGroup
from ddpsim.topology.far_gpus import farthest_from_nics
from ddpsim.topology.file_advice import bottlenecks, file_advice, nic_advice
from ddpsim.topology.graph import Link, NodeTemplate, Placement
from ddpsim.topology.hardware import gpu_facts
from ddpsim.topology.placement import place
from ddpsim.topology.transports import (
    HOST,
    NETWORK,
    NVLINK,
    PCIE,
    XGMI,
    PairTransport,
    groups_document,
    pair_transports,
)

_MOST_GPUS = 72
"""GPUs of a node up to which other choices are priced: each wants a search of its own, of seconds beyond a rack."""

_COSTS = 1.05
"""Times more bandwidth without a bottleneck from which it is worth a line; chosen by hand."""

_SIZE_BYTES = int(GIB)
"""Of the allreduce whose bus bandwidth is reported: latency is then a thousandth of it, or less."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another choice of a transport, and what it gives.

    Attributes:
        name: what changes, in words.
        setting: what brings it about.
        busbw: bytes per second, as nccl-tests count bus bandwidth.
    """

    name: str
    setting: str
    busbw: float


@dataclass(frozen=True, slots=True)
class PathSegment:
    """Where the bytes of a placement go: inside a node, or between nodes.

    Attributes:
        transports: their names, the slowest first.
        busbw: bytes per second of an allreduce of 1 GiB over the ranks of one node, or over all.
        alternatives: what other choices would give there.
    """

    transports: tuple[str, ...]
    busbw: float
    alternatives: tuple[Alternative, ...]

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        others = [{"name": o.name, "setting": o.setting, "busbw_Bps": o.busbw} for o in self.alternatives]
        return {"transports": list(self.transports), "busbw_Bps": self.busbw, "alternatives": others}

    def text(self, where: str) -> str:
        """Return it in words."""
        others = "".join(f", {_gb(o.busbw)} with {o.name} ({o.setting})" for o in self.alternatives)
        return f"{where} by {' and '.join(self.transports)}: {_gb(self.busbw)}{others}"


@dataclass(frozen=True, slots=True)
class ChosenPaths:
    """These are the transports of a placement's ranks.

    Attributes:
        pairs: of a node of each kind, between its GPUs and to the network.
        in_node: None with one rank a node.
        between_nodes: None on one node.
        advice: what the machine's file leaves open.
    """

    pairs: tuple[PairTransport, ...]
    in_node: PathSegment | None
    between_nodes: PathSegment | None
    advice: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "in_node": None if self.in_node is None else self.in_node.document(),
            "between_nodes": None if self.between_nodes is None else self.between_nodes.document(),
            "pairs": groups_document(self.pairs),
            "advice": list(self.advice),
        }

    def lines(self) -> list[str]:
        """Return a line on each stretch, with bus bandwidths at 1 GiB, and the advice."""
        segments = [(self.in_node, "inside a node"), (self.between_nodes, "between nodes")]
        texts = [stretch.text(where) for stretch, where in segments if stretch is not None]
        return [f"allreduce bus bandwidth {line}" for line in texts] + format_path_advice(self.advice)


def format_path_advice(advice: Iterable[str]) -> list[str]:
    """Return what a machine's file leaves open, a line each."""
    return [f"advice: {line}" for line in advice]


def paths_advice(
    placement: Placement, calibration: Calibration | None = None, *, every: bool = False
) -> tuple[str, ...]:
    """Return what a machine's file leaves open of the transports that NCCL takes on `placement`, and what costs there.

    Args:
        every: with bottlenecks that cost an allreduce nothing.
    """
    if placement.world_size == 1 or placement.topology.compute_device == "cpu":
        return ()
    constants = calibration or Calibration.priors(placement.topology.backend)
    joined = join_by_nvlink(placement, int(constants[f"{constants.backend}.version"]))
    return (*file_advice(joined.topology, network=joined.nodes > 1), *_costs(joined, calibration, every=every))


def _relink(node: NodeTemplate, links: Mapping[str, Link]) -> NodeTemplate:
    return replace(node, links=tuple(links.get(link.name, link) for link in node.links))


def _costs(placement: Placement, calibration: Calibration | None, *, every: bool) -> Iterator[str]:
    """Yield a line for each bottleneck of a node's PCIe tree, with what it costs; of those between nodes if it does."""
    for each in placement.classes if not _is_large(placement) else ():
        template = each.template.select_gpus(placement.gpus(each))
        for inside, what, otherwise, links in bottlenecks(template, network=placement.nodes > 1):
            changed = _change_reach(placement.topology, partial(_relink, links=links))
            other = place(changed, placement.nodes, placement.gpus_per_node)
            costs, text = compare_machines(placement, other, otherwise, calibration)
            if costs or every or inside:
                yield f"{template.name} has {what}; {text}"


def compare_machines(
    placement: Placement, other: Placement, otherwise: str, calibration: Calibration | None = None
) -> tuple[bool, str]:
    """Return whether a large allreduce has clearly more bandwidth on `other`, and both bandwidths in words."""
    here, there = _busbw(placement, calibration), _busbw(other, calibration)
    better = _gb(there) if max(here, there) > _COSTS * min(here, there) else "no more"
    return there > _COSTS * here, f"allreduce bus bandwidth is {_gb(here)}, {better} {otherwise}"


def paths_taken(
    placement: Placement, calibration: Calibration | None = None, *, every: bool = False
) -> ChosenPaths | None:
    """Return the transports that NCCL takes on `placement`; None for one rank, or without GPUs.

    Args:
        calibration: constants; the priors where None. Its rows of the machine itself say nothing of other choices and
            are left out of both.
        every: as of `paths_advice`.
    """
    if placement.world_size == 1 or placement.topology.compute_device == "cpu":
        return None
    constants = calibration or Calibration.priors(placement.topology.backend)
    trays, placement = placement, join_by_nvlink(placement, int(constants[f"{constants.backend}.version"]))
    several = placement.nodes > 1
    pairs = [
        pair for each in placement.classes for pair in pair_transports(each.template, placement.gpus(each), several)
    ]
    return ChosenPaths(
        tuple(dict.fromkeys(pairs)),
        _find_inside(trays, placement, calibration, {pair.name for pair in pairs if pair.second != NETWORK}),
        _find_between(placement, calibration, dict.fromkeys(pair.name for pair in pairs if pair.second == NETWORK)),
        paths_advice(trays, calibration, every=every),
    )


def _find_inside(
    trays: Placement, placement: Placement, calibration: Calibration | None, taken: set[str]
) -> PathSegment | None:
    """Return what the bytes take inside a node, or an NVLink domain that `placement` joins `trays` to."""
    if not taken:
        return None
    topology, gpus = placement.topology, placement.gpus_per_node
    one_node = placement is trays and not _is_large(placement)
    others = [
        Alternative(name, setting, _busbw(place(changed, 1, gpus), calibration))
        for name, setting, changed in (_peer_to_peer(topology, taken) if one_node else ())
    ]
    if placement is not trays and trays.topology.elastic and not _is_large(placement):
        apart = replace(trays.topology, nvlink_domain=None)
        over_nics = _busbw(place(apart, trays.nodes // placement.nodes, trays.gpus_per_node), calibration)
        others.append(Alternative("NVLink inside a tray alone", "NCCL_MNNVL_ENABLE=0", over_nics))
    names = tuple(name for name in (HOST, PCIE, XGMI, NVLINK) if name in taken)
    return PathSegment(names, _busbw(place(topology, 1, gpus), calibration), tuple(others))


def _peer_to_peer(topology: Cluster, taken: set[str]) -> Iterator[tuple[str, str, Cluster]]:
    """Yield the other choices inside a node: a name, what brings it about, the machine with it."""
    if taken & {NVLINK, XGMI, PCIE}:
        yield "P2P off", "NCCL_P2P_DISABLE=1", _change_reach(topology, lambda node: replace(node, peer_to_peer="LOC"))
    if HOST in taken:
        yield (
            "P2P everywhere",
            _describe_enabling(topology),
            _change_reach(topology, lambda node: replace(node, peer_to_peer="SYS")),
        )


def find_other_reach(placement: Placement) -> tuple[str, str, Cluster] | None:
    """Return the other way in which cards without NVLink may reach each other: a condition, its setting, the machine.

    None where NVLinks join some, where their driver or the machine's file says, and with one rank a node.
    """
    topology = placement.topology
    templates = [group.template for group in topology.groups]
    facts = [gpu_facts(template.gpus[0].model) for template in templates]
    known = any(template.peer_to_peer is not None for template in templates)
    if topology.compute_device == "cpu" or known or any(each is not None and not each.peer_to_peer for each in facts):
        return None
    pairs = [pair for each in placement.classes for pair in pair_transports(each.template, placement.gpus(each), False)]
    taken = {pair.name for pair in pairs}
    if not taken or taken & {NVLINK, XGMI}:
        return None
    _, setting, changed = next(_peer_to_peer(topology, taken))
    return f"if peer-to-peer {'does not work' if PCIE in taken else 'is allowed everywhere'}", setting, changed


def _describe_enabling(topology: Cluster) -> str:
    """Return what brings peer-to-peer about where NCCL does not take it: the key or the driver that rules it out."""
    if any(group.template.peer_to_peer is not None for group in topology.groups):
        return "peer_to_peer: SYS in its file"
    facts = [gpu_facts(group.template.gpus[0].model) for group in topology.groups]
    refused = any(each is not None and not each.peer_to_peer for each in facts)
    return "a driver that allows it" if refused else "NCCL_P2P_LEVEL=SYS"


def _find_between(placement: Placement, calibration: Calibration | None, taken: dict[str, None]) -> PathSegment | None:
    if not taken:
        return None
    if _is_large(placement):
        return PathSegment(tuple(taken), _busbw(placement, calibration), ())
    others = [
        Alternative(name, setting, _busbw(place(changed, placement.nodes, placement.gpus_per_node), calibration))
        for name, setting, changed in _network(placement.topology, taken)
    ]
    if (far := farthest_from_nics(placement)) is not None:
        visible = ", ".join(map(str, far.topology.visible_devices or ()))
        others.append(Alternative("GPUs far from the NIC", f"visible_devices: [{visible}]", _busbw(far, calibration)))
    return PathSegment(tuple(taken), _busbw(placement, calibration), tuple(others))


def _is_large(placement: Placement) -> bool:
    return max(len(each.template.gpus) for each in placement.classes) > _MOST_GPUS


def _network(topology: Cluster, taken: dict[str, None]) -> Iterator[tuple[str, str, Cluster]]:
    """Yield the other choices between nodes, as `_peer_to_peer` does."""
    if any("GPUDirect" in name for name in taken):
        yield (
            "GPUDirect off",
            "NCCL_NET_GDR_LEVEL=LOC",
            _change_reach(topology, lambda node: _nics(node, gpudirect=False)),
        )
    if nic_advice(topology):
        yield "RoCE", "kind: roce", _change_reach(topology, lambda node: _nics(node, kind="roce", gpudirect=True))


def _nics(node: NodeTemplate, **changes: Any) -> NodeTemplate:
    return replace(node, nics=tuple(replace(nic, **changes) for nic in node.nics))


def _change_reach(topology: Cluster, change: Callable[[NodeTemplate], NodeTemplate]) -> Cluster:
    groups = tuple(NodeGroup(change(group.template), group.count) for group in topology.groups)
    return replace(topology, groups=groups)


def _busbw(placement: Placement, calibration: Calibration | None) -> float:
    constants = (calibration or Calibration.priors(placement.topology.backend)).constants
    values = tuple((name, constant.value) for name, constant in constants.items())
    return _bus_bandwidth(placement.topology, placement.nodes, placement.gpus_per_node, values)


@lru_cache(maxsize=256)
def _bus_bandwidth(topology: Cluster, nodes: int, gpus: int, values: tuple[tuple[str, float], ...]) -> float:
    """Return the bus bandwidth, found once for equal arguments: rows of a sweep ask for the same."""
    priors = Calibration.priors(topology.backend)
    known = {name: value for name, value in values if name in priors.constants}
    calibration = priors.with_values(known, source="in force")
    placement = place(topology, nodes, gpus)
    layout = Layout(placement, int(calibration[f"{priors.backend}.version"]))
    time_s = NcclTransport(layout, calibration, CollectiveOptions(isolated=False)).allreduce_s(_SIZE_BYTES)
    return 2 * (placement.world_size - 1) / placement.world_size * _SIZE_BYTES / time_s


def _gb(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.3g} GB/s"
