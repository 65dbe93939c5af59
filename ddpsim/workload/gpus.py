"""GPUs that workloads are estimated for: peaks from data sheets, achieved shares from published training runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ddpsim.errors import UnknownNameError

_GROUPED_SHARE = 0.1
"""Of a dense convolution's share: ResNeXt-50 32x4d takes 145.5 ms where ResNet-50, with nearly equal operations, takes
97.3 ms (pytorch/pytorch benchmarks/distributed/ddp/README.md)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the roofline needs of a GPU.

    Attributes:
        name: as topologies name it.
        memory_Bps: peak bandwidth of device memory, bytes per second.
        peak_flops: by precision, dense.
        shares: achieved share of the peak by (kind, precision).
        memory_share: achieved share of the bandwidth.
        kernel_s: least time of a kernel on the device, the gap to the next included.
        source, shares_source: where the figures are from.
    """

    name: str
    memory_Bps: float  # noqa: N815
    peak_flops: Mapping[str, float]
    shares: Mapping[tuple[str, str], float]
    memory_share: float
    kernel_s: float
    source: str
    shares_source: str

    def share(self, kind: str, precision: str) -> float:
        """Return the achieved share of peak for operators of `kind`."""
        if kind == "grouped_conv":
            return self.shares["conv", precision] * _GROUPED_SHARE
        return self.shares[kind, precision]


_RESNET = (
    "ResNet-50 on one V100: 329 images/s in pytorch/pytorch benchmarks/distributed/ddp/README.md, 367 in NVIDIA "
    "DeepLearningExamples ResNet-50 v1.5; on one A100: 938 in tf32 and 2470 in amp there, the latter with channels "
    "last, which is not torch's default, so that a lower share is taken"
)
_FP32 = {("conv", "fp32"): 0.77, ("gemm", "fp32"): 0.85}


def _plain(name: str, memory: float, fp32: float, memory_share: float = 0.75) -> Gpu:
    """Return a GPU whose matrix units torch does not use for fp32 tensors."""
    return Gpu(name, memory, {"fp32": fp32}, _FP32, memory_share, 4e-6, f"NVIDIA {name} data sheet", _RESNET)


def _tensor_core(
    name: str,
    memory: float,
    fp32: float,
    tf32: float,
    half: float,
    *,
    gap_s: float,
    like_a100: bool = False,
) -> Gpu:
    """Return a GPU with tensor cores for tf32 and for 16-bit types; peaks are dense."""
    conv, gemm_tf32, gemm_half = (0.35, 0.6, 0.55) if like_a100 else (0.3, 0.5, 0.5)
    shares = {**_FP32, ("conv", "tf32"): conv, ("gemm", "tf32"): gemm_tf32}
    for precision in ("amp", "bf16"):
        shares |= {("conv", precision): conv, ("gemm", precision): gemm_half}
    peaks = {"fp32": fp32, "tf32": tf32, "amp": half, "bf16": half}
    source = _RESNET if like_a100 else "prior: somewhat below the A100's shares, as arithmetic grew more than bandwidth"
    return Gpu(name, memory, peaks, shares, 0.8, gap_s, f"NVIDIA {name} data sheet, dense figures", source)


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            _plain("V100", 900e9, 15.7e12, memory_share=0.78),
            _plain("GP100", 717e9, 10.3e12),
            _plain("GTX1080Ti", 484e9, 11.3e12),
            _plain("RTX2080Ti", 616e9, 13.4e12),
            _plain("K80", 240e9, 4.1e12),
            _tensor_core("A100", 1555e9, 19.5e12, 156e12, 312e12, gap_s=3e-6, like_a100=True),
            _tensor_core("H100", 3350e9, 66.9e12, 494.7e12, 989.4e12, gap_s=2.5e-6),
            _tensor_core("H200", 4800e9, 66.9e12, 494.7e12, 989.4e12, gap_s=2.5e-6),
            _tensor_core("GH200", 4000e9, 66.9e12, 494.7e12, 989.4e12, gap_s=2.5e-6),
            _tensor_core("B200", 8000e9, 80e12, 1100e12, 2250e12, gap_s=2.5e-6),
        )
    }
)
"""By name. V100 and H100 are the SXM boards, the A100 the one of 40 GB; a K80 is one of its two processors."""

KNOWN_MODELS = (
    "GB200",
    "B200",
    "H200",
    "H100",
    "GH200",
    "A100",
    "V100",
    "GP100",
    "P100",
    "K80",
    "L40S",
    "L4",
    "A10G",
    "T4",
)


def gpu_model(driver_name: str) -> str:
    """Return a GPU's model as topologies name it, from what its driver calls it; unknown ones keep that name.

    >>> gpu_model("NVIDIA A100-PG509-200")
    'A100'
    """
    words = driver_name.replace("-", " ").split()
    for number, model in (("1080", "GTX1080Ti"), ("2080", "RTX2080Ti")):
        if number in words and "Ti" in words:
            return model
    known = (model for model in KNOWN_MODELS if model in words)
    return next(known, driver_name.removeprefix("NVIDIA ").replace(" ", "-"))


def gpu_named(name: str) -> Gpu:
    """Return the GPU called `name`, in any case.

    Raises:
        UnknownNameError: not among those with figures.
    """
    known = {gpu.lower(): gpu for gpu in GPUS}
    if name.lower() not in known:
        raise UnknownNameError.among("GPU", name, GPUS)
    return GPUS[known[name.lower()]]
