"""The constants of NCCL's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.calibration import Constant

_TUNING = "NCCL src/graph/tuning.cc"
_TABLES = "pooled fit to public nccl-tests tables (docs/reference/accuracy.md)"
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
        "nccl.launch_s", 4.74e-06, "s", f"of one GPU's kernel, by the process that launches; {_TABLES}", log_std=0.5
    ),
    *_row("nccl.start.{}_s", "s", 1e-6, (8.76, 27.6, 7.63), f"{_TUNING} baseLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvlink.{}_s", "s", 1e-6, (0.933, 3.22, 7.18), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvswitch.{}_s", "s", 1e-6, (0.983, 2.71, 6.79), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.pcie.{}_s", "s", 1e-6, (0.8, 2.5, 3.3), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.net.{}_s", "s", 1e-6, (2.66, 7.65, 14.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvlink.{}_s", "s", 1e-6, (0.672, 1.63, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvswitch.{}_s", "s", 1e-6, (0.902, 0.674, 3.13), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.pcie.{}_s", "s", 1e-6, (1.0, 1.9, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.net.{}_s", "s", 1e-6, (6.94, 9.36, 44.6), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row(
        "nccl.nic.latency.{}",
        "1",
        1.0,
        (0.203, 0.362, 0.499),
        "of the latency that the NIC's plugin states, a hop",
        0.5,
    ),
    *_row("nccl.channel.{}", "B/s", 1e9, (6.27, 32.3, 22.8), f"one channel's threads; {_TUNING}, {_TABLES}", 0.5),
    Constant(
        "nccl.ll_max_share.node",
        0.379,
        "1",
        f"of llMaxBws that LL reaches in a node; {_TUNING}, {_TABLES}",
        log_std=0.5,
    ),
    Constant("nccl.ll_max_share.hopper", 1.3, "1", f"the same on Hopper and later; {_TUNING}, {_TABLES}", log_std=0.5),
    Constant(
        "nccl.hopper.latency",
        0.722,
        "1",
        f"starts and hops inside a node, of Hopper and later beside older GPUs; {_TABLES}",
        log_std=0.3,
    ),
    Constant("nccl.ll_max_share.net", 0.166, "1", f"the same between nodes; {_TUNING}, {_TABLES}", log_std=0.5),
    *_row("nccl.efficiency.nvlink.{}", "1", 1.0, (0.5, 0.699, 1.1), f"{_NVLINK}; {_TABLES}", 0.25),
    *_row("nccl.efficiency.nvswitch.{}", "1", 1.0, (0.527, 0.647, 0.94), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.pcie.{}", "1", 1.0, (0.391, 0.92, 0.901), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.host.{}", "1", 1.0, (0.267, 0.4, 0.545), f"{_TABLES}", 0.4),
    *_row("nccl.efficiency.net.{}", "1", 1.0, (0.5, 0.783, 0.961), f"{_TUNING} and {_TABLES}", 0.25),
    *(
        Constant(
            f"nccl.card.{kind}",
            value,
            "1",
            f"of its rate that a port carries beside InfiniBand's; {_TABLES}",
            log_std=0.3,
        )
        for kind, value in zip(CARDS, (0.662, 0.6, 0.621), strict=True)
    ),
    Constant("nccl.nvls.start_s", 4.09e-05, "s", f"{_TUNING} baseLat; {_TABLES}", log_std=0.4),
    Constant("nccl.nvls.efficiency", 0.828, "1", f"{_TUNING} nvlsEfficiency; {_TABLES}", log_std=0.2),
    Constant("nccl.crossover.ll", 1.0, "1", "NCCL's belief of LL times this", log_std=0.1),
    Constant("nccl.crossover.ll128", 1.0, "1", "NCCL's belief of LL128 times this", log_std=0.1),
    Constant("nccl.crossover.tree", 1.0, "1", "NCCL's belief of trees times this", log_std=0.1),
)
