"""Kinds of vertices: what stands at the ends of a machine's links."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VertexKind(StrEnum):
    """What a vertex is; its name is the kind and a number, or the kind alone where there is one."""

    GPU = "gpu"
    PROCESS = "process"
    """It computes on the CPU of a node without GPUs."""
    NIC = "nic"
    ADAPTER = "adapter"
    """A card with several ports, each a NIC."""
    PCIE = "pcie"
    """A PCIe switch."""
    CPU = "cpu"
    """A socket with its host bridge."""
    NVSWITCH = "nvswitch"
    HOST_OUT = "host_out"
    HOST_IN = "host_in"
    """The kernel's two ends, of a node without GPUs."""
    NETWORK = "network"
    """Whatever the NICs of a node are plugged into."""
    LEAF = "leaf"
    RAIL = "rail"
    """The leaf switch of one NIC position."""
    SPINE = "spine"


@dataclass(frozen=True, slots=True)
class Vertex:
    """A vertex is a device or switch, known by name and kind.

    Attributes:
        name: `gpu0`, `nvswitch0`, `host_out`, `rail1.0`.
    """

    name: str
    kind: VertexKind

    @classmethod
    def numbered(cls, kind: VertexKind, number: int) -> Vertex:
        """Return the vertex `number` of its kind."""
        return cls(f"{kind}{number}", kind)


HOST_OUT, HOST_IN = Vertex("host_out", VertexKind.HOST_OUT), Vertex("host_in", VertexKind.HOST_IN)
OUTSIDE = Vertex("network", VertexKind.NETWORK)
SPINE = Vertex("spine0", VertexKind.SPINE)
