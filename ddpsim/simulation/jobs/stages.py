"""A model in consecutive stages, and what each rank of a pipeline has of a workload and of its pace.

A stage is some layers next to each other in forward's order, of which the longest is as short as can be. Rank r of P
has the stages r, r + P, and so on. Read `parts_of`: it makes a `ModelPart` for each rank of a pipeline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from ddpsim.bucketing import BucketPlan, Parameter
from ddpsim.common.errors import InputError
from ddpsim.schedules.pipeline import count_most_under_way, divide_stages, works_of
from ddpsim.schedules.units import modules_of
from ddpsim.simulation.jobs.pipeline import Pipeline
from ddpsim.workload import Workload
from ddpsim.workload.devices import find_nearest
from ddpsim.workload.iteration_profile import IterationProfile
from ddpsim.workload.layer_messages import LayerMessage, TensorParallel
from ddpsim.workload.parallel_linears import blocks_in, width_of
from ddpsim.workload.profile import Phase
from ddpsim.workload.times import Seconds

Span = tuple[float, float]
"""Shares of forward at which something begins and ends."""


@dataclass(frozen=True, slots=True)
class StageCosts:
    """A model in consecutive stages, of which the longest is as short as can be.

    Attributes:
        layers: registration indices of each layer's parameters, in forward's order.
        stages: those of each stage's.
        forward_s, backward_s: what a micro-batch takes on each stage.
    """

    layers: tuple[tuple[int, ...], ...]
    stages: tuple[tuple[int, ...], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


def stages_of(workload: Workload, count: int) -> StageCosts:
    """Return `workload` cut into `count` stages.

    Raises:
        InputError: more stages than layers.
    """
    layers, forward, backward = _layers(workload)
    if count > len(layers):
        what = f"{count} stages of a model of {len(layers)} layers"
        raise InputError(what, place="stages", remedy=f"give {len(layers)} at most")
    begins = divide_stages([f + b for f, b in zip(forward, backward, strict=True)], count)
    spans = list(zip(begins, [*begins[1:], len(layers)], strict=True))
    return StageCosts(
        tuple(layers),
        tuple(tuple(index for layer in layers[begin:end] for index in layer) for begin, end in spans),
        tuple(sum(forward[begin:end]) for begin, end in spans),
        tuple(sum(backward[begin:end]) for begin, end in spans),
    )


def _layers(workload: Workload) -> tuple[list[tuple[int, ...]], list[float], list[float]]:
    """Return the layers in forward's order, and what forward and backward of each takes.

    A layer's backward lasts from the last gradient of the one behind it to its own; where nobody knows when forward
    needs what, its forward is in proportion to that.
    """
    layers = modules_of(workload.parameters)
    ready = np.nanmedian(workload.gradient_ready_s, axis=0)
    last = [float(np.nanmax(ready[list(layer)])) for layer in layers]
    order = sorted(range(len(layers)), key=lambda k: -last[k])
    layers = [layers[k] for k in order]
    times = [last[k] for k in order]
    backward = [time - after for time, after in zip(times, [*times[1:], 0.0], strict=True)]
    # Where the device waits for launches, its last gradient may come later than the time that it is busy.
    backward[0] = max(0.0, backward[0] + float(np.median(workload.backward.device_s)) - sum(backward))
    forward_s = float(np.median(workload.forward.device_s))
    if not workload.forward_use_known:
        return layers, [forward_s * each / sum(backward) for each in backward], backward
    shares = np.nan_to_num(workload.forward_shares().device_s, nan=1.0)
    begin = [float(shares[list(layer)].min()) for layer in layers]
    begin = np.maximum.accumulate([0.0, *begin[1:]]).tolist()
    forward = [forward_s * (after - here) for here, after in zip(begin, [*begin[1:], 1.0], strict=True)]
    return layers, forward, backward


def boundary_of(workload: Workload) -> int | None:
    """Return the bytes of a micro-batch's activations between two layers of a transformer; None where not known.

    Where its operators are known they are its tokens times their width, of 16 bits where all is: under autocast the
    sums beside its blocks stay in fp32.
    """
    ops = workload.operators
    if ops is None or ops.forward_use is None or all(len(each.shape) != 1 for each in workload.all_parameters):
        return None  # not counted, or no norm has the width
    blocks = blocks_in(ops.forward, ops.forward_use, workload.all_parameters)
    if not blocks:
        return None
    scale = workload.batch_size / ops.batch_size
    values = round(scale * blocks[0].row.rows) * width_of(workload.all_parameters)
    return values * (2 if workload.precision == "bf16" else 4)


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage as a rank has it.

    Attributes:
        stage: its number in the model.
        parameters: their registration indices, among those of the rank.
        host, device: of the rank's forward, from where to where it is this stage's.
        messages: of its layers, where they are cut over ranks; their shares are of the stage's forward.
    """

    stage: int
    parameters: frozenset[int]
    host: Span
    device: Span
    messages: tuple[LayerMessage, ...] = ()


ONLY_STAGE = StagePart(0, frozenset(), (0.0, 1.0), (0.0, 1.0))
"""Of a whole model, which is one stage."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """What a rank has of a model: all of it, as one stage, or some of its stages.

    Attributes:
        place: of the rank among those of a copy; that of 0 has the first stage, with whose backward that of the model
            ends.
        indices: registration indices of its parameters in the model, ascending.
        host, device: shares of the model's forward that are its own.
        size: share of the model's bytes that its parameters are, with which the optimizer's time goes.
        workload: the rank's own.
        stages: in forward's order.
    """

    place: int
    indices: Sequence[int]
    host: float
    device: float
    size: float
    workload: Workload = field(repr=False)
    stages: tuple[StagePart, ...]

    def pace_of(self, stage: int, whole: IterationProfile) -> IterationProfile:
        """Return the pace of a stage of the model that it has, of that of all that the rank has."""
        if len(self.stages) == 1:
            return whole
        one = next(each for each in self.stages if each.stage == stage)
        return replace(
            _keep(whole, one.parameters, ends=one is self.stages[0]),
            forward_host=whole.forward_host * (one.host[1] - one.host[0]),
            forward_work=whole.forward_work * (one.device[1] - one.device[0]),
        )


def parts_of(workload: Workload, pipeline: Pipeline) -> Iterator[ModelPart]:
    """Yield what each rank of a pipeline has of `workload`.

    Raises:
        InputError: more stages than layers, or an order that its micro-batches do not go into.
    """
    # Two clocks: a stage's span is a share of forward on the device, and on the host, which launches layers at other
    # shares of its own time. `own` has the same within what the rank has, its stages one after the other.
    cut = stages_of(workload, pipeline.stages * pipeline.stages_per_rank)
    count = len(cut.stages)
    device = _spans(cut.forward_s)
    host = _host_spans(workload, cut, device)
    works = works_of(pipeline.order, pipeline.stages, pipeline.micro_batches, pipeline.stages_per_rank)
    sizes = [each.size_bytes for each in workload.parameters]
    for place in range(pipeline.stages):
        held = range(place, count, pipeline.stages)
        indices = tuple(sorted(index for k in held for index in cut.stages[k]))
        local = {index: at for at, index in enumerate(indices)}
        lasts = [[each[k][1] - each[k][0] for k in held] for each in (host, device)]
        own = [_spans(each) for each in lasts]
        stages = tuple(
            StagePart(
                stage,
                frozenset(local[index] for index in cut.stages[stage]),
                own[0][at],
                own[1][at],
                _messages_of(workload.tensor, host[stage], device[stage], local, cut.stages[stage]),
            )
            for at, stage in enumerate(held)
        )
        size = sum(sizes[index] for index in indices) / sum(sizes)
        part = ModelPart(place, indices, sum(lasts[0]), sum(lasts[1]), size, workload, stages)
        most_kept = count_most_under_way(works[place]) / pipeline.stages_per_rank
        yield replace(part, workload=_workload_of(workload, cut, part, most_kept))


def plan_in_model(plans: Mapping[ModelPart, BucketPlan], parameters: Sequence[Parameter]) -> BucketPlan:
    """Return the buckets of all parts of a model as one plan of it, with the call of the first."""
    buckets = tuple(
        replace(bucket, parameters=tuple(part.indices[index] for index in bucket.parameters))
        for part, plan in plans.items()
        for bucket in plan.buckets
    )
    return BucketPlan(buckets, tuple(each.name for each in parameters), next(iter(plans.values())).call)


def _spans(lasts: Sequence[float]) -> list[Span]:
    """Return from where to where each of several consecutive times is, in shares of their sum."""
    ends = list(accumulate(lasts))
    whole = ends[-1] or 1.0
    return [(begin / whole, end / whole) for begin, end in zip([0.0, *ends[:-1]], ends, strict=True)]


def _host_spans(workload: Workload, cut: StageCosts, device: list[Span]) -> list[Span]:
    """Return from where to where the host launches each stage's forward; as on the device where that is not known."""
    if not workload.forward_use_known:
        return device
    shares = np.nan_to_num(workload.forward_shares().host_s, nan=1.0)
    begins = list(accumulate((float(shares[list(stage)].min()) for stage in cut.stages[1:]), max, initial=0.0))
    return list(pairwise([*begins, 1.0]))


def _messages_of(
    tensor: TensorParallel | None, host: Span, device: Span, local: dict[int, int], stage: Sequence[int]
) -> tuple[LayerMessage, ...]:
    """Return the messages of a stage's layers, of which those of forward lie in its span on the device."""
    if tensor is None:
        return ()
    messages = []
    for each in tensor.messages:
        if each.before is not None:
            if each.before in stage:
                messages.append(replace(each, before=local[each.before]))
        elif device[0] < each.device <= device[1] or (each.device == device[0] == 0.0):
            messages.append(replace(each, host=_within(each.host, host), device=_within(each.device, device)))
    return tuple(messages)


def _within(share: float, span: Span) -> float:
    begin, end = span
    return min(1.0, max(0.0, (share - begin) / (end - begin))) if end > begin else 1.0


def _workload_of(workload: Workload, cut: StageCosts, part: ModelPart, most_kept: float) -> Workload:
    """Return the workload of a rank: its stages one after the other, the last first in backward.

    Args:
        most_kept: micro-batches of whose activations it keeps its stages' at once, at most.
    """
    # Forward goes by time, backward by its gradients, the optimizer by bytes: what each was cut by. Frozen parameters
    # and buffers go where the nearest parameter of their module is. Operators would be of the whole model: left out.
    indices, held = list(part.indices), [each.stage for each in part.stages]
    hook, ready = (
        _gradients_of(times, cut, held)[:, indices] for times in (workload.gradient_hook_s, workload.gradient_ready_s)
    )
    backward = sum(cut.backward_s[k] for k in held) / sum(cut.backward_s)
    whole, tensor = workload.activations_bytes, workload.tensor
    if tensor is not None:
        tensor = TensorParallel(tensor.ranks, tuple(each for stage in part.stages for each in stage.messages))
    return replace(
        workload,
        parameters=tuple(workload.parameters[index] for index in indices),
        buffers=tuple(each for each in workload.buffers if find_nearest(each, workload.parameters) in indices),
        frozen=tuple(
            replace(each, before=sum(index < each.before for index in indices))
            for each in workload.frozen
            if find_nearest(each, workload.parameters) in indices
        ),
        forward=Phase(workload.forward.host_s * part.host, workload.forward.device_s * part.device),
        backward=Phase(workload.backward.host_s * backward, workload.backward.device_s * backward),
        optimizer=Phase(workload.optimizer.host_s * part.size, workload.optimizer.device_s * part.size),
        gradient_hook_s=hook,
        gradient_ready_s=ready,
        forward_use_s=None,
        activations_bytes=None if whole is None else round(whole * part.device * most_kept),
        tensor=tensor,
        operators=None,
    )


def _gradients_of(times: Seconds, cut: StageCosts, held: Sequence[int]) -> Seconds:
    """Return when the gradients of a rank's stages come, where these run one after the other; NaN of the others."""
    ready_s, offset = np.full_like(times, np.nan), np.zeros(len(times))
    for stage in reversed(held):
        own = list(cut.stages[stage])
        behind = [index for other in cut.stages[stage + 1 :] for index in other]
        begin = np.fmax.reduce(times[:, behind], axis=1, initial=0.0)
        end = np.fmax(np.fmax.reduce(times[:, own], axis=1, initial=0.0), begin)
        ready_s[:, own] = np.maximum(times[:, own] - begin[:, None], 0.0) + offset[:, None]
        offset = offset + end - begin
    return ready_s


def pace_of_part(whole: IterationProfile, part: ModelPart) -> IterationProfile:
    """Return the pace of a rank, of that of the whole model; gradients are numbered among those that it has."""
    own = {index: at for at, index in enumerate(part.indices)}
    kept_gradients = _keep(whole, own.keys(), ends=part.place == 0)
    made = replace(
        kept_gradients,
        order=tuple(own[index] for index in kept_gradients.order),
        forward_host=whole.forward_host * part.host,
        forward_work=whole.forward_work * part.device,
        optimizer_host=whole.optimizer_host * part.size,
        optimizer_work=whole.optimizer_work * part.size,
        idle_s=0.0,
        missed=frozenset(own[index] for index in whole.missed & own.keys()),
    )
    return replace(made, idle_s=made.least_idle_s)


def _keep(pace: IterationProfile, parameters: Collection[int], *, ends: bool) -> IterationProfile:
    """Return the backward of some parameters.

    Args:
        ends: whether what follows the last gradient of all is theirs.
    """
    places = [at for at, index in enumerate(pace.order) if index in parameters]
    host, work, lag = (np.asarray(times)[places] for times in (pace.host, pace.work, pace.lag))
    tail = 1.0 if ends else 0.0
    return replace(
        pace,
        order=tuple(pace.order[at] for at in places),
        host=host,
        work=work,
        lag=lag,
        tail_host=tail * pace.tail_host,
        tail_work=tail * pace.tail_work,
    )
