"""What NCCL counts a link as: effective bandwidths by hardware, one direction, in bytes per second; kinds of NICs.

Source: NCCL 2.30 `src/graph/topo.h` (`*_BW`, `*_NVLINK_BW`) and `topo.cc` (`ncclTopoGetInterCpuBw`, PCIe speed table).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ddpsim.topology.gpus.table import find_shipped_gpu, names


@dataclass(frozen=True, slots=True)
class NicKind:
    """What software reaches a kind of card through.

    Attributes:
        name: as machines' files write it.
        transport: NCCL's words for what carries the bytes.
        gpudirect: whether cards of the kind read and write GPU memory, where the GPU's driver allows it and both sit
            below one PCIe switch; else the bytes rest in host memory.
        in_order: whether memory is written in the order it was sent, which LL and LL128 rest on.
        share: which constant `nccl.nic.share.*` says what part of the port's rate it carries; None for all of it.
        family: of `ddpsim.prediction.doubts.spreads.COLLECTIVES`, with which its errors go.
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
"""What a card may be; `ethernet` is modelled as `tcp`, though it may be RoCE.

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


GB = 1e9
"""Bytes per second of one GB/s."""

PCIE_X16_BANDWIDTH = {1: 3 * GB, 2: 6 * GB, 3: 12 * GB, 4: 24 * GB, 5: 48 * GB, 6: 96 * GB}
"""PCIe generation to the bandwidth of sixteen lanes."""

SOCKET_BANDWIDTH = {
    "broadwell": 6 * GB,
    "skylake": 10 * GB,
    "sapphire-rapids": 22 * GB,
    "emerald-rapids": 40 * GB,
    "granite-rapids": 40 * GB,
    "amd": 16 * GB,
    "power9": 32 * GB,
    "arm": 6 * GB,
}
"""Processor model (or vendor, where all its models are alike) to the bandwidth between two sockets."""

DEFAULT_SOCKET_BANDWIDTH = 10 * GB
"""Of a processor that is not in the table: Skylake's, as NCCL takes it for Intel's."""

INTEL_P2P_OVERHEAD = 6 / 5
"""GPU to GPU through an Intel root complex moves this many bytes for each of the message."""

SOCKET_ROOM = 2.6
"""What the links between two sockets carry over what NCCL counts, by which it looks for rings.

Source: cards of two EPYC 9124 reach each other at 42.0 to 44.4 GB/s where NCCL counts 16 (voipmonitor/rtx6kpro
`hardware/epyc9124-direct-attach.md` @3634b44c); two and four L40S on two sockets move as much as their slots.
"""

SHARED_UPLINK = 1.5
"""Times as long that bytes through host memory take on the uplink of a switch below which several cards send and hear.

Chosen on four dies of K80, two a slot, 2.54 GB/s of the 3.84 that slots of their own would leave
(`tests/data/tables/azure_4xK80_pcie.csv`); judged on four A100 of a DGX without peer-to-peer:
`python -m studies.accuracy.staged`.
"""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Holds what a GPU's model implies.

    Attributes:
        sm: compute capability without its point, 70 for 7.0; of AMD's what HIP calls one, 94 for gfx942.
        pcie: its PCIe generation.
        nvlinks: NVLinks on the SXM form, 0 where it has none.
        bridge_links: NVLinks that bridges between cards give one, 0 where there are no bridges.
        peer_to_peer: False where the driver refuses it and transfers go through host memory, as on most GeForce cards.
        gcn: AMD's name of the architecture, `gfx942`; empty for another vendor's, whose collectives are NCCL's.
    """

    sm: int
    pcie: int
    nvlinks: int = 0
    bridge_links: int = 0
    peer_to_peer: bool = True
    gcn: str = ""


GCN = r"gfx[0-9]{2}[0-9a-f]{1,2}"
"""AMD's name of an architecture."""

MESHED_GCN = ("gfx94", "gfx95")
"""Architectures whose boards of eight join every two GPUs, by all seven xGMI links that a GPU has."""

_WITHOUT_DATA_SHEET = {"MI60": GpuModel(90, 4, gcn="gfx906")}
"""GPUs that NCCL's topology files name and no file in `gpus/` describes."""

_GENERATION_OF_MOST = 4
"""PCIe generation of a GPU whose file leaves it out: most of the table's."""


@cache
def gpu_facts(model: str) -> GpuModel | None:
    """Return what a GPU model, or an architecture of AMD, implies, by files in `gpus/`; None for one that has none."""
    if re.fullmatch(GCN, model):
        return GpuModel(int(model[3:5]), _GENERATION_OF_MOST, gcn=model)
    spec = find_shipped_gpu(model)
    if spec is None or spec.name != model or (spec.sm is None and spec.gcn is None):
        return _WITHOUT_DATA_SHEET.get(model)
    sm = spec.sm or int(str(spec.gcn)[3:5])
    return GpuModel(
        sm, spec.pcie or _GENERATION_OF_MOST, spec.nvlinks, spec.bridge_links, spec.peer_to_peer, spec.gcn or ""
    )


def gcn_of(model: str) -> str:
    """Return AMD's name of the architecture of a GPU model; empty for a GPU that is not AMD's."""
    facts = gpu_facts(model)
    return "" if facts is None else facts.gcn


def list_known_models() -> set[str]:
    """Return the GPUs of which something is known by their name."""
    return {*_WITHOUT_DATA_SHEET, *names()}


def nvlink_bandwidth(sm: int) -> float:
    """Return the bandwidth of one NVLink of a GPU of compute capability `sm`."""
    if sm >= 100:
        return 40.1 * GB
    if sm >= 90:
        return 20.6 * GB
    if sm in (86, 89):
        return 12 * GB
    return (20 if sm >= 70 else 18) * GB


def xgmi_bandwidth(gcn: str) -> float:
    """Return what RCCL counts one xGMI link as, by architecture: three quarters of 50 and of 64 GB/s.

    Source: ROCm/rccl src/graph/topo.h @08814b0a (MI200_XGMI_WIDTH, GFX94X_XGMI_WIDTH, GFX95X_XGMI_WIDTH).
    """
    if gcn == "gfx90a":
        return 36 * GB
    return (48 if gcn.startswith(("gfx94", "gfx95")) else 24) * GB


def socket_bandwidth(vendor: str, model: str) -> float | None:
    """Return the bandwidth between two sockets of a processor; None for one that is not in the table."""
    return SOCKET_BANDWIDTH.get(model.lower(), SOCKET_BANDWIDTH.get(vendor.lower()))
