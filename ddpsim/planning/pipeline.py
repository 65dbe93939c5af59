"""The step of a model in stages, or in layers cut over ranks, with copies of it: computed, sent and idle.

Two ways. Stages are simulated by `predict`, and `pipeline_step` takes the figures of a pipeline from the prediction. An
order without a flush (PipeDream's), and layers that are cut without knowing their operators, are a closed form,
`in_closed_form`: the slowest stage sets the pace, and copies then sum all gradients of a rank after its last work, as
if all ranks of a copy did so at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import find_rank_paths, library_of, make_transport
from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.schedules import Connection
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.prediction.prediction import Prediction
from ddpsim.schedules.mesh import REPLICA
from ddpsim.schedules.pipeline import count_most_under_way, count_under_way, weight_versions, works_of
from ddpsim.simulation.jobs.pipeline import Pipeline
from ddpsim.simulation.jobs.stages import boundary_of, stages_of
from ddpsim.simulation.lanes import part_of
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload
from ddpsim.workload.files import with_operators


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """What a step takes.

    Attributes:
        step_s: from its start to the next.
        compute_s: of it what the busiest rank computes.
        bubble: share of the pipeline's time in which a rank of the mean waits.
        allreduce_s: of gradients over copies, the longest rank's.
        exposed_allreduce_s: how long the step waits for them after the last work.
        activations_s: of activations that are allreduced, where layers are cut.
        stages: registration indices of each stage's parameters.
        weight_versions: that the first stage keeps.
        activations: micro-batches whose activations it keeps, of each of its stages.
        samples: of all copies together.
    """

    step_s: float
    compute_s: float
    bubble: float
    allreduce_s: float
    exposed_allreduce_s: float
    activations_s: float
    stages: tuple[tuple[int, ...], ...]
    weight_versions: int
    activations: int
    copies: int
    samples: int

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "step_s": self.step_s,
            "compute_s": self.compute_s,
            "bubble": self.bubble,
            "allreduce_s": self.allreduce_s,
            "exposed_allreduce_s": self.exposed_allreduce_s,
            "activations_s": self.activations_s,
            "stages": [list(stage) for stage in self.stages],
            "weight_versions": self.weight_versions,
            "activations_kept": self.activations,
            "copies": self.copies,
            "samples_per_s": self.samples / self.step_s,
        }


def is_simulated(pipeline: Pipeline) -> bool:
    """Whether a pipeline is simulated, rather than told in closed form."""
    return pipeline.order != "pipedream" and pipeline.tensor_ranks == 1


def pipeline_step(prediction: Prediction, pipeline: Pipeline) -> PipelineStep:
    """Return what a predicted step has of a pipeline: its first simulated step that counts.

    Of one stage that is as many iterations as it accumulates, the last of which sums gradients.
    """
    trace, cycle = prediction.trace, prediction.options.accumulate
    cycles = [trace.of_rank(rank)[:cycle] for rank in trace.ranks]
    steps = [each[-1] for each in cycles]
    computed_s = max(gradient.ready_s for each in steps for gradient in each.gradients)
    summed_s = max([computed_s, *(bucket.finished_s for each in steps for bucket in each.buckets)])
    sums_s = [sum(each.finished_s - (each.wire_s or each.started_s) for each in step.buckets) for step in steps]
    busy_s = [sum(one.forward_s + one.backward_compute_s for one in each) for each in cycles]
    step_s = cycle * prediction.iteration_s
    through_s = step_s - (summed_s - computed_s) - steps[0].optimizer_s
    return PipelineStep(
        step_s=step_s,
        compute_s=max(busy_s),
        bubble=1 - fmean(busy_s) / through_s,
        allreduce_s=max(sums_s),
        exposed_allreduce_s=summed_s - computed_s,
        activations_s=0.0,
        stages=stages_of(prediction.workload, pipeline.stages * pipeline.stages_per_rank).stages,
        weight_versions=1,
        activations=_count_kept(pipeline),
        copies=prediction.placement.world_size // pipeline.stages,
        samples=cycle * prediction.samples,
    )


def _count_kept(pipeline: Pipeline) -> int:
    if pipeline.order != "interleaved":
        return count_under_way(pipeline.order, 0, pipeline.stages, pipeline.micro_batches)
    return count_most_under_way(
        works_of(pipeline.order, pipeline.stages, pipeline.micro_batches, pipeline.stages_per_rank)[0]
    )


def with_boundary(pipeline: Pipeline, workload: Workload) -> Pipeline:
    """Return `pipeline` with the bytes of a micro-batch's activations between two layers, where anything is cut.

    Raises:
        InputError: nobody knows them.
    """
    cut = next((name for name in ("stages", "tensor_ranks") if getattr(pipeline, name) > 1), None)
    if cut is None or pipeline.boundary_bytes is not None:
        return pipeline
    if (known := boundary_of(with_operators(workload))) is not None:
        return replace(pipeline, boundary_bytes=known)
    what = f"`{cut}` is {getattr(pipeline, cut)}, and how many bytes pass from one layer to the next is not known"
    remedy = "give the activations of a micro-batch there: samples x values of a sample x bytes, e.g. 25MiB"
    raise InputError(what, place="boundary_bytes", remedy=remedy)


def in_closed_form(
    workload: Workload, placement: Placement, pipeline: Pipeline, calibration: Calibration | None = None
) -> PipelineStep:
    """Return the step of PipeDream's order, or of layers that are cut over ranks.

    Raises:
        InputError: more stages than layers, ranks that the stages do not divide, a cut at which nobody knows how many
            bytes pass, or sums under backward, which are simulated.
    """
    pipeline = with_boundary(pipeline, workload)
    refuse_excluded(pipeline, "cut layers")
    if pipeline.mapping != "tp-pp-dp":
        what = f"`mapping={pipeline.mapping}` is known of what is simulated, and `order={pipeline.order}` is not"
        raise InputError(what, place="mapping", remedy="leave it out, or use gpipe, 1f1b or interleaved")
    backend = "gloo" if workload.one_clock else library_of(placement, "nccl")
    per_copy = max(pipeline.stages, pipeline.tensor_ranks)
    if placement.world_size % per_copy:
        what = f"{per_copy} ranks a copy do not divide {placement.world_size} ranks"
        raise InputError(what, place="stages", remedy="give a divisor")
    copies = placement.world_size // per_copy
    ways = find_rank_paths(placement, backend, calibration)
    cut = stages_of(workload, pipeline.stages)
    activations_s = 0.0
    if pipeline.tensor_ranks > 1:
        part = placement if copies == 1 else part_of(placement, "tensor", pipeline.tensor_ranks)[0]
        once_s = make_transport(part, backend, calibration).time_s(Operation.ALLREDUCE, pipeline.boundary_bytes or 0)
        # Two allreduces a layer and pass, as Megatron has it (Shoeybi et al. 2019), forward and backward.
        activations_s = 4 * len(cut.layers) * once_s
    micro_batch_s = [
        (forward_s + backward_s) / pipeline.tensor_ranks + activations_s
        for forward_s, backward_s in zip(cut.forward_s, cut.backward_s, strict=True)
    ]
    sent_s = [
        _sent_s(ways.connection(stage, stage + 1), ways.capacities, pipeline.boundary_bytes or 0)
        for stage in range(pipeline.stages - 1)
    ]
    sizes = [sum(workload.parameters[index].size_bytes for index in stage) for stage in cut.stages]
    part, together = part_of(placement, REPLICA, copies)
    data = make_transport(part, backend, calibration)
    sums_s = [data.time_s(Operation.ALLREDUCE, together * (size // pipeline.tensor_ranks)) for size in sizes]
    allreduce_s = 0.0 if copies == 1 else max(sums_s)
    # Without a flush each stage goes on at the pace of the slowest, or of what is sent to it.
    through_s = pipeline.micro_batches * max(*micro_batch_s, *(2 * s for s in sent_s), 0.0)
    busy_s = [pipeline.micro_batches * each for each in micro_batch_s]
    return PipelineStep(
        step_s=through_s + allreduce_s + float(np.median(workload.optimizer.device_s)) / per_copy,
        compute_s=max(busy_s),
        bubble=1 - fmean(busy_s) / through_s,
        allreduce_s=allreduce_s,
        exposed_allreduce_s=allreduce_s,
        activations_s=pipeline.micro_batches * activations_s,
        stages=cut.stages,
        weight_versions=weight_versions(pipeline.order, 0, pipeline.stages),
        activations=count_under_way(pipeline.order, 0, pipeline.stages, pipeline.micro_batches),
        copies=copies,
        samples=copies * pipeline.micro_batches * workload.batch_size,
    )


def _sent_s(connection: Connection, capacities: Mapping[LinkId, float], size_bytes: int) -> float:
    byte_s = max((load / capacities[link] for link, load in connection.loads.items()), default=0.0)
    return connection.latency_s + size_bytes * byte_s
