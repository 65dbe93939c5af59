"""The step of a model in stages, or in layers cut over ranks, beside copies of it: computed, sent and idle.

Ranks of a copy are consecutive. Copies sum a stage's gradients over the ranks of its place in each, when the rank has
done its work or bucket by bucket, and the step ends with the last. The graph of the step says when
(`ddpsim.simulation.pipeline`). Nothing is shared between what different copies send; sums are priced as if all ranks of
a copy had theirs summed at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import simpy

from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import find_rank_paths, library_of, make_transport
from ddpsim.collectives.transport import Connection, Transport
from ddpsim.errors import InputError
from ddpsim.jobs.pipeline import Pipeline
from ddpsim.jobs.stages import StageCosts, boundary_of, stages_of
from ddpsim.network.fairness import LinkId
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.schedules.pipeline import (
    count_most_under_way,
    count_under_way,
    weight_versions,
    works_of,
)
from ddpsim.schedules.sharded import REPLICA
from ddpsim.simulation.groups import part_of
from ddpsim.simulation.pipeline import GradientBucket, PipelineLinks, PipelinePlan, simulate_pipeline
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload
from ddpsim.workload.files import with_operators


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """What a step takes.

    Attributes:
        step_s: from its start to the next.
        compute_s: of it what the busiest stage computes.
        bubble: share of the pipeline's time in which a stage of the mean waits.
        allreduce_s: of gradients over copies, all of a rank's at once, the longest rank's.
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


def pipelined(
    workload: Workload, placement: Placement, given: Pipeline, calibration: Calibration | None = None
) -> PipelineStep:
    """Return the step of `workload` on `placement`.

    Raises:
        InputError: more stages than layers, ranks that the stages do not divide, or a cut at which nobody knows how
            many bytes pass.
    """
    given = _with_boundary(given, workload)
    backend = "gloo" if workload.one_clock else library_of(placement, "nccl")
    per_copy = max(given.stages, given.tensor_ranks)
    if placement.world_size % per_copy:
        what = f"{per_copy} ranks a copy do not divide {placement.world_size} ranks"
        raise InputError(what, place="stages", remedy="give a divisor")
    copies = placement.world_size // per_copy
    ways = find_rank_paths(placement, backend, calibration)
    cut = stages_of(workload, given.stages * given.stages_per_rank)
    layers, stages = cut.layers, cut.stages
    activations_s = 0.0
    if given.tensor_ranks > 1:
        part = placement if copies == 1 else part_of(placement, "tensor", given.tensor_ranks)[0]
        once_s = make_transport(part, backend, calibration).time_s(Operation.ALLREDUCE, given.boundary_bytes or 0)
        activations_s = 4 * len(layers) * once_s
    forward_s = [seconds / given.tensor_ranks + activations_s / 2 for seconds in cut.forward_s]
    backward_s = [seconds / given.tensor_ranks + activations_s / 2 for seconds in cut.backward_s]
    held = [range(rank, len(stages), given.stages) for rank in range(given.stages)]
    ends = [(k % given.stages, (k + 1) % given.stages) for k in range(len(stages) - 1)]
    connections = [(ways.connection(one, other), ways.connection(other, one)) for one, other in ends]
    sent_s = [_sent_s(there, ways.capacities, given) for there, _ in connections]
    sizes = [sum(workload.parameters[index].size_bytes for stage in each for index in stages[stage]) for each in held]
    shares = [size // given.tensor_ranks for size in sizes]
    part, together = part_of(placement, REPLICA, copies)
    data = make_transport(part, backend, calibration)
    allreduce_s = [0.0 if copies == 1 else data.time_s(Operation.ALLREDUCE, together * size) for size in shares]
    optimizer_s = float(np.median(workload.optimizer.device_s)) / per_copy
    busy_s = [given.micro_batches * sum(forward_s[k] + backward_s[k] for k in each) for each in held]
    works = works_of(given.order, given.stages, given.micro_batches, given.stages_per_rank)
    if given.order == "pipedream":
        # Without a flush each stage goes on at the pace of the slowest, or of what is sent to it.
        once_s = max(*(f + b for f, b in zip(forward_s, backward_s, strict=True)), *(2 * s for s in sent_s))
        through_s, summed_s = given.micro_batches * once_s, given.micro_batches * once_s + max(allreduce_s)
    else:
        buckets = [] if copies == 1 else _buckets(workload, cut, backward_s, given.tensor_ranks)
        plan = PipelinePlan(works, forward_s, backward_s, given.boundary_bytes or 0, buckets, given.gradients == "ddp")
        times = simulate_pipeline(plan, partial(_links, connections, ways.capacities, data, together))
        through_s, summed_s = max(times.computed_s), max(times.summed_s)
    return PipelineStep(
        step_s=summed_s + optimizer_s,
        compute_s=max(busy_s),
        bubble=1 - sum(busy_s) / len(busy_s) / through_s,
        allreduce_s=max(allreduce_s),
        exposed_allreduce_s=summed_s - through_s,
        activations_s=given.micro_batches * activations_s,
        stages=stages,
        weight_versions=weight_versions(given.order, 0, given.stages),
        activations=(
            count_most_under_way(works[0])
            if given.order == "interleaved"
            else count_under_way(given.order, 0, given.stages, given.micro_batches)
        ),
        copies=copies,
        samples=copies * given.micro_batches * workload.batch_size,
    )


def _with_boundary(given: Pipeline, workload: Workload) -> Pipeline:
    """Return `given` with the bytes of a micro-batch's activations between two layers, where anything is cut."""
    cut = next((name for name in ("stages", "tensor_ranks") if getattr(given, name) > 1), None)
    if cut is None or given.boundary_bytes is not None:
        return given
    if (known := boundary_of(with_operators(workload))) is not None:
        return replace(given, boundary_bytes=known)
    what = f"`{cut}` is {getattr(given, cut)}, and how many bytes pass from one layer to the next is not known"
    remedy = "give the activations of a micro-batch there: samples x values of a sample x bytes, e.g. 25MiB"
    raise InputError(what, place="boundary_bytes", remedy=remedy)


def _sent_s(connection: Connection, capacities: object, given: Pipeline) -> float:
    assert isinstance(capacities, dict)
    byte_s = max((load / capacities[link] for link, load in connection.loads.items()), default=0.0)
    return connection.latency_s + (given.boundary_bytes or 0) * byte_s


def _links(
    connections: Sequence[tuple[Connection, Connection]],
    capacities: Mapping[LinkId, float],
    data: Transport,
    together: int,
    env: simpy.Environment,
) -> PipelineLinks:
    """Return what carries the messages of a copy in a simulation."""

    def sum_s(size_bytes: int) -> float:
        return data.time_s(Operation.ALLREDUCE, together * size_bytes)

    return PipelineLinks(Network(env, capacities), connections, sum_s, data.streams_per_group)


def _buckets(
    workload: Workload, cut: StageCosts, backward_s: Sequence[float], tensor_ranks: int
) -> list[list[GradientBucket]]:
    """Return DDP's buckets of each stage, with its gradients in the order in which they are ready."""
    ready, sizes = np.nan_to_num(np.nanmedian(workload.gradient_ready_s, axis=0)), workload.parameters
    # A stage's backward begins when the last gradient of those behind it is there.
    behind = [[float(ready[list(stage)].max()) for stage in cut.stages[k + 1 :]] for k in range(len(cut.stages))]
    begins = [max(each, default=0.0) for each in behind]
    found = []
    for stage, begin, took_s, whole_s in zip(cut.stages, begins, backward_s, cut.backward_s, strict=True):
        order = sorted(range(len(stage)), key=lambda place: float(ready[stage[place]]))
        scale = took_s / whole_s if whole_s > 0 else 0.0
        plan = rebuilt_plan([sizes[index] for index in stage], BucketCaps(), order)
        over, own = 0.0, list[GradientBucket]()
        for bucket in plan.buckets:
            last_s = max(float(ready[stage[place]]) for place in bucket.parameters)
            over = min(max(over, (last_s - begin) * scale), took_s)
            own.append(GradientBucket(over, bucket.size_bytes // tensor_ranks))
        found.append(own)
    return found
