"""Constants as documented, before any table: the starting point of fits that leave a site out.

Latencies, channel rates and efficiencies are NCCL 2.30's `tuning.cc` (hwLat, baseLat, llMaxBws, perChMaxTreeBws); an
NVLink packet carries 128 of 144 bytes, and NCCL counts 20 of an NVLink's 25 GB/s; InfiniBand 95 % of its rate.
"""

from __future__ import annotations

from dataclasses import replace

from ddpsim.collectives.calibration import Calibration

_PROTOCOLS = ("ll", "ll128", "simple")
_ROWS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "start.{}_s": ((6.6e-6, 14e-6, 8.4e-6), (0.5, 0.5, 0.5)),
    "ring.hop.nvlink.{}_s": ((0.6e-6, 1.9e-6, 3.4e-6), (0.5, 0.5, 0.5)),
    "ring.hop.nvswitch.{}_s": ((0.6e-6, 1.9e-6, 3.4e-6), (0.5, 0.5, 0.5)),
    "ring.hop.pcie.{}_s": ((1e-6, 2.5e-6, 5.7e-6), (0.5, 0.5, 0.5)),
    "ring.hop.net.{}_s": ((2.7e-6, 4e-6, 14e-6), (0.5, 0.5, 0.5)),
    "tree.hop.nvlink.{}_s": ((0.6e-6, 1.25e-6, 4e-6), (0.5, 0.5, 0.5)),
    "tree.hop.nvswitch.{}_s": ((0.6e-6, 1.25e-6, 4e-6), (0.5, 0.5, 0.5)),
    "tree.hop.pcie.{}_s": ((1e-6, 1.9e-6, 4e-6), (0.5, 0.5, 0.5)),
    "tree.hop.net.{}_s": ((5e-6, 8.5e-6, 14e-6), (0.5, 0.5, 0.5)),
    "nic.latency.{}": ((0.7, 0.7, 1.0), (0.5, 0.5, 0.5)),
    "channel.{}": ((3.3e9, 20e9, 25e9), (0.5, 0.5, 0.2)),
    "efficiency.nvlink.{}": ((0.5, 0.92, 1.11), (0.4, 0.3, 0.1)),
    "efficiency.nvswitch.{}": ((0.5, 0.92, 1.0), (0.4, 0.3, 0.1)),
    "efficiency.pcie.{}": ((0.5, 0.92, 1.0), (0.4, 0.3, 0.1)),
    "efficiency.net.{}": ((0.5, 0.92, 0.95), (0.4, 0.3, 0.1)),
    "efficiency.host.{}": ((0.25, 0.4, 0.5), (0.4, 0.3, 0.3)),
}
_CROSSOVERS = ("crossover.ll", "crossover.ll128", "crossover.tree")
"""NCCL's own beliefs are known: a table that contradicts them is wrong about something else."""

_SINGLE = {
    "launch_s": (4e-6, 0.5),
    "ll_max_share.node": (1.0, 0.7),
    "ll_max_share.net": (1.0, 0.7),
    "ll_max_share.hopper": (1.0, 0.7),
    "hopper.latency": (1.0, 0.3),
    "nic.share.efa": (0.9, 0.3),
    "nic.share.tcp": (0.6, 0.5),
    "nic.share.slingshot": (0.9, 0.3),
    "nvls.start_s": (25e-6, 0.4),
    "nvls.efficiency": (0.85, 0.1),
}


def documented() -> Calibration:
    """Return NCCL's transport with every fitted constant at its documented value."""
    values = {f"nccl.{name}": pair for name, pair in _SINGLE.items()}
    for row, (medians, stds) in _ROWS.items():
        for protocol, median, std in zip(_PROTOCOLS, medians, stds, strict=True):
            values[f"nccl.{row.format(protocol)}"] = (median, std)
    priors = Calibration.priors("nccl")
    constants = priors.constants
    held = {
        name: replace(constants[name], value=1.0, log_std=None) for name in (f"nccl.{each}" for each in _CROSSOVERS)
    }
    changed = {
        name: replace(constants[name], value=value, log_std=std, source="documented")
        for name, (value, std) in values.items()
    }
    return replace(priors, constants={**constants, **changed, **held})
