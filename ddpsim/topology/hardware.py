"""What NCCL counts a link as: effective bandwidths by hardware, one direction, in bytes per second.

Source: NCCL 2.30 `src/graph/topo.h` (`*_BW`, `*_NVLINK_BW`) and `topo.cc` (`ncclTopoGetInterCpuBw`, PCIe speed table).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ddpsim.gpus.table import names, shipped_gpu

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


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Holds what a GPU's model implies.

    Attributes:
        sm: compute capability without its point, 70 for 7.0; of AMD's what HIP calls one, 94 for gfx942.
        pcie: its PCIe generation.
        nvlinks: NVLinks on the SXM form, 0 where it has none.
        peer_to_peer: False where the driver refuses it and transfers go through host memory, as on most GeForce cards.
        gcn: AMD's name of the architecture, `gfx942`; empty for another vendor's, whose collectives are NCCL's.
    """

    sm: int
    pcie: int
    nvlinks: int = 0
    peer_to_peer: bool = True
    gcn: str = ""


_WITHOUT_DATA_SHEET = {"MI60": GpuModel(0, 4)}
"""GPUs that NCCL's topology files name and no file in `gpus/` describes."""

_GENERATION_OF_MOST = 4
"""PCIe generation of a GPU whose file leaves it out: most of the table's."""

IMPORTED_MODELS = (
    *("K80", "P100", "GP100", "P40", "GTX1080Ti", "V100", "T4", "RTX2080Ti", "A100", "A10", "A40", "RTX3090"),
    *("RTX4090", "L4", "L40", "L40S", "H100", "H200", "GH200", "B200", "GB200", "MI60"),
    *("MI210", "MI250X", "MI300X", "MI325X", "MI355X"),
)
"""GPUs that an importer may be told a file's are."""


@cache
def gpu_facts(model: str) -> GpuModel | None:
    """Return what a GPU model implies, by its file in `gpus/`; None for one that has none."""
    spec = shipped_gpu(model)
    if spec is None or spec.name != model or (spec.sm is None and spec.gcn is None):
        return _WITHOUT_DATA_SHEET.get(model)
    sm = spec.sm or int(str(spec.gcn)[3:5])
    return GpuModel(sm, spec.pcie or _GENERATION_OF_MOST, spec.nvlinks, spec.peer_to_peer, gcn=spec.gcn or "")


def gcn_of(model: str) -> str:
    """Return AMD's name of the architecture of a GPU model; empty for a GPU that is not AMD's."""
    facts = gpu_facts(model)
    return "" if facts is None else facts.gcn


def known_models() -> set[str]:
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


def socket_bandwidth(vendor: str, model: str) -> float:
    """Return the bandwidth between two sockets of a processor; Skylake's for one that is not in the table."""
    return SOCKET_BANDWIDTH.get(model.lower(), SOCKET_BANDWIDTH.get(vendor.lower(), DEFAULT_SOCKET_BANDWIDTH))
