"""The constants of NCCL's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.constant import Constant

_TUNING = "NCCL src/graph/tuning.cc"
_TABLES = "pooled fit to public nccl-tests tables; `python -m studies.accuracy.accuracy`"
_INSIDE = "fitted to tables inside a node, all others held; `python -m studies.accuracy.direct --constants`"
_NVLINK = "128 of 144 bytes of an NVLink packet are payload, NCCL counts 20 of 25 GB/s"

_SWITCHED = f"and of every NVLink from Ampere on; {_TUNING} and {_TABLES}"

_NIC_SHARES = {"efa": 0.724, "slingshot": 0.9}
"""Of kinds of NICs whose transport does not reach what InfiniBand and RoCE do of a port's rate: `NicKind.share`."""

_PROTOCOLS = ("ll", "ll128", "simple")
_SCALE = {"s": 1e-6, "B/s": 1e9, "1": 1.0}


def by_protocol(
    name: str, unit: str, values: tuple[float, float, float], source: str, log_std: float = 0.5
) -> list[Constant]:
    """Return one constant a protocol, of values in us, GB/s or 1; `name` has `{}` where the protocol stands."""
    return [
        Constant(name.format(protocol), value * _SCALE[unit], unit, source, log_std=log_std)
        for protocol, value in zip(_PROTOCOLS, values, strict=True)
    ]


def _share(name: str, value: float, source: str, log_std: float = 0.5, most: float | None = None) -> Constant:
    return Constant(f"nccl.{name}", value, "1", source, log_std=log_std, most=most)


NCCL_PRIORS: tuple[Constant, ...] = (
    Constant("nccl.version", 2030, "1", "the version modelled, major * 1000 + minor"),
    Constant("nccl.isolated_s", 4e-6, "s", "start of a kernel on an idle stream; estimate"),
    Constant(
        "nccl.launch_s", 4.28e-06, "s", f"of one GPU's kernel, by the process that launches; {_TABLES}", log_std=0.5
    ),
    *by_protocol("nccl.start.{}_s", "s", (8.08, 19.8, 11.4), f"{_TUNING} baseLat; {_TABLES}"),
    *by_protocol("nccl.ring.hop.nvlink.{}_s", "s", (1.02, 4.41, 5.99), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol("nccl.ring.hop.nvswitch.{}_s", "s", (0.946, 3.34, 5.42), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol("nccl.ring.hop.pcie.{}_s", "s", (0.916, 2.5, 3.82), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol("nccl.ring.hop.net.{}_s", "s", (3.37, 5.38, 14.7), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol("nccl.tree.hop.nvlink.{}_s", "s", (0.646, 1.29, 3.93), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol("nccl.tree.hop.nvswitch.{}_s", "s", (0.782, 0.914, 3.73), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol("nccl.tree.hop.pcie.{}_s", "s", (1.02, 1.9, 4.12), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol("nccl.tree.hop.net.{}_s", "s", (8.37, 8.72, 42.5), f"{_TUNING} hwLat; {_TABLES}"),
    *by_protocol(
        "nccl.nic.latency.{}",
        "1",
        (0.405, 0.447, 0.508),
        f"of the latency that the NIC's plugin states, a hop; {_TUNING} adds all of it, twice for Simple; {_TABLES}",
    ),
    *by_protocol("nccl.channel.{}", "B/s", (4.57, 29.5, 24.6), f"one channel's threads; {_TUNING}, {_TABLES}"),
    _share(
        "ll_max_share.node",
        0.416,
        f"of llMaxBws that LL reaches in a node before NCCL 2.13, or before Ampere; {_TUNING}, {_TABLES}",
    ),
    _share("ll_max_share.newer", 0.886, f"the same of NCCL 2.13 and later on Ampere; {_TUNING}, {_INSIDE}"),
    _share("ll_max_share.hopper", 1.04, f"the same on Hopper and later; {_TUNING}, {_TABLES}"),
    _share("ll_max_share.net", 1.0, f"the same between nodes, held at 1, NCCL's own, {_TUNING}"),
    _share(
        "hopper.latency", 0.917, f"starts and hops inside a node, of Hopper and later beside older GPUs; {_TABLES}", 0.3
    ),
    _share(
        "pull.hop", 1.34, f"hops by Simple over NVLink in a node, of GPUs that pull (compute capability 8.0); {_TABLES}"
    ),
    _share(
        "hopper.hop.ll128",
        0.679,
        f"hops by LL128 over NVLink in a node, of Hopper and later beside older GPUs; {_TABLES}",
    ),
    *by_protocol("nccl.efficiency.nvlink.{}", "1", (0.5, 0.866, 1.12), f"{_NVLINK}, before Ampere; {_TABLES}", 0.25),
    *by_protocol("nccl.efficiency.nvswitch.{}", "1", (0.5, 0.738, 0.91), _SWITCHED, 0.25),
    *by_protocol("nccl.efficiency.pcie.{}", "1", (0.496, 0.92, 0.951), f"{_TUNING} and {_TABLES}", 0.25),
    *by_protocol("nccl.efficiency.host.{}", "1", (0.263, 0.4, 0.64), f"{_TABLES}", 0.4),
    *by_protocol("nccl.efficiency.net.{}", "1", (0.493, 0.829, 0.934), f"{_TUNING} and {_TABLES}", 0.25),
    *(
        _share(f"nic.share.{kind}", value, f"of its rate that a port carries beside InfiniBand's; {_TABLES}", 0.3)
        for kind, value in _NIC_SHARES.items()
    ),
    Constant(
        "nccl.socket.thread",
        5e9,
        "B/s",
        "of one thread by sockets, whatever the port: NVIDIA/nccl issue 450, 4 to 6 GB/s of a port of 12.5; "
        "two ports of one thread each carry 9.4 (polaris_2node_8xA100_tcp_nccl2.18)",
        log_std=0.3,
    ),
    _share(
        "nic.lone",
        0.549,
        f"of the rate between nodes that one rank a node has, over RoCE and EFA; {_TUNING} (0.7 of 0.92 below two "
        f"ranks a node, before 2.9); {_TABLES}",
        0.3,
        most=1.0,
    ),
    Constant("nccl.nvls.start_s", 2.61e-05, "s", f"{_TUNING} baseLat; {_TABLES}", log_std=0.4),
    Constant(
        "nccl.nvls.round_bytes",
        17100,
        "B",
        f"what a head's chunk would have to be longer by to take the time that its round is idle; {_TABLES}",
        log_std=0.5,
    ),
    _share("nvls.efficiency", 0.792, f"{_TUNING} nvlsEfficiency; {_TABLES}", 0.2),
    _share("crossover.ll", 1.0, f"NCCL's belief of LL times this; 1 is NCCL's own, {_TUNING}", 0.1),
    _share("crossover.ll128", 1.0, f"NCCL's belief of LL128 times this; 1 is NCCL's own, {_TUNING}", 0.1),
    _share("crossover.tree", 1.0, f"NCCL's belief of trees times this; 1 is NCCL's own, {_TUNING}", 0.1),
)
