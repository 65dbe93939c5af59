"""`PredictionBasis`: the workload, the buckets and DDP's own host costs of a traced configuration."""

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
"""Broadcasts of a step's buffers at least: torch sends floats and the integer counters of batches separately."""


@dataclass(frozen=True, slots=True)
class PredictionBasis:
    """What is needed to predict the traced configuration."""

    workload: Workload
    """One rank's step without DDP."""
    groups: tuple[tuple[int, ...], ...]
    """Registration indices of each traced bucket, in launch order; empty without DDP."""
    order: tuple[int, ...]
    """Registration indices in the order in which gradients arrived."""
    costs: Mapping[str, float]
    """DDP's own host costs in seconds, by constant without backend and `ddp`: `hook_s`, `launch_s`, ..."""
    finish_s: float
    """Host time at the end of backward that does not depend on the number of buckets."""
    broadcasts: bool
    """Whether buffers are broadcast before a forward."""
    input_s: float = 0.0
    """Time between the optimizer and the next forward."""
    notes: tuple[str, ...] = ()
    """What the import of the workload left out or assumed."""
    caps: BucketCaps | None = None
    """Bucket caps of the job; None where the trace does not record them."""
    accumulate: int = 1
    """Micro-batches of a step."""
    sync: Literal["last", "every"] = "last"
    """Which of them reduce gradients."""

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
        """The model's parameters in registration order."""
        return self.workload.parameters


def basis_of(
    file: TraceFile,
    without_ddp: TimelineWithoutDdp,
    waited: Sequence[tuple[HostStep, float]],
    shapes: Workload | None,
) -> PredictionBasis:
    """Return the basis in a Kineto trace.

    Args:
        file: the trace.
        without_ddp: its time line replayed without DDP.
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
    traced = DissectedTrace(file, steps, without_ddp, mapping, ())
    imported = workload_in(traced, shapes)
    synced = [step for step in steps if step.collectives]
    last = synced[-1].collectives if synced else ()
    edges = [0, *(collective.after for collective in last)]
    groups = tuple(mapping.order[begin:end] for begin, end in pairwise(edges)) if last else ()
    broadcasts = any(i.start_s < step.backward_s for step in steps for i in step.ddp)
    workload = imported.workload
    costs, finish_s = _costs(waited, workload) if last else ({}, 0.0)
    # Under no_sync() one micro-batch of each step reduces; without it all do.
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
    """Return DDP's host costs in the trace by constant, and the end of backward, which grows with parameters.

    Each cost is a difference of traced intervals: a hook is one that launches no bucket, a launch is what a hook that
    launches one takes more, a buffer is a share of the broadcasts. torch copies each gradient out of its bucket by
    itself, so that the end of backward depends on the number of parameters and fewer buckets do not shorten it. DDP's
    part of forward is within forward's time already. On a CPU the copies are host time too: `gloo.ddp.copy_Bps` has
    them in the simulation, so that they are subtracted here, or they would count twice.
    """
    synced = [(step, exposed_s) for step, exposed_s in waited if step.collectives]
    split = [_split_step(step, exposed_s) for step, exposed_s in synced]
    on_cpu = workload.on_cpu
    # On a CPU ranks and gloo's threads share the processors: the quickest step is nearest to the cost itself.
    costs = {name: (min if on_cpu else median)(each[name] for each in split) for name in split[0]}
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
            interval.end_s - interval.start_s
            for interval in step.ddp
            if start_s <= interval.start_s < end_s
            and (
                launching is None
                or launching == any(interval.start_s <= c.launched_s < interval.end_s for c in step.collectives)
            )
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
    """Return the median time between an optimizer's step and the next forward, without clearing gradients.

    With micro-batches it is the mean over them: one alone has the step's logging, and a median would lose it.
    """
    gaps = []
    for step, after in pairwise(steps):
        updated_s = max([step.backward_end_s, *(i.end_s for i in (*step.ddp, *step.optimizer))])
        cleared = sum(i.end_s - i.start_s for i in after.optimizer if i.end_s <= after.forward_s)
        gaps.append(max(0.0, after.forward_s - updated_s - cleared))
    return 0.0 if not gaps else fmean(gaps) if steps[0].count > 1 else median(gaps)
