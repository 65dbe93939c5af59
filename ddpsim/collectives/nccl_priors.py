"""The constants of NCCL's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.calibration import Constant

_TUNING = "NCCL 2.30 src/graph/tuning.cc"
_TABLES = "pooled fit to 22 public nccl-tests tables (docs/reference/accuracy.md)"
_NVLINK = "128 of 144 bytes of an NVLink packet are payload, NCCL counts 20 of 25 GB/s"

CARDS = ("efa", "tcp", "slingshot")
"""Kinds of NICs whose transport does not reach what InfiniBand and RoCE do."""

_PROTOCOLS = ("ll", "ll128", "simple")


def _row(
    name: str, unit: str, scale: float, values: tuple[float, float, float], source: str, log_std: float
) -> list[Constant]:
    """Return one constant a protocol; `name` has `{}` where the protocol stands."""
    return [
        Constant(name.format(protocol), value * scale, unit, source, log_std=log_std)
        for protocol, value in zip(_PROTOCOLS, values, strict=True)
    ]


PRIORS: tuple[Constant, ...] = (
    Constant("nccl.version", 2030, "1", "the version modelled, major * 1000 + minor"),
    Constant("nccl.isolated_s", 4e-6, "s", "start of a kernel on an idle stream; estimate"),
    Constant(
        "nccl.launch_s", 3.89e-06, "s", f"of one GPU's kernel, by the process that launches; {_TABLES}", log_std=0.5
    ),
    *_row("nccl.start.{}_s", "s", 1e-6, (7.0, 36.8, 8.4), f"{_TUNING} baseLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvlink.{}_s", "s", 1e-6, (0.683, 2.75, 7.26), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvswitch.{}_s", "s", 1e-6, (0.913, 3.27, 7.33), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.pcie.{}_s", "s", 1e-6, (0.715, 2.5, 2.17), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.net.{}_s", "s", 1e-6, (2.7, 7.33, 14.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvlink.{}_s", "s", 1e-6, (4.59, 1.25, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvswitch.{}_s", "s", 1e-6, (2.06, 1.13, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.pcie.{}_s", "s", 1e-6, (1.0, 1.9, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.net.{}_s", "s", 1e-6, (3.05, 6.88, 14.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row(
        "nccl.nic.latency.{}",
        "1",
        1.0,
        (0.196, 1.0, 0.51),
        "of the latency that the NIC's plugin states, a hop",
        0.5,
    ),
    *_row("nccl.channel.{}", "B/s", 1e9, (3.06, 20.2, 25.0), f"one channel's threads; {_TUNING}, {_TABLES}", 0.5),
    Constant(
        "nccl.ll_max_share.node",
        0.328,
        "1",
        f"of llMaxBws that LL reaches in a node; {_TUNING}, {_TABLES}",
        log_std=0.5,
    ),
    Constant("nccl.ll_max_share.net", 0.242, "1", f"the same between nodes; {_TUNING}, {_TABLES}", log_std=0.5),
    *_row("nccl.efficiency.nvlink.{}", "1", 1.0, (0.5, 0.852, 1.12), f"{_NVLINK}; {_TABLES}", 0.25),
    *_row("nccl.efficiency.nvswitch.{}", "1", 1.0, (0.5, 0.763, 0.954), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.pcie.{}", "1", 1.0, (0.355, 0.92, 0.889), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.host.{}", "1", 1.0, (0.236, 0.4, 0.542), f"{_TABLES}", 0.4),
    *_row("nccl.efficiency.net.{}", "1", 1.0, (0.5, 0.755, 0.941), f"{_TUNING} and {_TABLES}", 0.25),
    *(
        Constant(
            f"nccl.card.{kind}",
            value,
            "1",
            f"of its rate that a port carries beside InfiniBand's; {_TABLES}",
            log_std=0.3,
        )
        for kind, value in zip(CARDS, (0.9, 0.6, 0.9), strict=True)
    ),
    Constant("nccl.nvls.start_s", 3.79e-05, "s", f"{_TUNING} baseLat; {_TABLES}", log_std=0.4),
    Constant("nccl.nvls.efficiency", 0.812, "1", f"{_TUNING} nvlsEfficiency; {_TABLES}", log_std=0.2),
    Constant("nccl.crossover.ll", 1.04, "1", "NCCL's belief of LL times this", log_std=0.1),
    Constant("nccl.crossover.ll128", 0.991, "1", "NCCL's belief of LL128 times this", log_std=0.1),
    Constant("nccl.crossover.tree", 1.08, "1", "NCCL's belief of trees times this", log_std=0.1),
)
