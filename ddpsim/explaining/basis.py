"""What a prediction of the traced configuration rests on: workload, buckets, and DDP's own host costs as traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.collectives.calibration import Calibration
from ddpsim.workload import Workload
from ddpsim.workload.kineto.mapping import map_arrivals
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import HostStep
from ddpsim.workload.kineto.workload import DissectedTrace, TraceFile, usual_micro_batches, workload_in
from ddpsim.workload.profile import Phase

_MOST_STEPS = 12
"""Steps whose times a prediction replays: enough for their jitter, few enough to be quick; chosen by hand."""
_BROADCASTS = 2
"""Broadcasts of a step's buffers at least, where floats and counters of batches are sent apart."""


@dataclass(frozen=True, slots=True)
class PredictionBasis:
    """What is needed to predict the traced configuration.

    Attributes:
        workload: one rank's step without DDP.
        groups: registration indices of each traced bucket, in launch order; empty without DDP.
        order: registration indices as gradients arrived.
        costs: DDP's own costs by the constant's name without backend and `ddp`, seconds.
        finish_s: host time at the end of backward that no number of buckets changes.
        broadcasts: whether buffers are broadcast before a forward.
        input_s: what lies between the optimizer and the next forward.
        caps: with which the job was run; None where the trace does not say.
        accumulate: whose gradients a step adds up.
        sync: which of them reduce gradients.
        notes: of the import.
    """

    workload: Workload
    groups: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    costs: Mapping[str, float]
    finish_s: float
    broadcasts: bool
    input_s: float = 0.0
    notes: tuple[str, ...] = ()
    caps: BucketCaps | None = None
    accumulate: int = 1
    sync: Literal["last", "every"] = "last"

    @property
    def finishing(self) -> Workload:
        """The workload with the end of DDP's backward in it: behind its waits on a CPU, before them on a GPU's host."""
        optimizer, backward, more_s = self.workload.optimizer, self.workload.backward, self.finish_s
        if self.workload.on_cpu:
            later = Phase(optimizer.host_s + more_s, optimizer.device_s + more_s)
            return replace(self.workload, optimizer=later)
        return replace(self.workload, backward=Phase(backward.host_s + more_s, backward.device_s))

    @property
    def finishes(self) -> Literal["optimizer", "backward"]:
        """The phase that holds the end of DDP's backward in `finishing`."""
        return "optimizer" if self.workload.on_cpu else "backward"

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Of the model, in registration order."""
        return self.workload.parameters


def basis_of(
    file: TraceFile,
    alone: TimelineWithoutDdp,
    waited: Sequence[tuple[HostStep, float]],
    shapes: Workload | None,
) -> PredictionBasis:
    """Return the basis in a Kineto trace.

    Args:
        file: the trace.
        alone: its time line without DDP.
        waited: micro-batches with the usual number of gradients, each with how long its host waited for collectives at
            the end of backward.
        shapes: a workload of the same model, where known.

    Raises:
        TraceError: a trace without shapes, where none are given.
        WorkloadError: `shapes` is of another model.
    """
    usual = usual_micro_batches([step for step, _ in waited])
    waited = waited[: max(2, _MOST_STEPS // usual) * usual]
    steps = [step for step, _ in waited]
    mapping = map_arrivals(steps, shapes, file.place)
    traced = DissectedTrace(file, steps, alone, mapping, ())
    imported = workload_in(traced, shapes)
    synced = [step for step in steps if step.collectives]
    last = synced[-1].collectives if synced else ()
    edges = [0, *(collective.after for collective in last)]
    groups = tuple(mapping.order[begin:end] for begin, end in pairwise(edges)) if last else ()
    broadcasts = any(i.start_s < step.backward_s for step in steps for i in step.ddp)
    workload = imported.workload
    costs, finish_s = _costs(waited, workload) if last else ({}, 0.0)
    every = 2 * len(synced) > len(steps)
    return PredictionBasis(
        workload,
        groups,
        mapping.order,
        costs,
        finish_s * (usual if every and workload.on_cpu else 1),
        broadcasts,
        usual * _input_s(steps),
        imported.notes,
        accumulate=usual,
        sync="every" if every else "last",
    )


def _costs(waited: Sequence[tuple[HostStep, float]], workload: Workload) -> tuple[dict[str, float], float]:
    """Return what DDP took of the traced host, and what of the end of backward grows with parameters, not buckets.

    A hook, a launch, a broadcast buffer: the hook that launches a bucket takes a launch more than the others. torch
    copies each gradient out of its bucket by itself, so that the end of backward is a parameter's cost: none of it
    would go with fewer buckets. Forward's own part is inside its time. On a CPU copies are DDP's host time as well,
    which the constants have apart: they are taken off here.
    """
    synced = [(step, exposed_s) for step, exposed_s in waited if step.collectives]
    found = [_split_step(step, exposed_s) for step, exposed_s in synced]
    on_cpu = workload.on_cpu
    costs = {name: (min if on_cpu else median)(each[name] for each in found) for name in found[0]}
    broadcast, finish = costs.pop("broadcast_s"), costs.pop("finish_s")
    if workload.buffers and broadcast > 0:
        costs["buffer_s"] = max(0.0, broadcast - _BROADCASTS * costs["launch_s"]) / len(workload.buffers)
    if on_cpu:
        copies_s = workload.gradient_bytes / Calibration.priors("gloo")["gloo.ddp.copy_Bps"]
        costs["hook_s"] -= copies_s / len(workload.parameters)
        finish -= copies_s
    backend = "gloo" if on_cpu else "nccl"
    finish -= len(synced[-1][0].collectives) * Calibration.priors(backend)[f"{backend}.ddp.finish_s"]
    return {**{name: max(0.0, seconds) for name, seconds in costs.items()}, "forward_s": 0.0}, max(0.0, finish)


def _split_step(step: HostStep, exposed_s: float) -> dict[str, float]:
    def lengths(start_s: float, end_s: float, *, launching: bool | None = None) -> list[float]:
        return [
            i.end_s - i.start_s
            for i in step.ddp
            if start_s <= i.start_s < end_s
            and (launching is None or launching == any(i.start_s <= c.launched_s < i.end_s for c in step.collectives))
        ]

    plain = lengths(step.backward_s, step.backward_end_s, launching=False)
    launching = lengths(step.backward_s, step.backward_end_s, launching=True)
    hook_s = fmean(plain) if plain else 0.0
    return {
        "hook_s": hook_s,
        "launch_s": fmean(launching) - hook_s if launching else 0.0,
        "finish_s": sum(lengths(step.backward_end_s, step.end_s)) - exposed_s,
        "broadcast_s": sum(lengths(step.forward_s, step.backward_s)),
    }


def _input_s(steps: Sequence[HostStep]) -> float:
    """Return the median of what lies between an optimizer's step and the next forward, without clearing gradients.

    Of micro-batches it is the mean: one of them has the step's own loading and logging.
    """
    gaps = []
    for step, after in pairwise(steps):
        updated_s = max([step.backward_end_s, *(i.end_s for i in (*step.ddp, *step.optimizer))])
        cleared = sum(i.end_s - i.start_s for i in after.optimizer if i.end_s <= after.forward_s)
        gaps.append(max(0.0, after.forward_s - updated_s - cleared))
    return 0.0 if not gaps else fmean(gaps) if steps[0].count > 1 else median(gaps)
