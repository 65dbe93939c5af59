"""Steps of DDP on AMD's GPUs, predicted from the step of one of them, beside published ones."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from studies.estimates import estimates_fit
from studies.estimates.one_gpu_steps import Step
from studies.published.step_workloads import counted
from studies.published.under_ddp import alone_s, world_of_one_s
from studies.session import once_a_session

ROWS = Path(__file__).with_name("lumi_resnet50.csv")
MACHINE, GPU, NODE = "mi250x-4", "MI250X", 8
BATCH = 32
OPTIONS = Options(backend="rccl")


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A published step beside its prediction, both in seconds.

    Attributes:
        one_s: of one device on the same day, under DDP too.
    """

    date: str
    torch: str
    gpus: int
    one_s: float
    measured_s: float
    predicted: Prediction

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.iteration_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the 80 % band has the measured step."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s

    @property
    def overheads(self) -> tuple[float, float]:
        """What DDP adds to the step of one device, measured and predicted, shares of that."""
        return self.measured_s / self.one_s - 1, self.predicted.iteration_s / self.one_s - 1


@once_a_session
def published_steps() -> list[PublishedStep]:
    """Return every row of more than one device."""
    lines = [line for line in ROWS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    step_s = {(row["date"], int(row["gpus"])): BATCH * int(row["gpus"]) / float(row["images_per_s"]) for row in rows}
    found = []
    for row in rows:
        date, gpus = row["date"], int(row["gpus"])
        if gpus > 1:
            one_s = step_s[date, 1]
            found.append(PublishedStep(date, row["torch"], gpus, one_s, step_s[date, gpus], _predict(one_s, gpus)))
    return found


def _predict(one_s: float, gpus: int) -> Prediction:
    """Return the step of so many devices, of one of which the step under DDP is known."""
    nodes = max(1, gpus // NODE)
    machine = load_topology(MACHINE)
    return predict(Job(_at(_alone_s(one_s)), machine, nodes=nodes, gpus_per_node=gpus // nodes, options=OPTIONS))


def _at(one_s: float) -> Workload:
    return counted("resnet50", {"precision": "fp32", "batch_per_gpu": str(BATCH)}, GPU, one_s)


@cache
def _alone_s(under_s: float) -> float:
    """Return the step of a device without DDP, by its step under it."""
    machine = load_topology(MACHINE)
    return alone_s(under_s, lambda alone: world_of_one_s(_at(alone), machine, OPTIONS))


def estimated_s() -> float:
    """Return the step of one device as `ddpexec estimate` has it, with shares of peak fitted to NVIDIA's GPUs."""
    step = Step("lumi", GPU, "resnet50", "fp32", BATCH, 0, False, "sgd", 1, 0.0, "")
    return estimates_fit.counted(step).seconds(estimates_fit.gpu_of(step))


def text() -> str:
    """Return the page."""
    found = published_steps()
    errors, inside = [abs(each.error) for each in found], sum(each.inside for each in found)
    one_s, estimate_s = median({each.date: each.one_s for each in found}.values()), estimated_s()
    return "\n".join(
        [
            "# DDP's steps on MI250X",
            "",
            f"{len(found)} published steps of ResNet-50 on LUMI, each from the step of one device of its day, which",
            "ran under DDP too (what DDP is predicted to add to one device is taken out of its pace):",
            f"median error {median(errors):.1%}, largest {max(errors):.1%}; {inside} of {len(found)} in the 80 % band.",
            "",
            f"The step of one device under DDP, {one_s * 1e3:.1f} ms in the median of days, is estimated as",
            f"{estimate_s * 1e3:.1f} ms by shares of the peak that NVIDIA's GPUs reach: {estimate_s / one_s - 1:+.0%}.",
            "An estimate for AMD needs such a row.",
            "",
            "| date | torch | dies | one ms | measured ms | predicted (80 %) | error | in it | overhead | predicted |",
            "|---|---|--:|--:|--:|--:|--:|---|--:|--:|",
            *map(_row, found),
            "",
        ]
    )


def _row(step: PublishedStep) -> str:
    low, middle, high = (
        f"{seconds * 1e3:.1f}" for seconds in (step.predicted.low_s, step.predicted.iteration_s, step.predicted.high_s)
    )
    measured, predicted = step.overheads
    times = f"{step.one_s * 1e3:.1f} | {step.measured_s * 1e3:.1f} | {middle} ({low} to {high}) | {step.error:+.1%}"
    held = "yes" if step.inside else "no"
    return f"| {step.date} | {step.torch} | {step.gpus} | {times} | {held} | {measured:+.1%} | {predicted:+.1%} |"
