"""What a machine is to NCCL's and RCCL's cost models, and what they say of an algorithm and protocol."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.collectives.nccl.versions import CURRENT


@dataclass(frozen=True, slots=True)
class InSwitch:
    """An in-switch reduction's channels, each of so many GB/s inside the node and at the NIC."""

    channels: int
    inside: float
    across: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What NCCL's model looks at when it chooses.

    Attributes:
        ranks, nodes: p and n.
        channels: C; of the rings.
        channel_bandwidth: GB/s of one of them.
        tree_bandwidth: GB/s of one tree channel inside the node.
        sm: compute capability of the slowest GPU, 70 for 7.0.
        nvlink: whether hops inside a node are by NVLink.
        nic_latency_us: the card's, from its plugin or XML, where NCCL asks for it (2.13 and later).
        amd: whether all hosts are AMD's.
        mixed: whether hosts are of several vendors.
        ll128: whether paths allow LL128.
        simple_only: whether the network's plugin, or NCCL_PROTO, rules out the other protocols.
        nvls: what the node's switch reduces by; None where it does not.
        x86: whether hosts are Intel's or AMD's.
        version: as major * 1000 + minor.
        gcn: AMD's name of the GPUs' architecture, whose library is RCCL; empty for NVIDIA's.
        mesh: whether eight GPUs of a node are joined each to each, as RCCL's own model of such boards asks.
    """

    ranks: int
    nodes: int
    channels: int
    channel_bandwidth: float
    tree_bandwidth: float
    sm: int
    nvlink: bool
    nic_latency_us: float = 0.0
    amd: bool = False
    mixed: bool = False
    ll128: bool = True
    simple_only: bool = False
    nvls: InSwitch | None = None
    x86: bool = True
    version: int = CURRENT
    gcn: str = ""
    mesh: bool = False

    @property
    def per_node(self) -> int:
        """Ranks a node."""
        return self.ranks // self.nodes


@dataclass(frozen=True, slots=True)
class TuningEntry:
    """A line of NCCL's table: algorithm, protocol, latency in us, algorithm bandwidth in GB/s."""

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth: float
