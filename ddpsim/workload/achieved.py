"""Achieved shares of a GPU's peaks: what training reaches of its arithmetic and of its memory's bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpsim.gpu_table import GpuSpec

_GROUPED_SHARE = 0.1
"""Of a dense convolution's share: ResNeXt-50 32x4d takes 145.5 ms where ResNet-50, with nearly equal operations, takes
97.3 ms (pytorch/pytorch benchmarks/distributed/ddp/README.md)."""

_RESNET = (
    "ResNet-50 on one V100: 329 images/s in pytorch/pytorch benchmarks/distributed/ddp/README.md, 367 in NVIDIA "
    "DeepLearningExamples ResNet-50 v1.5; on one A100: 938 in tf32 and 2470 in amp there, the latter with channels "
    "last, which is not torch's default, so that a lower share is taken"
)
_PRIOR = "prior: somewhat below the A100's shares, as arithmetic grew more than bandwidth"
_FP32 = {("conv", "fp32"): 0.77, ("gemm", "fp32"): 0.85}


@dataclass(frozen=True, slots=True)
class Achieved:
    """What training reaches on a GPU.

    Attributes:
        shares: of the peak, by (kind, precision).
        memory_share: of the bandwidth.
        kernel_s: least time of a kernel on the device, the gap to the next included.
        source: where they are from.
    """

    shares: Mapping[tuple[str, str], float]
    memory_share: float
    kernel_s: float
    source: str

    def share(self, kind: str, precision: str) -> float:
        """Return the achieved share of peak for operators of `kind`."""
        if kind == "grouped_conv":
            return self.shares["conv", precision] * _GROUPED_SHARE
        return self.shares[kind, precision]


def achieved(spec: GpuSpec) -> Achieved:
    """Return what training reaches on the GPU of `spec`; of one without `sm` what the newest do."""
    if spec.sm is not None and spec.sm < 80:
        shares = {**_FP32, ("conv", "amp"): 0.3, ("gemm", "amp"): 0.5}
        return Achieved(shares, 0.78 if spec.kind == "V100" else 0.75, 4e-6, _RESNET)
    like_a100 = spec.sm == 80
    conv, gemm_tf32, gemm_half = (0.35, 0.6, 0.55) if like_a100 else (0.3, 0.5, 0.5)
    shares = {**_FP32, ("conv", "tf32"): conv, ("gemm", "tf32"): gemm_tf32}
    for precision in ("amp", "bf16"):
        shares |= {("conv", precision): conv, ("gemm", precision): gemm_half}
    return Achieved(shares, 0.8, 3e-6 if like_a100 else 2.5e-6, _RESNET if like_a100 else _PRIOR)
