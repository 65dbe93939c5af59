"""Achieved shares of a GPU's peaks: what training reaches of its arithmetic and of its memory's bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddpsim.gpus.table import GpuSpec

_GROUPED_SHARE = 0.1
"""Of a dense convolution's share: ResNeXt-50 32x4d takes 145.5 ms where ResNet-50, with nearly equal operations, takes
97.3 ms (pytorch/pytorch benchmarks/distributed/ddp/README.md)."""

_RESNET = (
    "ResNet-50 on one V100: 329 images/s in pytorch/pytorch benchmarks/distributed/ddp/README.md, 367 in NVIDIA "
    "DeepLearningExamples ResNet-50 v1.5; on one A100: 938 in tf32 and 2470 in amp there, the latter with channels "
    "last, which is not torch's default, so that a lower share is taken"
)
_PRIOR = "prior: somewhat below the A100's shares, as arithmetic grew more than bandwidth"
_STEPS = "fitted to half of the published steps of studies/estimates, `python -m studies.estimates.estimates_fit`"


@dataclass(frozen=True, slots=True)
class PeakShares:
    """Shares of the peak that published steps reach, whatever the GPU; `estimates_fit` in studies derives them.

    Attributes:
        conv_fp32: of the plain units, by convolutions.
        gemm_fp32, gemm_fp32_wide: of the plain units, by products on multiprocessors of 64 of them, which have every
            second issue slot for loads, and of 128, which have none.
        conv: of matrix units, by convolutions.
        gemm_tf32, gemm_half: of matrix units, by products of tf32 and of 16-bit numbers in full waves of tiles.
        attention: of matrix units, by attention in one kernel; None is that of products.
        memory: of the bandwidth, by kernels of one pass.
        conv_capped, gemm_capped: of matrix units that are slowed by their maker, as GeForce's are.
        layout: factor on the traffic of a convolution on matrix units: channels first, cuDNN turns its tensors round.
    """

    conv_fp32: float = 0.896
    gemm_fp32: float = 0.689
    conv: float = 0.257
    gemm_tf32: float = 0.49
    gemm_half: float = 0.664
    conv_capped: float = 0.71
    gemm_capped: float = 1.0
    layout: float = 2.03
    gemm_fp32_wide: float = 0.689
    attention: float | None = None
    memory: float = 0.8


FUSED = PeakShares()
"""Of steps whose kernels a compiler or a library fused: norms, activations and optimizers of one kernel each."""

EAGER = PeakShares(
    conv_fp32=0.878,
    gemm_fp32=0.941,
    conv=0.257,
    gemm_tf32=0.578,
    gemm_half=0.315,
    conv_capped=0.71,
    gemm_capped=1.0,
    layout=2.04,
    gemm_fp32_wide=0.548,
    attention=0.45,
    memory=0.8,
)
"""Of eager mode, whose kernels are counted one by one. Attention's is a prior, of FlashAttention-2 on an A100 with
heads 64 wide (Dao 2023, figure 4: about 45 % of the peak, forward and backward together)."""

_WIDE = (61, 86, 89, 90, 100, 103, 120)
"""Compute capabilities whose multiprocessors have 128 units for fp32 (CUDA C Programming Guide, appendix of compute
capabilities); the others have 64."""


@dataclass(frozen=True, slots=True)
class AchievedPeaks:
    """These are the shares of its peaks that training reaches on a GPU.

    Attributes:
        shares: of the peak, by (kind, precision).
        memory_share: of the bandwidth.
        kernel_s: least time of a kernel on the device, the gap to the next included.
        source: where they are from.
        layout: factor on the traffic of a convolution on matrix units.
        multiprocessors: that products run on in waves of tiles; None where they reach their share whatever their size.
        eager: whether kernels are those that autocast dispatches, where they were counted.
    """

    shares: Mapping[tuple[str, str], float]
    memory_share: float
    kernel_s: float
    source: str
    layout: float = 1.0
    multiprocessors: int | None = None
    eager: bool = False

    def share(self, kind: str, precision: str) -> float:
        """Return the achieved share of peak for operators of `kind`."""
        if kind == "grouped_conv":
            return self.shares["conv", precision] * _GROUPED_SHARE
        return self.shares[kind, precision]

    def traffic_factor(self, kind: str, precision: str) -> float:
        """Return the factor on the traffic of operators of `kind`."""
        return self.layout if kind in ("conv", "grouped_conv") and precision != "fp32" else 1.0


def fitted(spec: GpuSpec, shares: PeakShares = EAGER) -> AchievedPeaks:
    """Return what published steps in eager mode reach on GPUs such as that of `spec`."""
    return replace(
        _of(spec, shares), multiprocessors=spec.multiprocessors, eager=True, source=f"{_STEPS}, those in eager mode"
    )


def fused(spec: GpuSpec, shares: PeakShares = FUSED) -> AchievedPeaks:
    """Return what published steps of fused kernels reach on GPUs such as that of `spec`."""
    return _of(spec, shares)


def _of(spec: GpuSpec, shares: PeakShares) -> AchievedPeaks:
    conv, capped = (shares.conv_capped, True) if _capped(spec) else (shares.conv, False)
    wide = spec.sm in _WIDE
    found = {("conv", "fp32"): shares.conv_fp32, ("gemm", "fp32"): shares.gemm_fp32_wide if wide else shares.gemm_fp32}
    for precision in ("tf32", "amp", "bf16"):
        gemm = shares.gemm_tf32 if precision == "tf32" else shares.gemm_half
        found |= {("conv", precision): conv, ("gemm", precision): shares.gemm_capped if capped else gemm}
    if shares.attention is not None:
        found |= {("attention", precision): shares.attention for precision in ("fp32", "tf32", "amp", "bf16")}
    return AchievedPeaks(found, shares.memory, as_shipped(spec).kernel_s, _STEPS, shares.layout)


def _capped(spec: GpuSpec) -> bool:
    """Return whether the matrix units do no more in tf32 than plain ones do in fp32."""
    return spec.peaks.get("tf32", float("inf")) <= 1.01 * spec.peaks.get("fp32", 0.0)


def as_shipped(spec: GpuSpec) -> AchievedPeaks:
    """Return the shares that the shipped workloads were estimated with, on a GPU without `sm` as on the newest.

    They stay as they are, for the shipped workloads do; what DDP copies goes by their share of the bandwidth.
    """
    if spec.sm is not None and spec.sm < 80:
        shares = {("conv", "fp32"): 0.77, ("gemm", "fp32"): 0.85, ("conv", "amp"): 0.3, ("gemm", "amp"): 0.5}
        return AchievedPeaks(shares, 0.78 if spec.kind == "V100" else 0.75, 4e-6, _RESNET)
    like_a100 = spec.sm == 80
    conv, gemm_tf32, gemm_half = (0.35, 0.6, 0.55) if like_a100 else (0.3, 0.5, 0.5)
    shares = {("conv", "fp32"): 0.77, ("gemm", "fp32"): 0.85, ("conv", "tf32"): conv, ("gemm", "tf32"): gemm_tf32}
    for precision in ("amp", "bf16"):
        shares |= {("conv", precision): conv, ("gemm", precision): gemm_half}
    return AchievedPeaks(shares, 0.8, 3e-6 if like_a100 else 2.5e-6, _RESNET if like_a100 else _PRIOR)
