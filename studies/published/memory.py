"""Peaks of memory, estimated and published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ddpexec.capturing.estimate import estimate_step
from ddpsim.prediction.memory import Memory
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from studies.published.gpu_steps import prediction
from studies.published.gpu_systems import cases, system_named
from tests.ddpexec.capturing.gpt2_steps import LARGE, SMALL, Size, training

PAGE = Path(__file__).with_name("memory.md")
GIB = 1 << 30

_PLAIN = replace(SMALL, flash=False)
ROWS: tuple[tuple[str, Size, int, str, bool, float, str], ...] = (
    ("GPT-2 Large, batch 4, autocast, DDP with views", LARGE, 4, "amp", True, 30.34, "Dominator-Index, zero.csv"),
    ("GPT-2 124M, batch 1, autocast, flash", SMALL, 1, "amp", False, 2655 / 1024, "gollem"),
    ("GPT-2 124M, batch 1, autocast, scores kept", _PLAIN, 1, "amp", False, 3514 / 1024, "gollem"),
    ("GPT-2 124M, batch 1, tf32, scores kept", _PLAIN, 1, "fp32", False, 3335 / 1024, "gollem"),
    ("GPT-2 124M, batch 1, fp32, scores kept", _PLAIN, 1, "fp32", False, 4371 / 1024, "gollem"),
)
"""What was trained, how, its published peak in GiB as torch's allocator counts, and whose it is."""

SCHEMES = "rtxpro6000-schemes"
"""The system of `steps/systems` whose rows have what stays from step to step, and the peak."""

_HEAD = """# Memory of a rank beside published peaks

`make published` writes this page. Each row is a GPT-2 written for the tests, estimated with
`ddpexec estimate --step`, and beside it the peak of `torch.cuda.max_memory_allocated` that its source publishes. A row
on one GPU has no buckets. Nothing is fitted.

| step | published, GiB | estimated, GiB | error | source |
|---|--:|--:|--:|---|
"""

_TAIL = """
The source of the two last rows publishes 1 GiB less for tf32 than for fp32, though both keep the same tensors: one of
the two runs differs in more than it says, and the estimate is of both.

## Schemes

GPT-2 Large on eight GPUs, batch 4, as the rows of [published steps](gpu-steps.md) that name these schemes. "Resident"
is what stays after a step. Every row has 0.2 to 0.4 GiB more resident than its tensors add up to, DDP's too, where only
workspaces of libraries are left that torch's allocator counts: they are not modelled, and are a sixth of what FSDP2
keeps. DeepSpeed holds two buckets of 5e8 elements while stages 1 and 2 run backward, and one all the time in stage 3.

| scheme | resident, GiB | predicted | error | peak, GiB | predicted | error |
|---|--:|--:|--:|--:|--:|--:|
{schemes}

What is counted: parameters, gradients, optimizer state, buckets, and the tensors that autograd keeps, under autocast
with its 16-bit copies of weights and the operators it runs in fp32. What is not: workspaces of kernels, gradients that
arrive while most activations are still alive, frozen parameters, and what `torch.compile` saves by fusing.
The estimates are what is alive, as that counter has it: `alive_bytes` of the `memory` document, which commands print.
The allocator holds 2 to 12 % more than is alive, and CUDA with its libraries about 600 MiB: `total_bytes`, between
`total_low_bytes` and `total_high_bytes`, has both. A step fits where the highest does; where only the lowest does, it
may not.
"""


def row(what: str, size: Size, batch: int, precision: str, ddp: bool, published: float, source: str) -> str:
    """Return one line of the table."""
    workload = estimate_step(partial(training, size, batch, precision), "H100")
    memory = predict(Job(workload, load_topology("dgx-h100"), options=Options(gradient_as_bucket_view=True))).memory
    assert memory is not None
    bytes_ = memory.step_bytes
    if not ddp:  # no bucket keeps the gradients alive while backward begins
        bytes_ -= min(memory.gradients_bytes, memory.activations_bytes or 0)
    estimated = bytes_ / GIB
    return f"| {what} | {published:.2f} | {estimated:.2f} | {100 * (estimated / published - 1):+.1f} % | {source} |"


@dataclass(frozen=True, slots=True)
class Kept:
    """A published row of a scheme beside its prediction, in GiB."""

    scheme: str
    resident: float
    predicted_resident: float
    peak: float
    predicted_peak: float

    def line(self) -> str:
        """Return its line of the table."""
        pairs = ((self.resident, self.predicted_resident), (self.peak, self.predicted_peak))
        cells = (f"{here:.2f} | {there:.2f} | {100 * (there / here - 1):+.1f} %" for here, there in pairs)
        return f"| {self.scheme} | {' | '.join(cells)} |"


def schemes() -> Iterator[Kept]:
    """Yield the rows of the system that has them."""
    system = system_named(SCHEMES)
    under_autocast = estimate_step(partial(training, LARGE, 4, "amp"), system.gpu).activations_bytes
    for dtype, row in cases(system):
        predicted = prediction(system, dtype, row, calibration=None)
        memory = predicted.memory
        if row["scheme"] == "ddp":  # the one row that is not of bfloat16 throughout
            workload = replace(predicted.workload, activations_bytes=under_autocast)
            memory = Memory.of(workload, predicted.plan, predicted.options, None, predicted.run.schedule())
        assert memory is not None
        published = (float(row["resident_gib"]), float(row["peak_gib"]))
        yield Kept(row["scheme"], published[0], memory.resident_bytes / GIB, published[1], memory.step_bytes / GIB)


def text() -> str:
    """Return the page."""
    tail = _TAIL.format(schemes="\n".join(each.line() for each in schemes()))
    return _HEAD + "\n".join(row(*each) for each in ROWS) + "\n" + tail
