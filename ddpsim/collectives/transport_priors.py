"""The constants of each library's transport without measurements: NCCL, RCCL, gloo, Open MPI.

Each states its source; fitting replaces some (`ddpsim.calibrating.calibrate`). RCCL's are NCCL's of the same name where
AMD's links do not differ: xGMI stands in place of NVLink, and no switch reduces.
"""

from __future__ import annotations

from functools import partial

from ddpsim.collectives.constant import Constant, constant_as

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

_RCCL_SOURCE = (
    "ROCm/rccl src/graph/tuning.cc @9e22c79d (hwLat, baseLat); within what the tables of the fitted half allow; "
    "`python -m studies.amd`"
)
_NVLINKS = ("hop.nvlink", "hop.nvswitch", "efficiency.nvlink", "efficiency.nvswitch", "hopper", "pull", "nvls")
_NOT_OF_RCCL = ("version", *_NVLINKS, "ll_max_share")
_AAC8 = "one node of eight MI300X, 1 to 8 MiB (studies/amd/tables/aac8_mi300x_1node.csv)"


_RCCL_OWN = (
    Constant("rccl.version", 2026, "1", "the version of NCCL that the RCCL modelled follows, major * 1000 + minor"),
    *by_protocol("rccl.start.{}_s", "s", (12.0, 12.0, 17.0), _RCCL_SOURCE),
    *by_protocol("rccl.ring.hop.xgmi.{}_s", "s", (0.8, 0.8, 2.1), _RCCL_SOURCE),
    *by_protocol("rccl.tree.hop.xgmi.{}_s", "s", (0.9, 0.9, 2.3), _RCCL_SOURCE),
    *by_protocol("rccl.ring.hop.net.{}_s", "s", (9.5, 9.5, 15.1), _RCCL_SOURCE),
    *by_protocol("rccl.tree.hop.net.{}_s", "s", (10.5, 10.5, 25.0), _RCCL_SOURCE),
    *by_protocol("rccl.efficiency.xgmi.{}", "1", (0.25, 0.75, 0.93), f"by hand; Simple: {_AAC8}", 0.25),
    Constant("rccl.pairs.start_s", 20e-6, "s", f"MSCCL's all-pairs schedules, by hand: {_AAC8}", log_std=0.4),
    Constant("rccl.pairs.efficiency", 0.7, "1", f"of xGMI's rate by the same: {_AAC8}", log_std=0.2),
)
_RCCL_NAMED = {constant.name for constant in _RCCL_OWN}
RCCL_PRIORS: tuple[Constant, ...] = (
    *_RCCL_OWN,
    # NCCL's constants that mean the same of RCCL, as its own.
    *(
        each
        for each in map(partial(constant_as, "nccl", "rccl"), NCCL_PRIORS)
        if each.name not in _RCCL_NAMED and not any(part in each.name for part in _NOT_OF_RCCL)
    ),
)

_GLOO_SHAPED = "four ranks over shaped links, torch 2.13 (tc tbf at 200 Mbit/s and 1 Gbit/s, MTU 1500)"
_GLOO_LOOPBACK = "two ranks over loopback of a two-core machine, torch 2.13: 0.25 ms up to 256 KiB"

GLOO_PRIORS = (
    Constant("gloo.launch_s", 1.5e-4, "s", f"{_GLOO_LOOPBACK}; what is left after the steps", log_std=1.0),
    Constant("gloo.step_s", 5.0e-5, "s", f"{_GLOO_LOOPBACK}; per step, threads woken on both ends", log_std=1.0),
    Constant("gloo.round_trips", 1.1, "1", f"{_GLOO_SHAPED}; a step waits for the receiver's ready message"),
    Constant("gloo.efficiency.network", 1 / 1.046, "1", f"{_GLOO_SHAPED}; packet headers", log_std=0.02),
    Constant("gloo.efficiency.loopback", 1.0, "1", "links of kind loopback state what gloo reaches", log_std=1.0),
    Constant("gloo.reduce.bandwidth", 8e9, "B/s", "float32 sum by one core, three streams of a DDR4 channel"),
    Constant(
        "gloo.copy.bandwidth",
        2e9,
        "B/s",
        "what torch copies before a reduce-scatter and after an all-gather, into fresh memory: 0.5 to 5 GB/s beside an "
        "allreduce of the same bytes, shaped links, torch 2.13",
        log_std=0.7,
    ),
    Constant("gloo.host.bandwidth", 6e9, "B/s", "TCP between processes of a GPU node, all together; estimate"),
    Constant("gloo.staging.efficiency", 0.8, "1", "copies between pinned host memory and GPU over PCIe; estimate"),
)
"""Sources: gloo/allreduce.cc (segments, two in flight), torch ProcessGroupGloo.cpp (threads, staging)."""

_MPI_HERE = (
    "two ranks in shared memory of a busy two-core machine, Open MPI 4.1.4, mpi4py 4.1.2, torch 2.13, "
    "`python -m ddpexec microbench --backend mpi`: 0.14 ms for 4 KiB, 0.18 for 64 KiB"
)
_MPI_SHAPED = "as gloo's: four ranks over shaped links (tc tbf at 200 Mbit/s and 1 Gbit/s, MTU 1500); packet headers"

MPI_PRIORS = (
    Constant("mpi.launch_s", 1.2e-4, "s", f"{_MPI_HERE}; what is left after the steps, threads woken", log_std=1.0),
    Constant("mpi.step_s", 1.0e-5, "s", f"{_MPI_HERE}; a message's call and arrival", log_std=1.0),
    Constant("mpi.round_trips", 1.0, "1", "a message's way there and an answer's back, without a thread to be woken"),
    Constant("mpi.efficiency.network", 1 / 1.046, "1", _MPI_SHAPED, log_std=0.02),
    Constant("mpi.efficiency.loopback", 1.0, "1", "links of kind loopback state what a backend reaches", log_std=1.0),
    Constant("mpi.reduce.bandwidth", 8e9, "B/s", "as gloo's: float32 sum by one core"),
    Constant("mpi.host.bandwidth", 8e9, "B/s", "copies by shared memory between processes of a GPU node; estimate"),
    Constant("mpi.staging.efficiency", 0.8, "1", "as gloo's: copies between pinned host memory and GPU; estimate"),
)
