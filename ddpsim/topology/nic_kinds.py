"""Kinds of network cards and what each implies for NCCL's bytes between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NicKind:
    """A kind of card is what software reaches it through.

    Attributes:
        name: as machines' files write it.
        transport: NCCL's words for what carries the bytes.
        gpudirect: whether cards of the kind read and write GPU memory, where the GPU's driver allows it and both sit
            below one PCIe switch; else the bytes rest in host memory.
        in_order: whether memory is written in the order it was sent, which LL and LL128 rest on.
        share: which constant `nccl.nic.share.*` says what part of the port's rate it carries; None for all of it.
        family: of `ddpsim.doubts.spreads.COLLECTIVES`, with which its errors go.
        source: of `gpudirect` and `in_order`.
        lone: whether one rank a node was measured to reach about half of what several reach (`nccl.nic.lone`).
        threads: that move the bytes of a port's sockets, each `nccl.socket.thread` at most; 0 where no sockets do.
    """

    name: str
    transport: str
    gpudirect: bool
    share: str | None
    family: str
    source: str
    in_order: bool = True
    lone: bool = False
    threads: int = 0


_VERBS = "NCCL src/transport/net_ib.cc: verbs on both link layers, GPUDirect by nvidia-peermem or DMA-BUF"
_SOCKETS = "NCCL src/transport/net_socket.cc: host buffers only; "
_ONE_THREAD = f"{_SOCKETS}the proxy's own thread, one socket"

NIC_KINDS: Mapping[str, NicKind] = {
    kind.name: kind
    for kind in (
        NicKind("infiniband", "NET/IB", True, None, "InfiniBand or RoCE", _VERBS),
        NicKind("roce", "NET/IB", True, None, "InfiniBand or RoCE", _VERBS, lone=True),
        NicKind(
            "efa",
            "NET/OFI",
            True,
            "efa",
            "EFA",
            "aws-ofi-nccl src/platform-aws.cpp: GPUDirect from p4d on, NCCL_PROTO=simple before p5",
            in_order=False,
            lone=True,
        ),
        NicKind("slingshot", "NET/OFI", True, "slingshot", "Slingshot", "libfabric's cxi provider, FI_HMEM"),
        NicKind(
            "tcpx",
            "NET/FasTrak",
            True,
            None,
            "TCP",
            "GPUDirect-TCPX and TCPXO over gVNIC, Google Cloud's A3 machines: payload in GPU memory",
        ),
        NicKind("tcp", "NET/Socket", False, None, "TCP", _ONE_THREAD, threads=1),
        NicKind("ethernet", "NET/Socket", False, None, "TCP", _ONE_THREAD, threads=1),
        NicKind("ena", "NET/Socket", False, None, "TCP", f"{_SOCKETS}AWS's, 2 threads of 8 sockets", threads=2),
        NicKind("gvnic", "NET/Socket", False, None, "TCP", f"{_SOCKETS}Google's, 4 threads of one socket", threads=4),
    )
}
"""What a card may be; `ethernet` is `tcp` of which nobody said that it is not RoCE.

`lone` is of three sites; four nodes of one GPU over InfiniBand (Baskerville) reach all of it, and sockets (its 25 GbE)
too.
"""

RDMA_FROM = 100e9 / 8
"""Bytes per second of a port from which a card is likely to be one that can do RDMA.

ConnectX-5, E810, BCM57508, Thor and BlueField-2, whose fastest ports are of 100 Gb/s and more, all speak RoCE; clouds'
virtual cards of this rate (ENA, gVNIC, Azure's accelerated networking) do not.
"""


def nic_kind(name: str) -> NicKind:
    """Return the kind `name`, which a machine's file was checked for."""
    return NIC_KINDS[name]
