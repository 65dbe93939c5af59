"""The constants of NCCL's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.calibration import Constant

_TUNING = "NCCL 2.30 src/graph/tuning.cc"
_TABLES = "public nccl-tests tables of V100 and A100 machines"

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
    Constant("nccl.launch_s", 4.3e-6, "s", "of one GPU's kernel; 34 us for 8 GPUs of one process", log_std=0.5),
    *_row("nccl.start.{}_s", "s", 1e-6, (6.0, 12.0, 10.0), f"{_TUNING} baseLat; {_TABLES}", 0.4),
    *_row("nccl.ring.hop.nvlink.{}_s", "s", 1e-6, (1.4, 4.5, 6.5), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.pcie.{}_s", "s", 1e-6, (1.3, 2.5, 4.5), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.ring.hop.net.{}_s", "s", 1e-6, (3.0, 8.0, 20.0), f"{_TUNING} hwLat; {_TABLES}", 0.6),
    *_row("nccl.tree.hop.nvlink.{}_s", "s", 1e-6, (1.3, 4.5, 6.0), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.pcie.{}_s", "s", 1e-6, (1.3, 2.5, 4.5), f"{_TUNING} hwLat; {_TABLES}", 0.5),
    *_row("nccl.tree.hop.net.{}_s", "s", 1e-6, (6.0, 9.0, 18.0), f"{_TUNING} hwLat; {_TABLES}", 0.6),
    Constant(
        "nccl.nic.latency_share",
        0.6,
        "1",
        "of the NIC latency that a plugin states to NCCL, per hop; p3dn, p4d",
        log_std=0.5,
    ),
    *_row("nccl.channel.{}", "B/s", 1e9, (3.5, 15.0, 25.0), f"one channel's threads; {_TABLES}", 0.4),
    *_row("nccl.efficiency.nvlink.{}", "1", 1.0, (0.2, 0.7, 1.05), f"LL moves a flag with each word; {_TABLES}", 0.25),
    *_row("nccl.efficiency.pcie.{}", "1", 1.0, (0.4, 0.8, 0.9), f"{_TABLES}", 0.25),
    *_row("nccl.efficiency.host.{}", "1", 1.0, (0.2, 0.4, 0.5), f"through host memory; {_TABLES}", 0.5),
    *_row("nccl.efficiency.net.{}", "1", 1.0, (0.4, 0.85, 0.95), f"{_TABLES}", 0.25),
    Constant("nccl.nvls.start_s", 3.6e-5, "s", f"{_TUNING} NVLS baseLat", log_std=0.4),
    Constant("nccl.nvls.efficiency", 0.8, "1", f"{_TUNING} nvlsEfficiency, Hopper", log_std=0.2),
    Constant("nccl.crossover.ll", 1.0, "1", "NCCL's belief of LL times this", log_std=0.3),
    Constant("nccl.crossover.ll128", 1.0, "1", "NCCL's belief of LL128 times this", log_std=0.3),
    Constant("nccl.crossover.tree", 1.0, "1", "NCCL's belief of trees times this", log_std=0.3),
)
