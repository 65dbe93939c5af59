"""GPUs that workloads are estimated for: peaks from data sheets, achieved shares from published training runs.

Start at `AchievedGpu`, a data sheet with the shares that kernels reach; `PeakShares` has the fitted figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ddpsim.common.documents.fields import document_of
from ddpsim.common.errors import UnknownNameError, WorkloadError
from ddpsim.topology.gpus.table import GpuSpec, find_by_driver_name, find_shipped_gpu, gpu_from, names

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
    conv_fp32=0.934,
    gemm_fp32=0.959,
    conv=0.296,
    gemm_tf32=0.53,
    gemm_half=0.592,
    conv_capped=0.717,
    gemm_capped=1.0,
    layout=1.67,
    gemm_fp32_wide=0.601,
    attention=0.45,
    memory=0.683,
)
"""Of eager mode, whose kernels are counted one by one. Attention's is a prior, of FlashAttention-2 on an A100 with
heads 64 wide (Dao 2023, figure 4: about 45 % of the peak, forward and backward together). Products in 16 bits were
fitted to steps of fused kernels too, which call the same ones."""

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
        cache_bytes: second-level, in which a kernel of one pass finds what the one before wrote; None is none.
    """

    shares: Mapping[tuple[str, str], float]
    memory_share: float
    kernel_s: float
    source: str
    layout: float = 1.0
    multiprocessors: int | None = None
    eager: bool = False
    cache_bytes: float | None = None

    def share(self, kind: str, precision: str) -> float:
        """Return the achieved share of peak for operators of `kind`."""
        if kind == "grouped_conv":
            return self.shares["conv", precision] * _GROUPED_SHARE
        return self.shares[kind, precision]

    def traffic_factor(self, kind: str, precision: str) -> float:
        """Return the factor on the traffic of operators of `kind`."""
        return self.layout if kind in ("conv", "grouped_conv") and precision != "fp32" else 1.0


def fitted_peaks(spec: GpuSpec, shares: PeakShares = EAGER) -> AchievedPeaks:
    """Return what published steps in eager mode reach on GPUs such as that of `spec`."""
    return replace(
        make_peaks(spec, shares),
        multiprocessors=spec.multiprocessors,
        eager=True,
        cache_bytes=spec.cache,
        source=f"{_STEPS}, those in eager mode",
    )


def make_peaks(spec: GpuSpec, shares: PeakShares) -> AchievedPeaks:
    """Return what kernels reach on GPUs such as that of `spec`, caches and waves of tiles left out."""
    conv, capped = (shares.conv_capped, True) if _is_capped(spec) else (shares.conv, False)
    wide = spec.sm in _WIDE
    ratios = {("conv", "fp32"): shares.conv_fp32, ("gemm", "fp32"): shares.gemm_fp32_wide if wide else shares.gemm_fp32}
    for precision in ("tf32", "amp", "bf16"):
        gemm = shares.gemm_tf32 if precision == "tf32" else shares.gemm_half
        ratios |= {("conv", precision): conv, ("gemm", precision): shares.gemm_capped if capped else gemm}
    if shares.attention is not None:
        ratios |= {("attention", precision): shares.attention for precision in ("fp32", "tf32", "amp", "bf16")}
    return AchievedPeaks(ratios, shares.memory, shipped_peaks(spec).kernel_s, _STEPS, shares.layout)


def _is_capped(spec: GpuSpec) -> bool:
    """Return whether the matrix units do no more in tf32 than plain ones do in fp32."""
    return spec.peaks.get("tf32", float("inf")) <= 1.01 * spec.peaks.get("fp32", 0.0)


def shipped_peaks(spec: GpuSpec) -> AchievedPeaks:
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


@dataclass(frozen=True, slots=True)
class AchievedGpu:
    """A GPU as the roofline sees it: the peaks of its data sheet, and the shares of them that training reaches."""

    spec: GpuSpec
    achieved: AchievedPeaks

    @classmethod
    def of(cls, spec: GpuSpec) -> AchievedGpu:
        """Return the GPU of `spec` with the shares of the shipped workloads."""
        return cls(spec, shipped_peaks(spec))

    def with_fitted(self) -> AchievedGpu:
        """Return this GPU with the shares that published steps in eager mode reach, for an estimate of today."""
        return AchievedGpu(self.spec, fitted_peaks(self.spec))

    def with_fused(self) -> AchievedGpu:
        """Return this GPU with the shares of fused kernels; one with the shares of shipped workloads keeps them."""
        return AchievedGpu(self.spec, make_peaks(self.spec, FUSED)) if self.achieved.eager else self

    @property
    def name(self) -> str:
        """As topologies name it, or a form of theirs."""
        return self.spec.name

    @property
    def memory_Bps(self) -> float:  # noqa: N802
        """Peak bandwidth of device memory, bytes per second."""
        return self.spec.memory_bandwidth

    @property
    def achieved_Bps(self) -> float:  # noqa: N802
        """Achieved bandwidth of device memory, bytes per second."""
        return self.spec.memory_bandwidth * self.achieved.memory_share

    @property
    def peak_flops(self) -> Mapping[str, float]:
        """Dense operations per second by precision."""
        return self.spec.peaks

    @property
    def source(self) -> str:
        """Where the data sheet's figures are from."""
        return self.spec.sources[0]

    @property
    def shipped(self) -> bool:
        """Whether it is in the table, rather than described by a user."""
        return find_shipped_gpu(self.name) == self.spec

    def figures(self) -> Mapping[str, object]:
        """Return its figures as a GPU's file states them, for a workload that is to be read without that file."""
        file = document_of(self.spec)
        stated = ("name", "memory_bandwidth", "peaks", "memory", "cache", "sm", "multiprocessors")
        return {key: file[key] for key in stated if key in file}

    def achieved_flops(self, kind: str, precision: str) -> float:
        """Return the operations per second that operators of `kind` reach."""
        return self.peak_flops[precision] * self.achieved.share(kind, precision)


def has_peak(spec: GpuSpec, precision: str, autocast_dtype: str | None) -> bool:
    """Return whether a GPU has the peaks that a step in `precision` needs.

    Autocast to bfloat16 needs that of `bf16` too: a GPU whose matrix units take float16 alone emulates it without them.
    """
    casts_to_bfloat16 = precision == "amp" and autocast_dtype == "bfloat16"
    return precision in spec.peaks and ("bf16" in spec.peaks or not casts_to_bfloat16)


def check_peak(gpu: AchievedGpu, precision: str, autocast_dtype: str | None, place: str, remedy: str) -> None:
    """Refuse a GPU that lacks a peak which a step needs; see `has_peak`.

    Args:
        gpu: what the step is to run on.
        precision: of the step.
        autocast_dtype: that its autocast casts to, as `Workload` has it.
        place: what names the step in errors.
        remedy: where it is the precision itself that the GPU lacks.

    Raises:
        WorkloadError: it lacks one.
    """
    if has_peak(gpu.spec, precision, autocast_dtype):
        return
    what = f"{gpu.name} has no figures for precision {precision!r}"
    if precision in gpu.peak_flops:
        what = f"{gpu.name} has no figures for precision 'bf16', to which the step's autocast casts"
        remedy = "use torch.autocast(dtype=torch.float16) with a GradScaler there, or another GPU"
    raise WorkloadError(what, place=place, remedy=remedy)


class _GpuTable(Mapping[str, AchievedGpu]):
    """The shipped GPUs by name; each is read when it is asked for."""

    def __getitem__(self, name: str) -> AchievedGpu:
        spec = find_shipped_gpu(name) if name in names() else None
        if spec is None:
            raise KeyError(name)
        return AchievedGpu.of(spec)

    def __iter__(self) -> Iterator[str]:
        return iter(names())

    def __len__(self) -> int:
        return len(names())


GPUS: Mapping[str, AchievedGpu] = _GpuTable()
"""By name. V100, A100 and H100 are the SXM boards with the least memory; a K80 is one of its two processors."""


def gpu_model(driver_name: str) -> str:
    """Return a GPU's name in the table, from what its driver calls it; unknown ones keep that name.

    >>> gpu_model("NVIDIA A100-PG509-200")
    'A100'
    """
    spec = find_by_driver_name(driver_name)
    return driver_name.removeprefix("NVIDIA ").replace(" ", "-") if spec is None else spec.name


def kind_of(device: str) -> str:
    """Return what topologies call a device's kind: `A100` for each form of an A100; others are their own."""
    spec = find_shipped_gpu(device)
    return device if spec is None else spec.kind


def gpu_named(name: str) -> AchievedGpu:
    """Return the GPU called `name`, in any case.

    Raises:
        UnknownNameError: not in the table.
    """
    spec = find_shipped_gpu(name)
    if spec is None:
        error = UnknownNameError.among("GPU", name, GPUS)
        known = str(error.remedy).rstrip("?")
        described = "or describe it: `gpu_file`, or `memory_bandwidth` with `peak`"
        raise UnknownNameError(error.message, remedy=f"{known}; {described}")
    return AchievedGpu.of(spec)


def gpu_of(device: str | None, provenance: Mapping[str, object]) -> AchievedGpu | None:
    """Return the GPU `device` of a workload as its provenance describes it, else of the table; None of no GPU.

    Raises:
        InputError: figures in the provenance that are no GPU's; the table's are not taken in their place.
    """
    if device is None:
        return None
    described = provenance.get("gpu_figures")
    if described is not None:
        if not isinstance(described, Mapping):
            what, remedy = f"{described!r} is no GPU's figures", "estimate the workload again, or leave the key out"
            raise WorkloadError(what, place=f"workload of {device}: provenance.gpu_figures", remedy=remedy)
        return AchievedGpu.of(gpu_from(described, f"workload of {device}: provenance.gpu_figures"))
    spec = find_shipped_gpu(device)
    return None if spec is None else AchievedGpu.of(spec)
