"""One step of the AWS post's as a point: ResNet-50 at one GPU's own pace, with the options of PyTorch 1.0.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ddpsim.simulation.engine import Simulated
    from ddpsim.simulation.jobs.simulated import Options
    from ddpsim.topology.graph import Cluster
    from ddpsim.trace.metrics import Summary
    from ddpsim.workload import Workload

MODEL = "resnet50"
CAP_MB = 25.0
"""`bucket_cap_mb` of PyTorch 1.0.1, whose first bucket is as large as the others."""
RUNNING = ("after_optimizer",)
"""Where a step that reads its loss each iteration waits for the device."""

Mode = Literal["ddp", "dataparallel", "alone"]


@dataclass(frozen=True, slots=True)
class AwsStep:
    """A step is one prediction from one-GPU figures alone.

    Attributes:
        gpu: whose step it is; `other` beside, of the mixed cluster's second kind of node.
        batch: images a GPU.
        step_s: of one GPU, forward, backward and optimizer; None is the estimate for it.
        topology: machine, or YAML of one.
        input_stage: as `--input-stage` takes it.
        mode: DDP, DataParallel, or one GPU by itself.
        backend: `nccl` or `gloo`.
        nodes: how many; None is the machine's own.
        other: GPU of node templates whose workload is named after it.
    """

    gpu: str
    batch: int
    step_s: float | None
    topology: str
    input_stage: str = "none"
    mode: Mode = "ddp"
    backend: Literal["nccl", "gloo"] = "nccl"
    nodes: int | None = None
    other: str | None = None

    def __str__(self) -> str:
        where = self.topology.splitlines()[0].removeprefix("name: ")
        return (
            f"{MODEL}, {self.batch} images a {self.gpu}, {self.mode} by {self.backend} on {self.nodes or 1} x {where}"
        )

    def answer(self) -> dict[str, float | None]:
        """Return the iteration, its parts, and what the last allreduce takes, in seconds."""
        from ddpsim.simulation.engine import simulate_local
        from ddpsim.trace.metrics import summarise

        workload = step_of(self.gpu, self.batch, self.step_s)
        if self.mode == "alone":
            *_, last = simulate_local(workload, self._options())
            return {"iteration_s": last.iteration_s, "input_s": last.input_s}
        summary = summarise(self._trace(workload))
        return {**_parts(summary), "last_s": _last_s(summary)}

    def _options(self) -> Options:
        from ddpsim.bucketing import BucketCaps
        from ddpsim.simulation.jobs.simulated import Options

        return Options(
            caps=BucketCaps(bucket_cap_mb=CAP_MB, first_bucket_mb=CAP_MB),
            assignment="unused",
            backend=self.backend,
            scheme="dataparallel" if self.mode == "dataparallel" else "ddp",
            algorithm="ring",
            input_stage=self.input_stage,
        )

    def _trace(self, workload: Workload) -> Simulated:
        from ddpsim.simulation.engine import run_job, trace_of
        from ddpsim.topology.placement import place

        replayed: dict[str | None, Workload] = {None: workload}
        if self.other is not None:
            replayed[self.other] = step_of(self.other, self.batch, None)
        placement = place(self._cluster(), self.nodes, None)
        return trace_of(run_job(replayed, placement, self._options()))

    def _cluster(self) -> Cluster:
        from ddpsim.topology.spec import load_topology, parse_topology

        text = self.topology
        return parse_topology(text, "the post's machines") if "\n" in text else load_topology(text)


def step_of(gpu: str, batch: int, step_s: float | None) -> Workload:
    """Return a step of `batch` images on `gpu`, scaled to a measured `step_s` where there is one."""
    from ddpsim.workload.anchors import Anchor
    from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
    from ddpsim.workload.files import load_workload
    from ddpsim.workload.gpus import gpu_named

    source = load_workload(MODEL)
    assert source.operators is not None
    shape = ModelShape.of(source, source.operators.with_batch(batch))
    anchors = () if step_s is None else (Anchor("step", step_s, RUNNING, "the AWS post"),)
    return estimate(shape, gpu_named(gpu), "fp32", EstimateOptions(anchors=anchors))


def _parts(summary: Summary) -> dict[str, float | None]:
    keys = ("iteration_s", "input_s", "forward_s", "backward_compute_s", "exposed_comm_s", "optimizer_s")
    return {key: getattr(summary, key) for key in keys}


def _last_s(summary: Summary) -> float | None:
    """Return what the last bucket takes on the wire, from when all ranks have come to it."""
    if not summary.buckets:
        return None
    last = summary.buckets[-1]
    return last.finished_s - (last.started_s if last.wire_s is None else last.wire_s)
