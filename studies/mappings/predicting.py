"""What is predicted of a published step with its mapping: `predict --tensor-parallel T --pipeline 1f1b:P`, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpsim.jobs.pipeline import Pipeline
from ddpsim.prediction.predict import predict
from ddpsim.simulation import Options
from ddpsim.workload import Workload
from ddpsim.workload.anchors import RooflineFactors
from studies.accuracy.systems import machine
from studies.mappings.rows import Row, rows
from studies.mappings.transformers import estimated, pace_of

_HALF_BYTES = 2
_PACED = 2
PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where rows are from, and how the code there trains.

    Attributes:
        machine: shipped, or of `studies/accuracy/machines`.
        one: the series of one GPU that says the pace; empty is the estimate's own.
        scheme, overlap: as `predict` takes them.
        pipeline: the order of stages.
    """

    machine: str
    gpu: str
    one: str = ""
    scheme: str = "ddp"
    overlap: str = "off"
    order: str = "1f1b"


CLUSTERS: Mapping[str, Cluster] = {
    # Megatron-LM @8aa4619f sums gradients when backward has ended (megatron/model/distributed.py).
    "dlperf-megatron": Cluster("dlperf-v100", "V100", "dlperf-megatron-1536x16-gbs2"),
    "dlperf-oneflow": Cluster("dlperf-v100", "V100", "dlperf-oneflow-1536x16-gbs2", overlap="on"),
    # DeepSpeed's ZeRO 1 reduces when all micro-batches are done, and sends as much as an allreduce.
    "jeanzay": Cluster("jeanzay-a100", "A100-80GB"),
    "jeanzay-bf16": Cluster("jeanzay-a100", "A100-80GB"),
    "superpod": Cluster("dgx-2", "V100-SXM3", "superpod-weak"),
}
"""By the name that a row has; rows of others are in `LEFT_OUT`."""


def predicted_s(row: Row, pace: RooflineFactors) -> float:
    """Return the predicted step of `row` where computation takes `pace` times its estimate."""
    workload = estimated(row.model, row.micro_batch, CLUSTERS[row.cluster].gpu, row.tensor, pace)
    count, once, twice = row.micro_batches, row.stages, 2 * row.stages
    if count <= twice:
        return _step_s(row, workload, count)
    # Once the pipeline is full each more micro-batch takes as long as the one before.
    less_s, more_s = (_step_s(row, workload, few) for few in (once, twice))
    return more_s + (count - twice) * (more_s - less_s) / (twice - once)


def is_pace(row: Row, series: Sequence[Row]) -> bool:
    """Return whether the pace of its series comes from `row`."""
    one = CLUSTERS[row.cluster].one
    return row.series == one and row.gpus == 1 if one else row == series[0]


def pace_for(series: Sequence[Row]) -> RooflineFactors:
    """Return the pace of a series: of the step on one GPU of its cluster, else that at which its first row is right."""
    first = series[0]
    cluster = CLUSTERS[first.cluster]
    if cluster.one:
        one = next(each for each in rows() if each.series == cluster.one and each.gpus == 1)
        return pace_of(one, cluster.gpu)
    factor, tried = 1.0, list[tuple[float, float]]()
    for _ in range(_PACED):
        tried.append((factor, predicted_s(first, _factors(factor))))
        if len(tried) == 1:
            factor *= first.step_s / tried[0][1]
        else:
            (one, one_s), (other, other_s) = tried[-2:]
            factor = other + (first.step_s - other_s) * (other - one) / (other_s - one_s)
    return _factors(factor)


def _factors(factor: float) -> RooflineFactors:
    return RooflineFactors((factor, factor, 1.0), 1.0, factor)


def _step_s(row: Row, workload: Workload, count: int) -> float:
    cluster, pipeline = CLUSTERS[row.cluster], None
    if row.stages > 1:
        boundary = row.micro_batch * row.model.tokens * row.model.width * _HALF_BYTES
        pipeline = Pipeline(stages=row.stages, micro_batches=count, order=cluster.order, boundary_bytes=boundary)
    options = Options(
        tensor_parallel=row.tensor, scheme=cluster.scheme, overlap=cluster.overlap, pipeline=pipeline,
        accumulate=1 if row.stages > 1 else count,
    )
    found = predict(
        workload, machine(cluster.machine), nodes=max(1, row.gpus // PER_NODE), gpus_per_node=min(PER_NODE, row.gpus),
        options=options, band=False, brief=True, local_s=1.0,
    )
    return found.step_s[0]
