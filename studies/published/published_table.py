"""PyTorch's published DDP benchmark: what it measured, and the same runs predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ddpexec.capturing.models.training import classifier
from ddpexec.capturing.models.vision import ResNet
from ddpexec.capturing.shapes import shape_of
from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.graph import Topology
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from ddpsim.workload.estimate import estimate
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_named
from studies.accuracy.rows import read_rows

MODELS = ("resnet50", "resnext50_32x4d")
MORE_MODELS = ("resnet101", "resnext101_32x8d")
GPUS = (1, 2, 4, 8, 16)
SCALING = Path(__file__).parent / "scaling"
BATCH = 32
CAPS = {25: BucketCaps(), 1: BucketCaps(bucket_cap_mb=1)}
"""torch 1.4 assigned `[1 MiB, bucket_cap_mb]`, whatever the cap was."""

NOISY = 1.05
"""A row whose 95th percentile is this many times its 75th says little of the machine."""


@dataclass(frozen=True)
class Measured:
    """A time known to lie within `half` of `middle`, as rounding left it; seconds."""

    middle: float
    half: float
    noisy: bool = False

    @classmethod
    def of(cls, seconds: float, per_s: int, noisy: bool = False) -> Measured:
        """Return what both columns allow: seconds rounded to 1 ms, examples a second cut to a whole number."""
        low, high = max(seconds - 5e-4, BATCH / (per_s + 1)), min(seconds + 5e-4, BATCH / per_s)
        return cls((low + high) / 2, (high - low) / 2, noisy)

    def minus(self, other: Measured) -> Measured:
        """Return the difference; what rounding left adds up."""
        return Measured(self.middle - other.middle, self.half + other.half, self.noisy or other.noisy)


@dataclass(frozen=True)
class Case:
    """A row: `gpus` 0 is one process without DDP."""

    model: str
    gpus: int
    cap_mb: int = 25


Times = dict[Case, Measured]

_MORE_P50 = {
    "resnet101": ((0.162, 197), (0.171, 187), (0.176, 182), (0.176, 182), (0.179, 179), (0.179, 178)),
    "resnext101_32x8d": ((0.415, 77), (0.425, 75), (0.438, 73), (0.439, 72), (0.447, 71), (0.450, 71)),
}
"""pytorch/pytorch benchmarks/distributed/ddp/README.md: seconds and examples a second, no DDP and 1 to 16 GPUs."""


def published() -> tuple[Times, Times]:
    """Return the medians, and the 75th percentiles by which the page compares caps of 25 and 1."""
    medians, quartiles = {}, {}
    for row in read_rows(SCALING / "pytorch_ddp_benchmark_dgx1v.csv"):
        case = Case(row["model"], 0 if row["layout"] == "no ddp" else int(row["gpus"]))
        medians[case] = Measured.of(float(row["p50_s"]), int(row["p50_ex_per_s"]))
        quartiles[case] = Measured.of(float(row["p75_s"]), int(row["p75_ex_per_s"]))
    for row in read_rows(SCALING / "pytorch_ddp_bucket_cap_1_vs_25_dgx1v.csv"):
        noisy = float(row["p95_s"]) > NOISY * float(row["p75_s"])
        case = Case(row["model"], int(row["gpus"]), int(row["bucket_cap_mb"]))
        quartiles[case] = Measured.of(float(row["p75_s"]), int(row["p75_ex_per_s"]), noisy)
    for model, times in _MORE_P50.items():
        for gpus, (seconds, per_s) in zip((0, *GPUS), times, strict=True):
            medians[Case(model, gpus)] = Measured.of(seconds, per_s)
    return medians, quartiles


class Predictor:
    """Predicts rows from each model's time without DDP and the DGX-1V topology.

    Args:
        medians: as `published` returns them; only the rows without DDP are used.
    """

    def __init__(self, medians: Times) -> None:
        self._medians = medians
        self._topology: Topology = load_topology("dgx-1v")
        self._workloads: dict[str, Workload] = {}

    def workload(self, model: str) -> Workload:
        """Return the model's estimated step on a V100."""
        if model not in self._workloads:
            self._workloads[model] = load_workload(model) if model in MODELS else estimated(model)
        return self._workloads[model]

    def seconds(self, case: Case, constants: Mapping[str, float]) -> float:
        """Return the predicted step, `constants` of `nccl.ddp` in force."""
        workload = self.workload(case.model)
        priors = Calibration.priors("nccl")
        work_s = sum(float(phase.device_s[0]) for phase in (workload.forward, workload.backward, workload.optimizer))
        options = Options(
            caps=CAPS[case.cap_mb],
            assignment="unused",
            broadcast_buffers=False,
            scale_compute=self._medians[Case(case.model, 0)].middle / work_s,
        )
        prediction = predict(
            Job(
                workload,
                self._topology,
                nodes=max(1, case.gpus // 8),
                gpus_per_node=min(8, max(1, case.gpus)),
                options=options,
                calibration=priors.with_values({f"nccl.ddp.{k}": v for k, v in constants.items()}, source="fitted"),
            ),
            local_s=None if case.gpus == 0 else work_s,
            band=False,
        )
        return prediction.local_s if case.gpus == 0 else prediction.iteration_s


def estimated(model: str) -> Workload:
    """Return the estimate of a model that is not shipped, on a V100."""
    import torch

    with torch.device("meta"):
        module = ResNet((3, 4, 23, 3)) if model == "resnet101" else ResNet((3, 4, 23, 3), groups=32, base_width=8)
        shape = shape_of(classifier(model, module, BATCH, (3, 224, 224), 1000))
    waiting = estimate(shape, gpu_named("V100"), "fp32")
    return replace(waiting, synchronises=("after_optimizer",))
