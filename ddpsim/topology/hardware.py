"""What NCCL counts a link as: effective bandwidths by hardware, one direction, in bytes per second.

Source: NCCL 2.30 `src/graph/topo.h` (`*_BW`, `*_NVLINK_BW`) and `topo.cc` (`ncclTopoGetInterCpuBw`, PCIe speed table).
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.gpus.table import shipped_gpu

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
    """What a GPU model implies.

    Attributes:
        sm: compute capability without its point, 70 for 7.0.
        pcie: its PCIe generation.
        nvlinks: NVLinks on the SXM form, 0 where it has none.
        peer_to_peer: False for GeForce cards, whose transfers go through host memory.
    """

    sm: int
    pcie: int
    nvlinks: int = 0
    peer_to_peer: bool = True


GPU_MODELS = {
    "K80": GpuModel(37, 3),
    "P100": GpuModel(60, 3, 4),
    "GP100": GpuModel(60, 3, 4),
    "P40": GpuModel(61, 3),
    "GTX1080Ti": GpuModel(61, 3, peer_to_peer=False),
    "V100": GpuModel(70, 3, 6),
    "T4": GpuModel(75, 3),
    "RTX2080Ti": GpuModel(75, 3, peer_to_peer=False),
    "A100": GpuModel(80, 4, 12),
    "A10": GpuModel(86, 4),
    "A40": GpuModel(86, 4),
    "RTX3090": GpuModel(86, 4, peer_to_peer=False),
    "RTX4090": GpuModel(89, 4, peer_to_peer=False),
    "L4": GpuModel(89, 4),
    "L40": GpuModel(89, 4),
    "L40S": GpuModel(89, 4),
    "H100": GpuModel(90, 5, 18),
    "H200": GpuModel(90, 5, 18),
    "GH200": GpuModel(90, 5, 18),
    "B200": GpuModel(100, 6, 18),
    "GB200": GpuModel(100, 6, 18),
    "MI60": GpuModel(0, 4),
}
"""GPU model to what it implies; a file may name another model and state `sm` itself."""


def gpu_facts(model: str) -> GpuModel | None:
    """Return what a GPU model implies: of `GPU_MODELS`, else of the table of GPUs; None for one in neither."""
    if model in GPU_MODELS:
        return GPU_MODELS[model]
    spec = shipped_gpu(model)
    if spec is None or spec.name != model or spec.sm is None:
        return None
    return GpuModel(spec.sm, spec.pcie or 4, spec.nvlinks, spec.peer_to_peer)


def nvlink_bandwidth(sm: int) -> float:
    """Return the bandwidth of one NVLink of a GPU of compute capability `sm`."""
    if sm >= 100:
        return 40.1 * GB
    if sm >= 90:
        return 20.6 * GB
    if sm in (86, 89):
        return 12 * GB
    return (20 if sm >= 70 else 18) * GB


def socket_bandwidth(vendor: str, model: str) -> float:
    """Return the bandwidth between two sockets of a processor; Skylake's for one that is not in the table."""
    return SOCKET_BANDWIDTH.get(model.lower(), SOCKET_BANDWIDTH.get(vendor.lower(), DEFAULT_SOCKET_BANDWIDTH))
