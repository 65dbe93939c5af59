"""What DDP itself costs a rank beside wire time, as constants of a calibration.

The microbenchmark of ddpexec measures each of them (key `ddp` of its file); without it the priors below hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ddpsim.collectives.calibration import Calibration, Constant
from ddpsim.collectives.execute import PRIORS as TRANSPORT_PRIORS
from ddpsim.errors import CalibrationError
from ddpsim.files import read_text
from ddpsim.workload.gpus import GPUS, Gpu

_MEASURED = "measured on a 2-core machine, torch 2.13, gloo"
_CUDA = "prior: launch cost of a small CUDA kernel from Python or C++, 4 to 10 us"
_KERNEL_S = 2.5e-6

DOUBT = 0.27
"""Half an 80 % band of the logarithm of a measured cost: 1.28 standard deviations of 0.21.

That is how copies scattered, 4.8 to 8.6 GB/s, in five microbenchmarks of one lab network, four ranks on two cores.
"""

PRIORS: dict[str, tuple[Constant, ...]] = {
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
        Constant("gloo.ddp.enter_s", 0.0, "s", "collectives run on threads of their own"),
        Constant("gloo.ddp.pace_spread", 0.0, "1", "every rank keeps the recorded pace"),
        Constant("gloo.ddp.copy_slowdown", 1.0, "1", "no prior: measured by `microbench`"),
        Constant("gloo.ddp.step_slowdown", 1.0, "1", "no prior: measured by `microbench`"),
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
        Constant("nccl.ddp.copy_s", _KERNEL_S, "s", "prior: least duration of a CUDA kernel on the device, 2 to 3 us"),
        Constant("nccl.ddp.finish_s", 10e-6, "s", _CUDA),
        Constant("nccl.ddp.forward_s", 60e-6, "s", "prior: DDP's part of forward, without buffers"),
        Constant("nccl.ddp.buffer_s", 10e-6, "s", "prior: flatten, broadcast and copy back one buffer, host side"),
        Constant("nccl.ddp.broadcast_s", 0.0, "s", "no thread of the host is woken for a broadcast"),
        Constant("nccl.ddp.search_s", 3.0e-6, "s", "prior: graph search, a parameter"),
        Constant(
            "nccl.ddp.enter_s",
            0.0,
            "s",
            "no prior: measure a backward beside many small collectives; fitted to a published table, see the docs",
        ),
        Constant(
            "nccl.ddp.pace_spread",
            0.0,
            "1",
            "no prior: measure one process on each GPU; Sinha et al. (SC 2022) report 8 % between V100s at full load",
        ),
        Constant("nccl.ddp.copy_slowdown", 1.0, "1", "copies are the device's work, slowed as computation is"),
        Constant("nccl.ddp.step_slowdown", 1.0, "1", "no thread of the host is woken at a step"),
        Constant("nccl.ddp.shared_compute_slowdown", 1.0, "1", "no prior: measure one process on each GPU at once"),
        Constant("nccl.ddp.compute_slowdown", 1.0, "1", "no prior: measure with `microbench --under-load`"),
        Constant("nccl.ddp.communication_slowdown", 1.0, "1", "no prior: measure with `microbench --under-load`"),
    ),
}


def all_priors() -> dict[str, tuple[Constant, ...]]:
    """Return the prior constants by backend: the transport's and those of DDP on it."""
    return {backend: (*transport, *PRIORS[backend]) for backend, transport in TRANSPORT_PRIORS.items()}


def at_end(calibration: Calibration, end: int) -> Calibration:
    """Return `calibration` with DDP's costs at the low (-1) or the high (1) end of their 80 % band.

    Only what was measured has one. A slow-down doubts what it adds.
    """
    factor = math.exp(end * DOUBT)
    moved = {}
    for constant in PRIORS[calibration.backend]:
        now = calibration.constants.get(constant.name)
        if now is None or not now.fitted:
            continue
        if now.name.endswith("_slowdown"):
            moved[now.name] = 1 + max(now.value - 1, 0.0) * factor
        else:
            moved[now.name] = now.value * (1 / factor if now.unit == "B/s" else factor)
    return calibration.with_values(moved, source="an end of its band")


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; constants it lacks keep their priors.

    Raises:
        CalibrationError: a file that cannot be read or is no calibration.
    """
    text = read_text(path, CalibrationError, "name a file that `ddpsim calibrate -o` wrote")
    return Calibration.from_text(text, all_priors(), str(path))


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of DDP on one backend.

    Attributes:
        hook_s: host time of one gradient's hook, without the copy of its bytes.
        launch_s: host time to launch one collective.
        copy_Bps: bytes of gradients a second copied into or out of buckets.
        copy_s: device time of copying one tensor, whatever its size.
        finish_s: host time of one bucket at the end of backward, without the copy of its bytes.
        forward_s: host time DDP adds to a forward.
        buffer_s: host time a buffer of the broadcast.
        broadcast_s: the least time of a broadcast of buffers, on ranks whose processors were busy just before.
        search_s: host time a parameter of the search for unused ones.
        enter_s: time that the start of a collective takes from the GPU's computation, whatever its size.
        pace_spread: standard deviation of the logarithm of computing time among devices of one model.
        copy_slowdown: factor on the time of hooks, copies and launches on a CPU beside a collective of the same rank.
        step_slowdown: factor on the time that threads take from step to step of a collective while ranks are busy.
        shared_compute_slowdown: factor on computing time where several ranks of one machine compute: CPU ranks share
            caches and memory, GPUs power and cooling.
        compute_slowdown: factor on computing time while a collective runs on the same rank.
        communication_slowdown: factor on a collective's time while some rank computes.
    """

    hook_s: float
    launch_s: float
    copy_Bps: float  # noqa: N815
    copy_s: float
    finish_s: float
    forward_s: float
    buffer_s: float
    broadcast_s: float
    search_s: float
    enter_s: float
    pace_spread: float
    copy_slowdown: float
    step_slowdown: float
    shared_compute_slowdown: float
    compute_slowdown: float
    communication_slowdown: float

    @classmethod
    def of(cls, backend: str, calibration: Calibration | None, device: str | Gpu | None = None) -> Costs:
        """Return the costs in `calibration`, and the backend's priors for what it lacks.

        Args:
            device: GPU, or its name, whose memory bandwidth bounds copies, where none was measured: whichever backend
                sends a bucket, a kernel fills it.
        """
        values = {constant.name: constant.value for constant in PRIORS[backend]}
        gpu = GPUS.get(device) if isinstance(device, str) else device
        if gpu is not None:
            values[f"{backend}.ddp.copy_Bps"] = gpu.achieved_Bps / 2
            values[f"{backend}.ddp.copy_s"] = _KERNEL_S
        if calibration is not None:
            values |= {name: c.value for name, c in calibration.constants.items() if name in values and c.fitted}
        return cls(**{name.removeprefix(f"{backend}.ddp."): value for name, value in values.items()})

    def copies_s(self, tensors: int, size_bytes: int) -> float:
        """Return the device time of copying `tensors` tensors of `size_bytes` in all."""
        return tensors * self.copy_s + size_bytes / self.copy_Bps
