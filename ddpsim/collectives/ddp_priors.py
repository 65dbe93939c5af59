"""The costs of DDP beside wire time, by backend, without measurements.

The microbenchmark of ddpexec measures each of them; `ddpsim.simulation.ddp_costs` says what each one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ddpsim.collectives.constant import Constant, constant_as

_MEASURED = "measured on a 2-core machine, torch 2.13, gloo"
_GRAPH = (
    "measured on a 2-core machine, torch 2.13, inductor: 179 to 278 us; `python -m studies.host_costs.graph_splits`"
)
_CROSSING = "counted: one graph writes what crosses, the next reads it; `python -m studies.host_costs.graph_bytes`"
_CONFERRING = "measured on a 2-core machine, CPython 3.11, torch 2.13; `python -m studies.host_costs.order_costs`"
_CUDA = "prior: launch cost of a small CUDA kernel from Python or C++, 4 to 10 us"
_UNDER_LOAD = "measure `microbench --under-load`"
_CHANNELS = "measure `microbench --under-load` at several NCCL_MAX_NCHANNELS"
_IN_TURN = "measure one process on each GPU in turn"
_TABLE = "fitted to ResNet-50 and ResNeXt-50 of PyTorch's V100 table (studies/published/gpu-steps.md)"
_ESTIMATE = "estimate: NVIDIA/nccl issue 1433 reports more, and the V100 table cannot tell it"
_FENCES = (
    "before Hopper a fence of a collective waits for the writes of the computation beside it too (CUDA Programming "
    "Guide, memory synchronization domains); chosen on the five RTX A6000 of studies/published/gpu-steps.md, "
    "from Hopper on 1.2"
)
KERNEL_S = 2.5e-6
"""The shortest a CUDA kernel runs on the device."""

_OF_LIBRARIES: Mapping[str, tuple[Constant, ...]] = {
    "gloo": (
        Constant("gloo.ddp.hook_s", 3.0e-6, "s", f"{_MEASURED}: post-accumulate hook, stamp and small copy"),
        Constant("gloo.ddp.launch_s", 48e-6, "s", f"{_MEASURED}: dist.all_reduce(async_op=True) takes 26 to 70 us"),
        Constant("gloo.ddp.copy_Bps", 5e9, "B/s", f"{_MEASURED}: gradient times 1/world_size into its bucket"),
        Constant("gloo.ddp.copy_s", 0.0, "s", "on a CPU the copy of a tensor has no fixed cost beside its hook"),
        Constant("gloo.ddp.finish_s", 20e-6, "s", f"{_MEASURED}: wait for one bucket and write its views back"),
        Constant("gloo.ddp.forward_s", 60e-6, "s", f"{_MEASURED}: DDP's part of forward, without buffers"),
        Constant("gloo.ddp.buffer_s", 1.0e-6, "s", f"{_MEASURED}: flatten and copy back one buffer"),
        Constant("gloo.ddp.broadcast_s", 0.0, "s", "no prior: measured by `microbench`"),
        Constant("gloo.ddp.search_s", 3.0e-6, "s", f"{_MEASURED}: graph search, a parameter"),
        Constant("gloo.ddp.expect_s", 0.5e-6, "s", _CONFERRING),
        Constant("gloo.ddp.agree_s", 0.33e-6, "s", _CONFERRING),
        Constant("gloo.ddp.rebuild_s", 7.6e-6, "s", _CONFERRING),
        Constant("gloo.ddp.graph_s", 200e-6, "s", _GRAPH),
        Constant("gloo.ddp.graph_passes", 2.0, "1", _CROSSING),
        Constant("gloo.ddp.enter_s", 0.0, "s", "collectives run on threads of their own"),
        Constant("gloo.ddp.pace_spread", 0.0, "1", "every rank keeps the recorded pace"),
        Constant("gloo.ddp.copy_slowdown", 1.0, "1", "no prior: measured by `microbench`"),
        Constant("gloo.ddp.step_slowdown", 1.0, "1", "no prior: measured by `microbench`"),
        Constant("gloo.ddp.pair_s", 0.0, "s", "no prior: measured by `microbench`"),
        Constant("gloo.ddp.behind_s", 0.0, "s", "no prior: measured by `microbench`"),
        Constant("gloo.ddp.unit_s", 0.0, "s", "no prior: measured by `microbench`"),
        Constant("gloo.ddp.shared_compute_slowdown", 1.0, "1", "no prior: measure with `microbench --under-load`"),
        Constant("gloo.ddp.compute_slowdown", 1.0, "1", "no prior: measure with `microbench --under-load`"),
        Constant("gloo.ddp.communication_slowdown", 1.0, "1", "no prior: measure with `microbench --under-load`"),
    ),
    "nccl": (
        Constant("nccl.ddp.hook_s", 5.0e-6, "s", _CUDA),
        Constant("nccl.ddp.launch_s", 25e-6, "s", "prior: ProcessGroupNCCL allreduce, host side"),
        Constant(
            "nccl.ddp.copy_Bps",
            300e9,
            "B/s",
            "prior of an unknown GPU; of a known one, half its achieved memory bandwidth",
        ),
        Constant("nccl.ddp.copy_s", KERNEL_S, "s", "prior: least duration of a CUDA kernel on the device, 2 to 3 us"),
        Constant("nccl.ddp.finish_s", 10e-6, "s", _CUDA),
        Constant("nccl.ddp.forward_s", 60e-6, "s", "prior: DDP's part of forward, without buffers"),
        Constant("nccl.ddp.buffer_s", 10e-6, "s", "prior: flatten, broadcast and copy back one buffer, host side"),
        Constant("nccl.ddp.broadcast_s", 0.0, "s", "no thread of the host is woken for a broadcast"),
        Constant("nccl.ddp.search_s", 3.0e-6, "s", "prior: graph search, a parameter"),
        Constant("nccl.ddp.expect_s", 0.5e-6, "s", _CONFERRING),
        Constant("nccl.ddp.agree_s", 0.33e-6, "s", _CONFERRING),
        Constant("nccl.ddp.rebuild_s", 7.6e-6, "s", _CONFERRING),
        Constant("nccl.ddp.graph_s", 200e-6, "s", _GRAPH),
        Constant("nccl.ddp.graph_passes", 2.0, "1", _CROSSING),
        Constant(
            "nccl.ddp.enter_s", 0.0, "s", "not measured: `tail_share` of a kernel; a backward beside small collectives"
        ),
        Constant(
            "nccl.ddp.pace_spread", 0.0235, "1", f"{_TABLE}; Sinha et al. (SC 2022): 8 % between V100s; {_IN_TURN}"
        ),
        Constant(
            "nccl.ddp.node_spread",
            0.0,
            "1",
            f"what V100s of two nodes differ by is in pace_spread; {_IN_TURN}, of each node",
        ),
        Constant("nccl.ddp.copy_slowdown", 1.0, "1", "copies are the device's work, slowed as computation is"),
        Constant("nccl.ddp.step_slowdown", 1.0, "1", "no thread of the host is woken at a step"),
        Constant("nccl.ddp.shared_compute_slowdown", 1.014, "1", f"{_TABLE}; {_UNDER_LOAD}"),
        Constant("nccl.ddp.compute_slowdown", 1.0, "1", f"not measured: from channels and traffic; {_UNDER_LOAD}"),
        Constant("nccl.ddp.communication_slowdown", 1.0, "1", f"not measured: by the slowest hops; {_UNDER_LOAD}"),
        Constant(
            "nccl.ddp.channel_multiprocessors",
            1.0,
            "1",
            f"a channel's block shares its multiprocessor with no other kernel (NVIDIA/nccl issue 689); {_CHANNELS}",
        ),
        Constant("nccl.ddp.tail_share", 0.16, "1", f"{_TABLE}; {_CHANNELS}"),
        Constant(
            "nccl.ddp.late_kernels",
            1.0,
            "1",
            "prior: blocks get in when those of the kernel before them are out; a profile shows launch and start",
        ),
        Constant(
            "nccl.ddp.memory_passes",
            3.0,
            "1",
            "a ring's step reads what came and what is its own, and writes the sum (NCCL src/device/all_reduce.h); "
            "measure the traffic of an allreduce with Nsight Compute",
        ),
        Constant("nccl.ddp.nvlink_slowdown", 1.1, "1", f"{_ESTIMATE}; {_UNDER_LOAD}"),
        Constant("nccl.ddp.pcie_slowdown", 1.1, "1", f"{_ESTIMATE}; {_UNDER_LOAD}"),
        Constant("nccl.ddp.staged_slowdown", 3.0, "1", f"{_FENCES}; {_UNDER_LOAD}"),
        Constant("nccl.ddp.staged_net_slowdown", 1.2, "1", f"{_ESTIMATE}; {_UNDER_LOAD}"),
        Constant("nccl.ddp.net_slowdown", 1.1, "1", f"{_ESTIMATE}; {_UNDER_LOAD}"),
    ),
}


DDP_PRIORS: Mapping[str, tuple[Constant, ...]] = {
    **_OF_LIBRARIES,
    # Nothing of AMD's is measured; xGMI counts as NVLink.
    "rccl": tuple(map(partial(constant_as, "nccl", "rccl"), _OF_LIBRARIES["nccl"])),
    # Both run on the host; a call is of Python.
    "mpi": tuple(map(partial(constant_as, "gloo", "mpi"), _OF_LIBRARIES["gloo"])),
}

_DOMAINS = {"staged_slowdown": 1.2}
_IN_A_BOX = {"pace_spread": 0.001, "shared_compute_slowdown": 1.002, **_DOMAINS}
DEVICES: Mapping[int, Mapping[str, float]] = {
    80: {"node_spread": 0.044},
    90: {**_IN_A_BOX, "node_spread": 0.02},
    100: _IN_A_BOX,
    103: _IN_A_BOX,
    120: _DOMAINS,
}
"""How far devices and nodes of one model differ, and what devices of a machine cost each other, by compute capability.

In a box, Hopper's `pace_spread` is that of 38 H100 on hosts of their own, whose rates differ by 0.07 to 0.14 %:
`python -m studies.published.device_spread`. What devices of a machine cost each other is fitted beside it to two of
eight H100: `python -m studies.published.devices_fit 0.001`. Of the data centre's Blackwells there is one row of GB300,
which says that they cost each other nothing, and Hopper's are taken. From Hopper on NCCL's kernels have a memory
synchronization domain of their own, and what passes through host memory gets on beside computation: how much it is
slowed there is an estimate (NVIDIA/nccl issue 1433 has up to 1.4 between cards). What `devices_fit` prints of cards
of Ampere and Ada comes from boxes whose links are in doubt; theirs, and those of later generations, stay V100's. What
nodes differ by beyond that is fitted to steps of 8 to 128 GPUs, A100's and H100's each to its own:
`python -m studies.published.many_ranks --fit`.
"""

MODULES: Mapping[int, Mapping[str, float]] = {80: {"pace_spread": 0.008, "shared_compute_slowdown": 1.0}}
"""The same of modules with NVLinks alone: A100's draw 400 to 500 W, its cards in slots 250 to 300.

Fitted to the two boxes of A100 modules that structure may be chosen on (`python -m studies.published.devices_fit`).
Ranks' clocks of a third, which had no part in it, differ by 0.6 to 1.1 % (`python -m studies.published.device_spread`).
"""
