"""GPUs that workloads are estimated for: peaks from data sheets, achieved shares from published training runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddpsim.errors import UnknownNameError, WorkloadError
from ddpsim.gpus.table import GpuSpec, gpu_from, named_by_driver, names, shipped_gpu
from ddpsim.units import format_bandwidth
from ddpsim.workload.achieved import AchievedPeaks, as_shipped, fitted, fused


@dataclass(frozen=True, slots=True)
class AchievedGpu:
    """A GPU as the roofline sees it: the peaks of its data sheet, and the shares of them that training reaches."""

    spec: GpuSpec
    achieved: AchievedPeaks

    @classmethod
    def of(cls, spec: GpuSpec) -> AchievedGpu:
        """Return the GPU of `spec` with the shares of the shipped workloads."""
        return cls(spec, as_shipped(spec))

    def fitted(self) -> AchievedGpu:
        """Return this GPU with the shares that published steps in eager mode reach, for an estimate of today."""
        return AchievedGpu(self.spec, fitted(self.spec))

    def fused(self) -> AchievedGpu:
        """Return this GPU with the shares of fused kernels; one with the shares of shipped workloads keeps them."""
        return AchievedGpu(self.spec, fused(self.spec)) if self.achieved.eager else self

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
        return self.spec.peaks  # type: ignore[return-value]

    @property
    def source(self) -> str:
        """Where the data sheet's figures are from."""
        return self.spec.sources[0]

    @property
    def shipped(self) -> bool:
        """Whether it is in the table, rather than described by a user."""
        return shipped_gpu(self.name) == self.spec

    def figures(self) -> Mapping[str, object]:
        """Return its figures as a GPU's file states them, for a workload that is to be read without that file."""
        spec = self.spec
        figures: dict[str, object] = {"name": spec.name, "memory_bandwidth": format_bandwidth(spec.memory_bandwidth)}
        figures["peaks"] = {name: f"{peak / 1e12:.12g}TFLOP/s" for name, peak in self.peak_flops.items()}
        if spec.memory is not None:
            figures["memory"] = f"{spec.memory:.12g}B"
        figures |= {key: value for key in ("sm", "multiprocessors") if (value := getattr(spec, key)) is not None}
        return figures

    def achieved_flops(self, kind: str, precision: str) -> float:
        """Return the operations per second that operators of `kind` reach."""
        return self.peak_flops[precision] * self.achieved.share(kind, precision)


class _GpuTable(Mapping[str, AchievedGpu]):
    """The shipped GPUs by name; each is read when it is asked for."""

    def __getitem__(self, name: str) -> AchievedGpu:
        spec = shipped_gpu(name) if name in names() else None
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
    spec = named_by_driver(driver_name)
    return driver_name.removeprefix("NVIDIA ").replace(" ", "-") if spec is None else spec.name


def kind_of(device: str) -> str:
    """Return what topologies call a device's kind: `A100` for each form of an A100; others are their own."""
    spec = shipped_gpu(device)
    return device if spec is None else spec.kind


def gpu_named(name: str) -> AchievedGpu:
    """Return the GPU called `name`, in any case.

    Raises:
        UnknownNameError: not in the table.
    """
    spec = shipped_gpu(name)
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
    spec = shipped_gpu(device)
    return None if spec is None else AchievedGpu.of(spec)
