"""Which buckets to use where: sweeps over caps and node counts, an optimised list of caps, hardware side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.bucketing.caps import DEFAULT_CAP_MB
from ddpsim.bucketing.plan import custom_plan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives
from ddpsim.partition import best_partition
from ddpsim.prediction import Prediction, predict
from ddpsim.simulation import Options
from ddpsim.topology.graph import Topology
from ddpsim.workload import Workload

Progress = Callable[[int, int], None]

CAPS_MB = (1.0, 2.0, 5.0, 10.0, 15.0, 25.0, 40.0, 60.0, 100.0, 200.0)
"""Uniform caps a plan tries, in MiB."""

WORTH_IT = 0.01
"""Gain below which the advice is to keep torch's default."""

TELLING = 0.005
"""Difference below which the simpler plan is preferred: one cap to a list, a cap nearer to torch's to a giant one."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The best plan found for one machine and node count, beside torch's default.

    Attributes:
        best: the plan found; within `TELLING` of the fastest tried.
        default: torch's, [1, 25] MiB.
        sweep: (cap in MiB, iteration in seconds) of every uniform cap tried, ascending.
    """

    best: Prediction
    default: Prediction
    sweep: tuple[tuple[float, float], ...]

    @property
    def gain(self) -> float:
        """Share of the default's iteration that the best plan saves."""
        return 1 - self.best.iteration_s / self.default.iteration_s

    @property
    def keep_default(self) -> bool:
        """Whether the gain is under 1 % or inside the default's band."""
        return self.gain < WORTH_IT or self.best.iteration_s >= self.default.low_s

    @property
    def chosen(self) -> Prediction:
        """What is advised: the default, where the best gains too little."""
        return self.default if self.keep_default else self.best

    @property
    def advice(self) -> str:
        """The constructor call to paste."""
        return self.chosen.plan.torch

    def document(self) -> dict[str, object]:
        """Return one row of the `plan` document."""
        chosen, summary = self.chosen, self.chosen.summary
        return {
            "topology": chosen.topology.name,
            "workload": chosen.workload.name,
            "compute_device": chosen.workload.device,
            "estimated": chosen.workload.estimated,
            "nodes": chosen.nodes,
            "world_size": summary.world_size,
            "plan": [bucket.size_bytes for bucket in chosen.plan.buckets],
            "plan_fingerprint": chosen.plan.fingerprint(),
            "torch": self.advice,
            "keep_default": self.keep_default,
            "iteration_s": chosen.iteration_s,
            "iteration_low_s": chosen.low_s,
            "iteration_high_s": chosen.high_s,
            "default_iteration_s": self.default.iteration_s,
            "gain": 0.0 if self.keep_default else self.gain,
            "best_found": {"iteration_s": self.best.iteration_s, "gain": self.gain, "torch": self.best.plan.torch},
            "forward_s": summary.forward_s,
            "backward_compute_s": summary.backward_compute_s,
            "exposed_comm_s": summary.exposed_comm_s,
            "buffer_broadcast_s": summary.buffer_broadcast_s,
            "ddp_overhead_s": summary.ddp_overhead_s,
            "optimizer_s": summary.optimizer_s,
            "local_s": chosen.local_s,
            "overlap_ratio": summary.overlap_ratio,
            "scaling_efficiency": chosen.scaling_efficiency,
            "samples_per_s": summary.world_size * chosen.workload.batch_size / chosen.iteration_s,
            "bucket_memory_bytes": 0 if chosen.options.gradient_as_bucket_view else chosen.plan.size_bytes,
            "sweep": [{"bucket_cap_mb": cap, "iteration_s": seconds} for cap, seconds in self.sweep],
        }


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Rows by machine and node count."""

    rows: tuple[PlanRow, ...]

    @property
    def best(self) -> PlanRow:
        """The row with the most samples a second over all its ranks; the fewest ranks among equals."""

        def rate(row: PlanRow) -> tuple[float, int]:
            ranks = row.chosen.summary.world_size
            return ranks / row.chosen.iteration_s, -ranks

        return max(self.rows, key=rate)

    def document(self) -> dict[str, object]:
        """Return the `plan` document."""
        return {"rows": [row.document() for row in self.rows], "best": self.best.document()}


def sweep(
    workload: Workload,
    topology: Topology,
    *,
    nodes: Sequence[int | None],
    caps: Sequence[BucketCaps],
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    executor: Executor | None = None,
) -> Iterator[Prediction]:
    """Predict every cap at every node count, nodes outermost, in the order given.

    Args:
        executor: where the predictions are computed: processes on one machine, or a cluster's; None is here, one by
            one.
    """
    base = options or Options()
    one = partial(_one, workload, topology, gpus_per_node, calibration)
    work = [(count, replace(base, caps=cap)) for count in nodes for cap in caps]
    yield from (executor.map if executor else map)(one, *zip(*work, strict=True))


def plan(
    workload: Workload,
    topologies: Sequence[Topology],
    *,
    nodes: Sequence[int | None] = (None,),
    caps: Sequence[BucketCaps] | None = None,
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
) -> PlanReport:
    """Find the buckets that make an iteration shortest on each topology and node count.

    Tried are torch's default, uniform caps, and the exact best partition of a pipeline model; each is simulated. Of
    those within `TELLING` of the fastest the simplest is the plan. Node counts that a topology cannot hold raise as
    `Topology.place` does.

    Args:
        caps: tried beside torch's default, instead of uniform caps and the partition; each with a `bucket_cap_mb`.
        progress: called with (rows done, rows in all).
    """
    cells = [(topology, count) for topology in topologies for count in nodes]
    rows = []
    for done, (topology, count) in enumerate(cells):
        if progress:
            progress(done, len(cells))
        rows.append(_row(workload, topology, count, caps, options or Options(), gpus_per_node, calibration))
    if progress:
        progress(len(cells), len(cells))
    return PlanReport(tuple(rows))


def _row(
    workload: Workload,
    topology: Topology,
    nodes: int | None,
    given: Sequence[BucketCaps] | None,
    options: Options,
    gpus_per_node: int | None,
    calibration: Calibration | None,
) -> PlanRow:
    default = _one(
        workload, topology, gpus_per_node, calibration, nodes, replace(options, caps=BucketCaps(), plan=None)
    )
    one = partial(_one, workload, topology, gpus_per_node, calibration, local_s=default.local_s)
    total_mb = workload.gradient_bytes / (1 << 20)
    sizes = [*(cap for cap in CAPS_MB if cap < total_mb), float(np.ceil(total_mb))]
    caps = [BucketCaps(bucket_cap_mb=size) for size in sizes] if given is None else given
    uniform = [one(nodes, replace(options, caps=cap, plan=None)) for cap in caps]
    best = _simplest([default, *uniform])
    if given is None and (partition := pipeline_plan(default, calibration, gpus_per_node)) is not None:
        listed = one(nodes, replace(options, caps=BucketCaps(), plan=partition))
        best = listed if listed.iteration_s < best.iteration_s * (1 - TELLING) else best
    curve = ((cap.bucket_cap_mb or 0.0, found.iteration_s) for cap, found in zip(caps, uniform, strict=True))
    return PlanRow(best, default, tuple(curve))


def _simplest(predictions: Sequence[Prediction]) -> Prediction:
    """Return, of those within `TELLING` of the fastest, torch's default or else the cap nearest to its own."""
    fastest = min(prediction.iteration_s for prediction in predictions)
    close = [prediction for prediction in predictions if prediction.iteration_s <= fastest * (1 + TELLING)]

    def distance(prediction: Prediction) -> float:
        cap = prediction.options.caps.bucket_cap_mb
        return 0.0 if cap is None else 1.0 + abs(np.log(max(cap, 1e-3) / DEFAULT_CAP_MB))

    return min(close, key=distance)


def pipeline_plan(
    default: Prediction, calibration: Calibration | None = None, gpus_per_node: int | None = None
) -> BucketPlan | None:
    """Return the exact best partition of the pipeline model; None where gradients are of several kinds.

    Args:
        default: a prediction whose gradients' ready times are used.
    """
    parameters = default.workload.parameters
    if len({(p.dtype, p.device) for p in parameters}) > 1 or any(p.sparse for p in parameters):
        return None
    synced = [it for it in default.trace.of_rank(0) if it.synced and it.gradients]
    if not synced or default.summary.world_size == 1:
        return None
    gradients = sorted(synced[0].gradients, key=lambda g: g.hook_s)
    if len(gradients) < len(parameters):
        return None
    placement = default.topology.place(default.nodes, gpus_per_node)
    backend = default.options.backend_for(default.workload)
    collectives = Collectives(simpy.Environment(), placement, backend=backend, calibration=calibration)
    order = [g.parameter for g in gradients]
    ready = np.maximum.accumulate([g.ready_s for g in gradients]) - synced[0].start_s
    sizes = [parameters[index].size_bytes for index in order]
    lengths = best_partition(ready.tolist(), sizes, _interpolated(collectives.estimate_s, sum(sizes)))
    ends = np.cumsum(lengths)
    groups = [tuple(order[end - length : end]) for length, end in zip(lengths, ends, strict=True)]
    return custom_plan(parameters, groups)


def _interpolated(
    seconds: Callable[[int], float], largest: int
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return `seconds` as a vectorised function, linear in the logarithm of its argument between 64 samples."""
    sizes = np.unique(np.geomspace(64, max(largest, 128), 64).astype(np.int64))
    times = np.array([seconds(int(size)) for size in sizes])
    log_sizes, log_times = np.log(sizes), np.log(times)
    return lambda size: np.exp(np.interp(np.log(np.maximum(size, 64)), log_sizes, log_times))


def _one(
    workload: Workload,
    topology: Topology,
    gpus_per_node: int | None,
    calibration: Calibration | None,
    nodes: int | None,
    options: Options,
    local_s: float | None = None,
) -> Prediction:
    return predict(
        workload,
        topology,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        options=options,
        calibration=calibration,
        local_s=local_s,
    )
