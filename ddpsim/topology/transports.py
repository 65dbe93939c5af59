"""By what NCCL moves bytes between two GPUs of a node, and between a GPU and the network.

Source: NCCL 2.30 `src/graph/paths.cc` (`ncclTopoCheckP2p`, `ncclTopoCheckGdr`) picks the transport of each pair; its
log names it: `via P2P/CUMEM`, `via SHM/direct`, `via NET/IB/0/GDRDMA`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ddpsim.topology.gpus.table import find_shipped_gpu
from ddpsim.topology.hardware import gpu_facts, nic_kind
from ddpsim.topology.node import GDR_LEVEL, NodeTemplate
from ddpsim.topology.paths import KINDS, Paths, Route, find_paths

NVLINK, XGMI, PCIE, HOST, NET = "P2P over NVLink", "P2P over xGMI", "P2P over PCIe", "host memory (SHM)", "NET"
NETWORK = "another node"
"""What stands in a pair for whatever GPU the network leads to."""


@dataclass(frozen=True, slots=True)
class PairTransport:
    """What NCCL takes between two GPUs, or between a GPU and the network.

    Attributes:
        first, second: GPUs; `second` is `NETWORK` for the way out of the node.
        name: `P2P over NVLink`, `P2P over PCIe`, `host memory (SHM)`, `NET/IB with GPUDirect`, ...
        kind: of its route (`paths.KINDS`).
        bandwidth: bytes per second that the route sustains alone, as NCCL counts it.
        why: what rules out a nearer way; empty where nothing does.
    """

    first: str
    second: str
    name: str
    kind: str
    bandwidth: float
    why: str = ""


def pair_transports(template: NodeTemplate, gpus: Sequence[str], network: bool) -> list[PairTransport]:
    """Return the transport of each pair of `gpus`, and with `network` of each to the NIC nearest to it."""
    paths = find_paths(template.select_gpus(gpus))
    inside = [_find_transport(template, paths[pair]) for pair in combinations(gpus, 2)]
    return inside + (list(_outwards(template, paths, gpus)) if network else [])


def _find_transport(template: NodeTemplate, route: Route) -> PairTransport:
    kinds = {link.kind for link in route.links}
    name = HOST if route.through_host else NVLINK if kinds == {"nvlink"} else XGMI if kinds == {"xgmi"} else PCIE
    why = _explain_refusal(template) if route.through_host else ""
    return PairTransport(route.source, route.target, name, route.kind, route.bandwidth, why)


def _explain_refusal(template: NodeTemplate) -> str:
    """Return why GPUs of `template` that no NVLink joins do not reach each other's memory."""
    model = template.gpus[0].model
    if template.peer_to_peer is not None:
        return f"peer_to_peer: {template.peer_to_peer} in its file"
    facts, spec = gpu_facts(model), find_shipped_gpu(model)
    if facts is not None and not facts.peer_to_peer:
        known = [line.removeprefix("P2P: ") for line in (spec.sources if spec else ()) if line.startswith("P2P: ")]
        source = f" ({known[0]})" if known else ""
        return f"{model}'s driver has no P2P over PCIe{source}"
    return "NCCL goes past one root port through host memory (NCCL_P2P_LEVEL=PXB)"


def _outwards(template: NodeTemplate, paths: Paths, gpus: Sequence[str]) -> Iterator[PairTransport]:
    for gpu in gpus:
        routes = [(paths[gpu, nic.name], nic) for nic in template.nics if KINDS[paths.distance(gpu, nic.name)] != "DIS"]
        if not routes:
            continue  # no link leads from it to a NIC: it has no way out
        route, nic = min(routes, key=lambda pair: (KINDS.index(pair[0].kind), -pair[0].bandwidth))
        kind = nic_kind(nic.kind)
        how = "through host memory" if route.through_host else "with GPUDirect"
        way = f"{kind.transport} {how}{' by PXN' if route.kind == 'PXN' else ''}"
        why = _explain_staging(template, nic.kind) if route.through_host else ""
        yield PairTransport(gpu, NETWORK, way, route.kind, min(route.bandwidth, nic.bandwidth), why)


def _explain_staging(template: NodeTemplate, kind: str) -> str:
    facts = gpu_facts(template.gpus[0].model)
    if facts is not None and not facts.peer_to_peer:
        return f"{template.gpus[0].model}'s driver has no GPUDirect"
    if not nic_kind(kind).gpudirect:
        return f"`{kind}` has no GPUDirect"
    if not any(nic.gpudirect for nic in template.nics):
        return "gpudirect: false in its file"
    level = min((nic.gdr_level for nic in template.nics), key=KINDS.index)
    if level == GDR_LEVEL:
        return f"NCCL goes past one root port through host memory (NCCL_NET_GDR_LEVEL={level})"
    return f"gdr_level: {level} in its file"


def group_pairs(pairs: Sequence[PairTransport]) -> list[list[PairTransport]]:
    """Return pairs in groups that differ in nothing but their GPUs."""
    groups: dict[tuple[object, ...], list[PairTransport]] = {}
    for pair in pairs:
        key = (pair.second == NETWORK, pair.name, pair.kind, pair.bandwidth, pair.why)
        groups.setdefault(key, []).append(pair)
    return list(groups.values())


def groups_document(pairs: Sequence[PairTransport]) -> list[dict[str, object]]:
    """Return the groups of `pairs` as JSON values."""
    return [
        {
            "pairs": [[pair.first, pair.second] for pair in group],
            "transport": group[0].name,
            "route_kind": group[0].kind,
            "bandwidth_Bps": group[0].bandwidth,
            "why": group[0].why or None,
        }
        for group in group_pairs(pairs)
    ]
