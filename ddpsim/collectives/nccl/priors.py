"""The constants of NCCL's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.calibration import Constant

_TUNING = "NCCL src/graph/tuning.cc"
_TABLES = "pooled fit to public nccl-tests tables (docs/reference/accuracy.md)"
_NVLINK = "128 of 144 bytes of an NVLink packet are payload, NCCL counts 20 of 25 GB/s"

NIC_KINDS = ("efa", "tcp", "slingshot")
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
        "nccl.launch_s", 4.69e-06, "s", f"of one GPU's kernel, by the process that launches; {_TABLES}", log_std=0.5
    ),
    *_row("nccl.start.{}_s", "s", 1e-6, (7.14, 24.1, 7.06), f"{_TUNING} baseLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvlink.{}_s", "s", 1e-6, (1.23, 3.55, 7.94), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvswitch.{}_s", "s", 1e-6, (1.09, 2.86, 7.22), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.pcie.{}_s", "s", 1e-6, (0.811, 2.5, 2.87), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.net.{}_s", "s", 1e-6, (2.31, 7.56, 13.5), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvlink.{}_s", "s", 1e-6, (0.807, 9.59, 3.99), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvswitch.{}_s", "s", 1e-6, (0.947, 0.542, 2.74), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.pcie.{}_s", "s", 1e-6, (1.0, 1.9, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.net.{}_s", "s", 1e-6, (7.29, 9.58, 48.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row(
        "nccl.nic.latency.{}",
        "1",
        1.0,
        (0.195, 0.358, 0.476),
        f"of the latency that the NIC's plugin states, a hop; {_TUNING} adds all of it, twice for Simple; {_TABLES}",
        0.5,
    ),
    *_row("nccl.channel.{}", "B/s", 1e9, (6.17, 29.5, 22.7), f"one channel's threads; {_TUNING}, {_TABLES}", 0.5),
    Constant(
        "nccl.ll_max_share.node",
        0.379,
        "1",
        f"of llMaxBws that LL reaches in a node; {_TUNING}, {_TABLES}",
        log_std=0.5,
    ),
    Constant("nccl.ll_max_share.hopper", 1.27, "1", f"the same on Hopper and later; {_TUNING}, {_TABLES}", log_std=0.5),
    Constant(
        "nccl.hopper.latency",
        0.799,
        "1",
        f"starts and hops inside a node, of Hopper and later beside older GPUs; {_TABLES}",
        log_std=0.3,
    ),
    Constant("nccl.ll_max_share.net", 0.167, "1", f"the same between nodes; {_TUNING}, {_TABLES}", log_std=0.5),
    *_row("nccl.efficiency.nvlink.{}", "1", 1.0, (0.5, 0.712, 1.11), f"{_NVLINK}; {_TABLES}", 0.25),
    *_row("nccl.efficiency.nvswitch.{}", "1", 1.0, (0.528, 0.638, 0.944), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.pcie.{}", "1", 1.0, (0.363, 0.92, 0.896), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.host.{}", "1", 1.0, (0.266, 0.4, 0.546), f"{_TABLES}", 0.4),
    *_row("nccl.efficiency.net.{}", "1", 1.0, (0.501, 0.774, 0.963), f"{_TUNING} and {_TABLES}", 0.25),
    *(
        Constant(
            f"nccl.nic.share.{kind}",
            value,
            "1",
            f"of its rate that a port carries beside InfiniBand's; {_TABLES}",
            log_std=0.3,
        )
        for kind, value in zip(NIC_KINDS, (0.661, 0.6, 0.715), strict=True)
    ),
    Constant("nccl.nvls.start_s", 4e-05, "s", f"{_TUNING} baseLat; {_TABLES}", log_std=0.4),
    Constant("nccl.nvls.efficiency", 0.823, "1", f"{_TUNING} nvlsEfficiency; {_TABLES}", log_std=0.2),
    Constant("nccl.crossover.ll", 1.0, "1", f"NCCL's belief of LL times this; 1 is NCCL's own, {_TUNING}", log_std=0.1),
    Constant(
        "nccl.crossover.ll128", 1.0, "1", f"NCCL's belief of LL128 times this; 1 is NCCL's own, {_TUNING}", log_std=0.1
    ),
    Constant(
        "nccl.crossover.tree", 1.0, "1", f"NCCL's belief of trees times this; 1 is NCCL's own, {_TUNING}", log_std=0.1
    ),
)
