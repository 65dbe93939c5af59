"""A prediction: the simulated trace, its summary, and what the same step takes without DDP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from ddpsim import __version__
from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import correcting_curve
from ddpsim.doubts import join
from ddpsim.doubts.causes import doubts_of
from ddpsim.doubts.doubt import Assumptions, Doubt, Effect
from ddpsim.errors import InputError
from ddpsim.prediction.document import flat
from ddpsim.prediction.memory import Memory, capacity_bytes
from ddpsim.simulation import Options, simulate, simulate_local
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.engine import WARM_UP
from ddpsim.simulation.rank import Progress
from ddpsim.topology.graph import Cluster, Placement
from ddpsim.topology.placement import place
from ddpsim.trace.metrics import Summary, summarise
from ddpsim.trace.records import Trace
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_of, kind_of
from ddpsim.workload.single_clock import single_clock

_SETTLED = 1
"""Iterations after which those that are all alike repeat, to rounding."""

_JITTER, _NO_REMEDY = "jitter", "none: iterations differ"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `predict` returns.

    Attributes:
        placement: the ranks that take part, and where.
        summary: iteration latency and its breakdown.
        local_s: the period of one rank without DDP.
        low_s, high_s: band of the iteration: 10th and 90th percentile over iterations, joined with what each doubt
            changes.
        plan: the buckets used.
        trace: of the simulated ranks.
        calibrated: whether measured constants took the place of priors.
        correcting_rows: measured rows of exactly this machine and rank count, by which its collectives are corrected.
        copies_measured: whether its calibration has the rate of copies into buckets.
        ends: each doubt with the iteration at its two ends; empty until `with_band`.
    """

    workload: Workload
    placement: Placement
    options: Options
    summary: Summary
    local_s: float
    low_s: float
    high_s: float
    plan: BucketPlan
    trace: Trace
    calibrated: bool
    correcting_rows: int = 0
    copies_measured: bool = False
    ends: tuple[tuple[Doubt, tuple[float, float]], ...] = ()

    def __repr__(self) -> str:
        where = f"{self.nodes} x {self.topology.name}"
        return f"<Prediction: {self.workload.name} on {where}, {self.iteration_s * 1e3:.4g} ms a step>"

    @property
    def topology(self) -> Cluster:
        """The machine."""
        return self.placement.topology

    @property
    def nodes(self) -> int:
        """How many of its nodes take part."""
        return self.placement.nodes

    @property
    def iteration_s(self) -> float:
        """Steady-state period in seconds."""
        return self.summary.iteration_s

    @property
    def doubts(self) -> tuple[Effect, ...]:
        """What each doubt does to the iteration, the largest first; jitter is one where recorded iterations differ."""
        s = self.summary
        jitter = Effect(_JITTER, _NO_REMEDY, s.iteration_low_s, s.iteration_high_s, 1.0)
        return join.largest_first([jitter, *(join.effect(doubt, s.iteration_s, ends) for doubt, ends in self.ends)])

    @property
    def scaling_efficiency(self) -> float:
        """Share of one rank's speed without DDP that each rank keeps."""
        return self.local_s / self.iteration_s

    @property
    def other_devices(self) -> list[str]:
        """Devices whose pace the workload does not keep, of nodes without a workload of their own."""
        classes = (each.template for each in self.placement.classes)
        models = dict.fromkeys(template.gpus[0].model for template in classes if template.workload is None)
        kept = {kind_of(self.workload.device).lower(), *(("cpu",) if self.workload.timed else ())}
        return [model for model in models if kind_of(model).lower() not in kept]

    @property
    def assumed(self) -> dict[str, float]:
        """The constants that stand for figures of a GPU that nobody gave."""
        unknown = gpu_of(self.workload.gpu, self.workload.provenance) is None and not self.workload.one_clock
        if not unknown or self.copies_measured or self.placement.world_size == 1:
            return {}
        backend = self.options.backend_for(self.workload)
        return {f"{backend}.ddp.copy_Bps": Costs.of(backend, None).copy_Bps}

    @property
    def memory(self) -> Memory | None:
        """What a rank needs of its GPU's memory; None on a CPU, whose memory is not judged."""
        if self.workload.one_clock or self.topology.compute_device == "cpu":
            return None
        models = [gpu.model for each in self.placement.classes for gpu in each.template.gpus]
        return Memory.of(self.workload, self.plan, self.options, capacity_bytes(self.workload, models))

    @property
    def ranks_differ(self) -> bool:
        """Whether several ranks recorded the workload at once and another number computes on a machine here."""
        return self.workload.ranks not in (1, self.placement.gpus_per_node) and not self.workload.timed

    def wire_bytes(self, parameters: Sequence[int]) -> int:
        """Return the bytes of the ring allreduce that loads links as a bucket of these parameters does."""
        bucket = [self.workload.parameters[index] for index in parameters]
        messages = self.options.scheme.messages(bucket)
        return sum(round(message.allreduce_bytes(self.summary.world_size)) for message in messages)

    def records(self) -> list[dict[str, object]]:
        """Return one flat row of the `predict` document, for `pandas.DataFrame`; rows of a sweep can be joined."""
        return [flat(self.document())]

    def document(self) -> dict[str, object]:
        """Return the `predict` document; the units are in its keys."""
        s = self.summary
        return {
            "iteration_s": s.iteration_s,
            "iteration_statistic": s.iteration_statistic,
            "iteration_low_s": self.low_s,
            "iteration_high_s": self.high_s,
            "doubts": [doubt.document() for doubt in self.doubts],
            "forward_s": s.forward_s,
            "backward_compute_s": s.backward_compute_s,
            "exposed_comm_s": s.exposed_comm_s,
            "exposed_skew_s": s.exposed_skew_s,
            "buffer_broadcast_s": s.buffer_broadcast_s,
            "ddp_overhead_s": s.ddp_overhead_s,
            "optimizer_s": s.optimizer_s,
            "local_s": self.local_s,
            "overlap_ratio": s.overlap_ratio,
            "scaling_efficiency": self.scaling_efficiency,
            "samples_per_s": s.world_size * self.workload.batch_size / s.iteration_s,
            "world_size": s.world_size,
            "nodes": self.nodes,
            "compute_device": self.workload.device_label,
            "topology": self.topology.name,
            "workload": self.workload.name,
            "buckets": [
                {
                    "index": b.index,
                    "size_bytes": b.size_bytes,
                    "wire_bytes": self.wire_bytes(b.parameters),
                    "parameters": list(b.parameters),
                    "ready_s": b.ready_s,
                    "launched_s": b.launched_s,
                    "started_s": b.started_s,
                    "wire_s": b.wire_s,
                    "finished_s": b.finished_s,
                    "written_s": b.written_s,
                }
                for b in s.buckets
            ],
            "plan_fingerprint": self.plan.fingerprint(),
            "torch": self.plan.torch,
            "memory": None if (memory := self.memory) is None else memory.document(),
            "provenance": {
                "ddpsim": __version__,
                "seed": self.options.seed,
                "topology_fingerprint": self.topology.fingerprint(),
                "workload_estimated": self.workload.estimated,
                "calibrated": self.calibrated,
                "correcting_rows": self.correcting_rows,
                "fidelity": self.options.fidelity,
                "compression": self.options.compression,
                "drop": dict(self.options.drop),
                "order": self.options.order,
                **({"assumed": assumed} if (assumed := self.assumed) else {}),
            },
        }


def predict(
    workload: Workload,
    topology: Cluster,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    options: Options | None = None,
    calibration: Calibration | None = None,
    local_s: float | None = None,
    band: bool = True,
    progress: Progress | None = None,
    brief: bool = False,
) -> Prediction:
    """Predict the iteration latency of `workload` on `topology`.

    Args:
        workload: one rank's iteration without communication; its device's pace is kept on any topology. A GPU's on
            a node without GPUs is replayed by timed layers (`single_clock`).
        topology: the machine.
        nodes: how many; None is the topology's own count.
        gpus_per_node: the first so many of each node; None is all.
        options: of the run; None is torch's defaults.
        calibration: measured constants; None is the documented priors.
        local_s: one rank's period without DDP where it is known already; None simulates it.
        band: whether to simulate what its doubts change, two runs each; `with_band` does so afterwards.
        brief: whether to simulate no more iterations than tell the period, where all are alike.
        progress: called with iterations done and in all, in each of these runs.

    Raises:
        InputError: as `simulate` and `Topology.place`.
    """
    options = options or Options()
    placement = place(topology, nodes, gpus_per_node)
    workload, named = _on(topology, workload, options), _workloads_on(placement, options)
    run, warm_up = _brief(options, workload) if brief else (options, WARM_UP)
    trace = simulate(workload, placement, run, calibration, workloads=named, progress=progress, warm_up=warm_up)
    summary = summarise(trace)
    curve = correcting_curve(placement, options.backend_for(workload), calibration, options.algorithm)
    prediction = Prediction(
        workload=workload,
        placement=placement,
        options=options,
        summary=summary,
        local_s=local_period_s(workload, options, progress) if local_s is None else local_s,
        low_s=summary.iteration_low_s,
        high_s=summary.iteration_high_s,
        plan=trace.plan,
        trace=trace,
        calibrated=calibration is not None and calibration.measured,
        copies_measured=calibration is not None and _measures_copies(calibration),
        correcting_rows=0 if curve is None or placement.world_size == 1 else len(curve.points),
    )
    return with_band(prediction, calibration, progress) if band else prediction


def _measures_copies(calibration: Calibration) -> bool:
    constant = calibration.constants.get(f"{calibration.backend}.ddp.copy_Bps")
    return constant is not None and constant.fitted


def with_band(prediction: Prediction, calibration: Calibration | None, progress: Progress | None = None) -> Prediction:
    """Return `prediction` with what each of its doubts changes, joined into its band.

    Args:
        prediction: whose band is of its iterations alone.
        calibration: that it was made with.
        progress: as that of `predict`.
    """
    sizes = [bucket.size_bytes for bucket in prediction.plan.buckets]
    doubts = doubts_of(prediction.workload, prediction.placement, prediction.options, calibration, sizes)
    options, now_s = prediction.options, prediction.iteration_s
    if options.fidelity == "steps":
        # What a doubt changes is told by flows as well, and every transfer of every end would take minutes.
        options = replace(options, fidelity="flow")
        now_s = _period_s(prediction, options, Assumptions(calibration), progress)

    def end_s(assumptions: Assumptions | None) -> float:
        moved_s = 0.0 if assumptions is None else _period_s(prediction, options, assumptions, progress) - now_s
        return prediction.iteration_s + moved_s

    ends = tuple((doubt, (end_s(doubt.low), end_s(doubt.high))) for doubt in doubts)
    banded = replace(prediction, ends=ends)
    low_s, high_s = join.band(prediction.iteration_s, banded.doubts)
    return replace(banded, low_s=low_s, high_s=high_s)


def gain_band(default: Prediction, other: Prediction) -> tuple[float, float]:
    """Return the band of the share of the default's iteration that `other` saves, both under the same draws."""
    gain = 1 - other.iteration_s / default.iteration_s
    theirs = {doubt.name: ends for doubt, ends in other.ends}
    effects = [
        join.effect(doubt, gain, [1 - b / a for a, b in zip(ends, theirs[doubt.name], strict=True)])
        for doubt, ends in default.ends
    ]
    return join.band(gain, effects)


def _period_s(
    prediction: Prediction, options: Options, assumptions: Assumptions, progress: Progress | None = None
) -> float:
    """Return the iteration of `prediction` under other assumptions."""
    scaled = replace(
        options,
        scale_compute=options.scale_compute * assumptions.compute,
        scale_host=options.scale_host * assumptions.host,
    )
    scaled, warm_up = _brief(scaled, prediction.workload)
    trace = simulate(
        prediction.workload,
        prediction.placement,
        scaled,
        assumptions.calibration,
        workloads=_workloads_on(prediction.placement, options),
        wire_factor=assumptions.wire_factor,
        warm_up=warm_up,
        progress=progress,
    )
    return summarise(trace).iteration_s


def _brief(options: Options, workload: Workload) -> tuple[Options, int]:
    """Return options and warm-up that tell the period alone: of iterations that are all alike one, once settled."""
    alike = options.iterations is None and options.order is None and options.iterations_of(workload) == 2
    return (replace(options, iterations=1), _SETTLED) if alike else (options, WARM_UP)


def _workloads_on(placement: Placement, options: Options) -> dict[str, Workload]:
    """Return by name the workloads of node templates that have their own."""
    named = sorted({c.template.workload for c in placement.classes if c.template.workload is not None})
    return {name: _on(placement.topology, load_workload(name), options) for name in named}


def _on(topology: Cluster, workload: Workload, options: Options) -> Workload:
    """Return `workload` as a topology's nodes replay it: a GPU's by timed layers where they have none.

    Raises:
        InputError: a CPU's on nodes with GPUs, without a backend: it has no pace that a GPU could keep.
    """
    if topology.compute_device == "cpu":
        return workload if workload.on_cpu else single_clock(workload)
    if workload.on_cpu and options.backend is None:
        raise InputError(
            f"{workload.name} was recorded on a CPU, {topology.name} has GPUs ({topology.compute_device})",
            place="workload",
            remedy=(
                "estimate the step on that GPU (`python -m ddpexec estimate --step ... --gpu ...`), carry a capture "
                "to it (`... --from capture.json --gpu ...`), or say `backend=gloo` to train on its CPUs"
            ),
        )
    return workload


def local_period_s(workload: Workload, options: Options, progress: Progress | None = None) -> float:
    """Return one rank's period without DDP: the median over cycles of accumulated gradients of the mean iteration.

    Where layers are left out it is the mean over all iterations, as with DDP.
    """
    periods = [it.iteration_s for it in simulate_local(workload, options, progress)]
    cycle = options.no_sync_every
    centre = fmean if any(options.drop.values()) else median
    return centre(fmean(periods[begin : begin + cycle]) for begin in range(0, len(periods), cycle))
