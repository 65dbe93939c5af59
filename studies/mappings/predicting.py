"""What is predicted of a published step with its mapping, as `predict --tensor-parallel T --pipeline 1f1b:P` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddpsim.prediction.predict import predict
from ddpsim.schedules.pipeline import Order
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.pipeline import Mapping, Pipeline
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload
from ddpsim.workload.anchors import RooflineFactors
from studies.accuracy.systems import machine
from studies.mappings.rows import Row, rows
from studies.mappings.transformers import estimated, pace_of

_HALF_BYTES = 2
_NEAR: Mapping = "tp-dp-pp"
"""Ranks of one stage are next to each other, as in Megatron-LM by default (`--use-tp-pp-dp-mapping` left out)."""

PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where rows are from, and how the code there trains.

    Attributes:
        machine: shipped, or of `studies/accuracy/machines`.
        one: the series whose step on one GPU says the pace.
        scheme, overlap: as `predict` takes them.
        order: of stages.
        in_parts: whether each of the ranks that share a layer sends a part of what goes to the next stage.
    """

    machine: str
    gpu: str
    one: str
    scheme: str = "ddp"
    overlap: Literal["on", "off"] = "off"
    order: Order = "1f1b"
    in_parts: bool = True


CLUSTERS: dict[str, Cluster] = {
    # Megatron-LM sums gradients when backward has ended, and its ranks send parts of what goes to the next stage
    # (megatron/model/distributed.py, `scatter_gather_tensors_in_pipeline`).
    "dlperf-megatron": Cluster("dlperf-v100", "V100", "dlperf-megatron-1536x16-gbs2"),
    "dlperf-oneflow": Cluster("dlperf-v100", "V100", "dlperf-oneflow-1536x16-gbs2", overlap="on", in_parts=False),
    "superpod": Cluster("dgx-2", "V100-SXM3", "superpod-weak"),
}
"""By the name that a row has; rows of others are noted and not predicted."""


def predicted_s(row: Row, pace: RooflineFactors) -> float:
    """Return the predicted step of `row` where computation takes `pace` times its estimate."""
    workload = estimated(row.model, row.micro_batch, CLUSTERS[row.cluster].gpu, row.tensor, pace)
    count, once, twice = row.micro_batches, row.stages, 2 * row.stages
    if count <= twice:
        return _step_s(row, workload, count)
    # Once the pipeline is full each more micro-batch takes as long as the one before.
    less_s, more_s = (_step_s(row, workload, few) for few in (once, twice))
    return more_s + (count - twice) * (more_s - less_s) / (twice - once)


def is_pace(row: Row) -> bool:
    """Return whether the pace of its cluster comes from `row`."""
    return row.gpus == 1 and row.series == CLUSTERS[row.cluster].one


def pace_at(cluster: Cluster) -> RooflineFactors:
    """Return the pace of a cluster: that of its step on one GPU."""
    one = next(each for each in rows() if each.gpus == 1 and each.series == cluster.one)
    return pace_of(one, cluster.gpu)


def _step_s(row: Row, workload: Workload, count: int) -> float:
    cluster, pipeline = CLUSTERS[row.cluster], None
    if row.stages > 1:
        whole = row.micro_batch * row.model.tokens * row.model.width * _HALF_BYTES
        boundary = whole // row.tensor if cluster.in_parts else whole
        pipeline = Pipeline(
            stages=row.stages,
            micro_batches=count,
            order=cluster.order,
            boundary_bytes=boundary,
            mapping=_NEAR,
        )
    options = Options(
        tensor_parallel=row.tensor,
        scheme=cluster.scheme,
        overlap=cluster.overlap,
        pipeline=pipeline,
        accumulate=1 if row.stages > 1 else count,
    )
    found = predict(
        Job(
            workload,
            machine(cluster.machine),
            nodes=max(1, row.gpus // PER_NODE),
            gpus_per_node=min(PER_NODE, row.gpus),
            options=options,
        ),
        band=False,
        local_s=1.0,
    )
    return found.step_s[0]
