"""The constants of NCCL's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.calibration import Constant

_TUNING = "NCCL 2.30 src/graph/tuning.cc"
_TABLES = "pooled fit to 22 public nccl-tests tables (docs/reference/accuracy.md)"
_NVLINK = "128 of 144 bytes of an NVLink packet are payload, NCCL counts 20 of 25 GB/s"

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
        "nccl.launch_s", 3.87e-06, "s", f"of one GPU's kernel, by the process that launches; {_TABLES}", log_std=0.5
    ),
    *_row("nccl.start.{}_s", "s", 1e-6, (6.1, 29.9, 8.01), f"{_TUNING} baseLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvlink.{}_s", "s", 1e-6, (0.631, 3.81, 8.23), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.nvswitch.{}_s", "s", 1e-6, (0.968, 4.16, 8.05), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.pcie.{}_s", "s", 1e-6, (0.813, 2.5, 2.19), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.net.{}_s", "s", 1e-6, (1.83, 6.35, 11.6), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvlink.{}_s", "s", 1e-6, (4.24, 3.07, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.nvswitch.{}_s", "s", 1e-6, (2.09, 0.947, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.pcie.{}_s", "s", 1e-6, (1.0, 1.9, 4.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.net.{}_s", "s", 1e-6, (3.19, 7.1, 14.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row(
        "nccl.nic.latency.{}",
        "1",
        1.0,
        (0.2, 1.0, 0.464),
        "of the latency that the NIC's plugin states, a hop",
        0.5,
    ),
    *_row("nccl.channel.{}", "B/s", 1e9, (2.97, 17.5, 25.1), f"one channel's threads; {_TUNING}, {_TABLES}", 0.5),
    Constant(
        "nccl.ll_max_share.node",
        0.335,
        "1",
        f"of llMaxBws that LL reaches in a node; {_TUNING}, {_TABLES}",
        log_std=0.5,
    ),
    Constant("nccl.ll_max_share.net", 0.241, "1", f"the same between nodes; {_TUNING}, {_TABLES}", log_std=0.5),
    *_row("nccl.efficiency.nvlink.{}", "1", 1.0, (0.5, 0.897, 1.12), f"{_NVLINK}; {_TABLES}", 0.25),
    *_row("nccl.efficiency.nvswitch.{}", "1", 1.0, (0.5, 0.819, 0.949), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.pcie.{}", "1", 1.0, (0.351, 0.8, 0.888), f"{_TUNING} and {_TABLES}", 0.25),
    *_row("nccl.efficiency.host.{}", "1", 1.0, (0.238, 0.4, 0.542), f"{_TABLES}", 0.4),
    *_row("nccl.efficiency.net.{}", "1", 1.0, (0.502, 0.768, 0.939), f"{_TUNING} and {_TABLES}", 0.25),
    Constant("nccl.nvls.start_s", 3.79e-05, "s", f"{_TUNING} baseLat; {_TABLES}", log_std=0.4),
    Constant("nccl.nvls.efficiency", 0.815, "1", f"{_TUNING} nvlsEfficiency; {_TABLES}", log_std=0.2),
    Constant("nccl.crossover.ll", 1.01, "1", "NCCL's belief of LL times this", log_std=0.1),
    Constant("nccl.crossover.ll128", 1.01, "1", "NCCL's belief of LL128 times this", log_std=0.1),
    Constant("nccl.crossover.tree", 1.01, "1", "NCCL's belief of trees times this", log_std=0.1),
)
