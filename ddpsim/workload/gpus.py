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


def _tensor_core_shares(*, conv: float, gemm_tf32: float, gemm_half: float) -> Mapping[tuple[str, str], float]:
    half = {("gemm", precision): gemm_half for precision in ("amp", "bf16")}
    convolutions = {("conv", precision): conv for precision in ("tf32", "amp", "bf16")}
    return {**_FP32, **convolutions, ("gemm", "tf32"): gemm_tf32, **half}


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            Gpu("V100", 900e9, {"fp32": 15.7e12}, _FP32, 0.78, 4e-6, "NVIDIA V100 SXM2 data sheet", _RESNET),
            Gpu(
                "A100",
                1555e9,
                {"fp32": 19.5e12, "tf32": 156e12, "amp": 312e12, "bf16": 312e12},
                _tensor_core_shares(conv=0.35, gemm_tf32=0.6, gemm_half=0.55),
                0.8,
                3e-6,
                "NVIDIA A100 SXM4 40 GB data sheet",
                _RESNET,
            ),
            Gpu(
                "H100",
                3350e9,
                {"fp32": 66.9e12, "tf32": 494.7e12, "amp": 989.4e12, "bf16": 989.4e12},
                _tensor_core_shares(conv=0.3, gemm_tf32=0.5, gemm_half=0.5),
                0.8,
                2.5e-6,
                "NVIDIA H100 SXM5 data sheet, dense figures",
                "prior: somewhat below the A100's shares, as arithmetic grew more than bandwidth",
            ),
            Gpu("GP100", 717e9, {"fp32": 10.3e12}, _FP32, 0.75, 4e-6, "NVIDIA Quadro GP100 data sheet", _RESNET),
            Gpu("GTX1080Ti", 484e9, {"fp32": 11.3e12}, _FP32, 0.75, 4e-6, "NVIDIA GTX 1080 Ti data sheet", _RESNET),
        )
    }
)


KNOWN_MODELS = ("GB200", "B200", "H200", "H100", "GH200", "A100", "V100", "GP100", "P100", "L40S", "L4", "A10G", "T4")


def gpu_model(driver_name: str) -> str:
    """Return a GPU's model as topologies name it, from what its driver calls it; unknown ones keep that name.

    >>> gpu_model("NVIDIA A100-PG509-200")
    'A100'
    """
    words = driver_name.replace("-", " ").split()
    if "1080" in words and "Ti" in words:
        return "GTX1080Ti"
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
