"""Constants as documented, before any table: the starting point of fits that leave a site out.

Latencies, channel rates and efficiencies are NCCL 2.30's `tuning.cc` (hwLat, baseLat, llMaxBws, perChMaxTreeBws); an
NVLink packet carries 128 of 144 bytes, and NCCL counts 20 of an NVLink's 25 GB/s; InfiniBand 95 % of its rate. Half of
what LL sends are flags. Of a card's stated latency, all of which NCCL adds, half is taken: tables of cards that state
one agree on 0.4 to 0.5. A channel by LL: Volta's llMaxBws over the eight channels of four InfiniBand cards.
"""

from __future__ import annotations

from dataclasses import replace

from ddpsim.collectives.calibration import Calibration

_PROTOCOLS = ("ll", "ll128", "simple")
_ROWS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "start.{}_s": ((6.6e-6, 14e-6, 8.4e-6), (0.25, 0.25, 0.25)),
    "ring.hop.nvlink.{}_s": ((0.6e-6, 1.9e-6, 3.4e-6), (0.25, 0.25, 0.25)),
    "ring.hop.nvswitch.{}_s": ((0.6e-6, 1.9e-6, 3.4e-6), (0.25, 0.25, 0.25)),
    "ring.hop.pcie.{}_s": ((1e-6, 2.5e-6, 5.7e-6), (0.25, 0.25, 0.25)),
    "ring.hop.net.{}_s": ((2.7e-6, 4e-6, 14e-6), (0.25, 0.25, 0.25)),
    "tree.hop.nvlink.{}_s": ((0.6e-6, 1.25e-6, 4e-6), (0.25, 0.25, 0.25)),
    "tree.hop.nvswitch.{}_s": ((0.6e-6, 1.25e-6, 4e-6), (0.25, 0.25, 0.25)),
    "tree.hop.pcie.{}_s": ((1e-6, 1.9e-6, 4e-6), (0.25, 0.25, 0.25)),
    "tree.hop.net.{}_s": ((5e-6, 8.5e-6, 14e-6), (0.25, 0.25, 0.25)),
    "nic.latency.{}": ((0.5, 0.5, 0.5), (0.1, 0.1, 0.1)),
    "channel.{}": ((5e9, 20e9, 25e9), (0.25, 0.25, 0.1)),
    "efficiency.nvlink.{}": ((0.5, 0.92, 1.11), (0.05, 0.15, 0.05)),
    "efficiency.nvswitch.{}": ((0.5, 0.92, 1.0), (0.05, 0.15, 0.05)),
    "efficiency.pcie.{}": ((0.5, 0.92, 1.0), (0.05, 0.15, 0.05)),
    "efficiency.net.{}": ((0.5, 0.92, 0.95), (0.05, 0.15, 0.05)),
    "efficiency.host.{}": ((0.25, 0.4, 0.5), (0.15, 0.15, 0.15)),
}
"""By row of constants the documented values and how far fits go from them, as standard deviations of logarithms.

Of those, 0.25 for a latency, half of what one machine's calibration may move it by: chosen on the tables kept here,
each site judged by constants fitted without it (studies/accuracy/accuracy.md).
"""
_HELD = (
    "crossover.ll",
    "crossover.ll128",
    "crossover.tree",
    "ll_max_share.net",
)
"""NCCL's own beliefs are known: a table that contradicts them is wrong about something else."""

_SINGLE = {
    "launch_s": (4e-6, 0.25),
    "ll_max_share.node": (1.0, 0.35),
    "ll_max_share.newer": (1.0, 0.35),
    "ll_max_share.hopper": (1.0, 0.35),
    "hopper.latency": (1.0, 0.15),
    "pull.hop": (1.0, 0.5),
    "hopper.hop.ll128": (1.0, 0.5),
    "nic.lone": (0.76, 0.2),
    "nic.share.efa": (0.9, 0.15),
    "nic.share.slingshot": (0.9, 0.15),
    "socket.thread": (5e9, 0.15),
    "nvls.start_s": (25e-6, 0.2),
    "nvls.efficiency": (0.85, 0.05),
    "nvls.round_bytes": (9400.0, 0.5),
}


def make_documented_calibration() -> Calibration:
    """Return NCCL's transport with every fitted constant at its documented value."""
    values = {f"nccl.{name}": pair for name, pair in _SINGLE.items()}
    for row, (medians, stds) in _ROWS.items():
        for protocol, median, std in zip(_PROTOCOLS, medians, stds, strict=True):
            values[f"nccl.{row.format(protocol)}"] = (median, std)
    priors = Calibration.priors("nccl")
    constants = priors.constants
    held = {name: replace(constants[name], value=1.0, log_std=None) for name in (f"nccl.{each}" for each in _HELD)}
    changed = {
        name: replace(constants[name], value=value, log_std=std, source="documented")
        for name, (value, std) in values.items()
    }
    return replace(priors, constants={**constants, **changed, **held})
