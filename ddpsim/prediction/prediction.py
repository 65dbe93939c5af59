"""What a prediction is: the simulated trace, its summary, its band, and what the same step takes without DDP.

`predict.py` makes it, and its document is written here (`document`, `step_document`) and read in `document.py`. A
prediction that was read has the same properties: a `Figure` is computed, or taken from the document in `read`. Start at
the fields of `Prediction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Generic, TypeVar

from ddpsim.bucketing import BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import GPU_BACKENDS
from ddpsim.collectives.execute import find_correcting_curve
from ddpsim.collectives.nccl.paths_taken import ChosenPaths, paths_advice, paths_taken
from ddpsim.common.documents.fields import document_of
from ddpsim.common.tables import ResultTable, table_of
from ddpsim.common.units import format_count, format_time
from ddpsim.common.version import __version__
from ddpsim.prediction.doubts import join
from ddpsim.prediction.doubts.doubt import Effect, Ends
from ddpsim.prediction.memory import Memory
from ddpsim.prediction.notes import calibration_notes, codec_notes, pace_notes
from ddpsim.prediction.path import CriticalPath
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import Simulated, trace_of
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.graph_cuts import GraphCuts
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.graph import Cluster, Placement
from ddpsim.trace.metrics import OVER_ITERATIONS, Summary, summarise
from ddpsim.trace.records import MOMENTS
from ddpsim.trace.tables import parts_table
from ddpsim.workload import Workload
from ddpsim.workload.gpus import gpu_of, kind_of
from ddpsim.workload.replayed import clipping_share

Band = tuple[float, float, float]
"""A number with its 10th and 90th percentile: middle, low, high."""

PARTS, BUCKETS = "Parts of the step", "Buckets"
"""Titles of a prediction's tables."""

_REMARKS = ("servers",)
"""Keys of what is measured in a run other than times."""
_OF_ONE = (
    "rank_steps_s", *_REMARKS, "iterations", "ends", "buckets", "plan", "notes", "transports", "provenance",
)  # fmt: skip
"""Keys of the `predict` document that no row of a table has."""

_JITTER, _NO_REMEDY = "jitter", "none: iterations differ"


Value = TypeVar("Value")


class Figure(Generic[Value]):
    """A property of a prediction that is also a key of its document; of a prediction that was read it is that value."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._key = name

    def __get__(self, prediction: Prediction, owner: type) -> Value:
        """Return the figure."""
        if prediction is None:
            return self
        if prediction.read is None:
            return self._compute(prediction)
        value: Value = prediction.read[self._key]
        return value


@dataclass(frozen=True, slots=True)
class AlternativeStep:
    """A step under other assumptions, and whether it was retimed from the graph of the run rather than simulated."""

    iteration_s: float
    retimed: bool


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `predict` returns.

    Attributes:
        run: the simulation whose iterations are summarised.
        summary: iteration latency and its breakdown.
        plan: the buckets used.
        local_s: the period of one rank without DDP.
        low_s, high_s: band of the iteration: 10th and 90th percentile over iterations, joined with what each doubt
            changes.
        ends: the iteration at the two ends of each doubt; empty until `with_band`.
        hidden_comm_cost_s: what computing and communicating at once costs the iteration beyond each by itself; it is
            in the parts already. None until `with_band`.
        read: the document that it was read from; None where it was computed.
    """

    run: SimulatedRun = field(repr=False)
    summary: Summary
    plan: BucketPlan
    local_s: float
    low_s: float
    high_s: float
    ends: tuple[Ends, ...] = field(default=(), compare=False)
    hidden_comm_cost_s: float | None = field(default=None, compare=False)
    read: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | str, job: Job | None = None) -> Prediction:
        """Return the prediction of which `document` is the JSON: with its job an equal one.

        Without a job it has the numbers and tables, and says what it lacks where its run, trace or buckets' plan are
        asked for. Its trace is simulated again where it is asked for.

        >>> from ddpsim import Job, predict
        >>> job = Job("resnet50", "dgx-1v", nodes=2)
        >>> found = predict(job)
        >>> Prediction.from_document(found.document(), job) == found
        True
        >>> Prediction.from_document(found.document()).samples_per_s == found.samples_per_s
        True

        Raises:
            InputError: no predict document, one that lacks something, as of an earlier version, or another job's.
        """
        from ddpsim.prediction.arguments import on_own_gpus

        return cls.of_run(document, None if job is None else SimulatedRun.of(next(on_own_gpus([job]))))

    @classmethod
    def of_run(cls, document: Mapping[str, Any] | str, run: SimulatedRun | None) -> Prediction:
        """Return the prediction of which `document` is the JSON, with its run, which is not simulated."""
        from ddpsim.prediction.document import read_fields

        return cls(**read_fields(document, run))

    def __repr__(self) -> str:
        step = self.step_document()
        return f"<Prediction: {step['workload']} on {step['nodes']} x {step['topology']}, {self.step_text}>"

    @property
    def step_text(self) -> str:
        """The optimizer's step in few words: `821.2 ms a step (8 micro-batches of 102.7 ms)`."""
        count, time = self.accumulate, f"{self.step_s[0] * 1e3:.4g} ms a step"
        if count > 1:
            return f"{time} ({count} micro-batches of {self.iteration_s * 1e3:.4g} ms)"
        passes = self._parts_document().get("pipeline", {}).get("micro_batches", 1)
        return time if passes == 1 else f"{time} ({passes} micro-batches in a pipeline)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the step with its band, and what it comes to."""
        from ddpsim.common.markup import summary_card

        count, step = self.accumulate, self.step_document()
        each = {} if count == 1 else {"micro-batch": f"{format_time(self.iteration_s)}, {count} a step"}
        return summary_card(
            f"{step['workload']} on {format_count(self.nodes, 'node')} of {step['topology']}",
            {
                "step": "{} ({} to {})".format(*map(format_time, self.step_s)),
                **each,
                "samples a second": f"{self.samples_per_s:,.0f}",
                "scaling efficiency": f"{100 * self.scaling_efficiency:.1f} %",
                "exposed communication": f"{format_time(count * self.summary.exposed_comm_s)} a step",
                **({} if (memory := self.memory) is None else {"peak memory of a rank": memory.text()}),
                **({"largest uncertainty": doubts[0].name} if (doubts := self.doubts) else {}),
            },
        )

    def tables(self) -> dict[str, ResultTable]:
        """Return the parts of a step and its buckets, by titles: each writes itself as text, Markdown and HTML."""
        stages = "pipeline" in self._parts_document()
        parts = parts_table(self.summary, self.clipping_s, self.accumulate, stages=stages)
        return {PARTS: parts, BUCKETS: table_of("predict: buckets", [b.document() for b in self.summary.buckets])}

    @property
    def trace(self) -> Simulated:
        """The trace of the simulated ranks: of a run of its own where it is first asked for."""
        return self.run.trace()

    @property
    def summarised_trace(self) -> Simulated:
        """The trace of the iterations that the summary is of."""
        return trace_of(self.run.short())

    @property
    def critical_path(self) -> CriticalPath:
        """What an iteration waits for."""
        return CriticalPath.of(trace_of(self.run.short(), path=True), self.iteration_s)

    @property
    def workload(self) -> Workload:
        """One rank's iteration, as the machine's nodes replay it."""
        return self.run.workload

    @property
    def placement(self) -> Placement:
        """The ranks that take part, and where."""
        return self.run.placement

    @property
    def options(self) -> Options:
        """Of the job, with the backend in force."""
        return self.run.options

    @property
    def calibration(self) -> Calibration | None:
        """The constants it was made with; None is the priors."""
        return self.run.calibration

    @property
    def correcting_rows(self) -> int:
        """Measured rows of exactly this machine and rank count, by which its collectives are corrected."""
        if self.calibration is None or self.placement.world_size == 1:
            return 0
        backend = self.options.backend_for(self.workload)
        curve = find_correcting_curve(self.placement, backend, self.calibration, self.options.algorithm)
        return 0 if curve is None else len(curve.points)

    def are_measured(self, *names: str) -> bool:
        """Whether its calibration has these of DDP's own constants from a measurement, rather than priors."""
        known = {} if self.calibration is None else self.calibration.constants
        own = [f"{self.options.backend_for(self.workload)}.ddp.{name}" for name in names]
        return all(name in known and known[name].fitted for name in own)

    @property
    def topology(self) -> Cluster:
        """The machine."""
        return self.placement.topology

    @Figure
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
        return join.sort_by_width([jitter, *(join.effect(each, s.iteration_s, each.steps_s) for each in self.ends)])

    @Figure
    def clipping_s(self) -> float | None:
        """Of `optimizer_s`, what clipping gradients is; None where that is not known, as of a captured step."""
        share = clipping_share(self.workload)
        return None if share is None else share * self.summary.optimizer_s

    @Figure
    def scaling_efficiency(self) -> float:
        """Share of one rank's speed without DDP that each rank keeps; of an asynchronous scheme the mean over ranks."""
        steps = self.rank_steps_s
        return self.local_s / self.iteration_s if steps is None else fmean(self.local_s / s for s in steps.values())

    @property
    def samples(self) -> int:
        """Samples of an iteration, of all ranks that train; those that have a copy of the model together share them."""
        return self.options.forwards * sum(self.run.batches) // self.options.ranks_a_copy

    @Figure
    def samples_per_s(self) -> float:
        """Samples a second, of all ranks that train."""
        steps = self.rank_steps_s
        if steps is None:
            return self.samples / self.iteration_s
        return sum(self.run.batches[rank] / seconds for rank, seconds in steps.items())

    @property
    def rank_steps_s(self) -> dict[int, float] | None:
        """The iteration of each rank that trains, where each goes on without the others; else None.

        Then `iteration_s` is that of the slowest.
        """
        if self.read is not None:
            steps: dict[str, float] | None = self.read.get("rank_steps_s")
            return None if steps is None else {int(rank): seconds for rank, seconds in steps.items()}
        if self.options.ranks_meet:
            return None
        trace = self.summarised_trace
        alone = {rank: replace(trace, iterations=trace.of_rank(rank)) for rank in trace.ranks}
        return {rank: summarise(iterations).iteration_s for rank, iterations in alone.items()}

    @property
    def remarks(self) -> dict[str, dict[str, float]]:
        """What else the run measured, by name: how stale gradients were, of an asynchronous scheme."""
        if self.read is not None:
            return {name: self.read[name] for name in _REMARKS if name in self.read}
        # `ranks_meet` is asked first: a prediction that a worker made has no run here, which would be simulated for
        # this.
        apart = None if self.options.ranks_meet else self.run.short().shared.apart
        return {} if apart is None else apart.remarks()

    @property
    def samples_per_s_band(self) -> Band:
        """Samples a second with the ends of their band: the slow end is that of the longest iteration."""
        middle = self.samples_per_s
        return middle, middle * self.iteration_s / self.high_s, middle * self.iteration_s / self.low_s

    @Figure
    def tokens_per_s(self) -> float | None:
        """Tokens a second; None of a workload that does not know how long its sequences are."""
        tokens = self.workload.tokens_per_sample
        return None if tokens is None else tokens * self.samples_per_s

    @Figure
    def accumulate(self) -> int:
        """Iterations of a step of the optimizer."""
        return self.options.accumulate

    @property
    def step_s(self) -> Band:
        """Time between two steps of the optimizer, of all its micro-batches, with its band."""
        count = self.accumulate
        return count * self.iteration_s, count * self.low_s, count * self.high_s

    @property
    def other_devices(self) -> list[str]:
        """Devices whose pace the workload does not keep, of nodes without a workload of their own."""
        classes = (each.template for each in self.placement.classes)
        models = dict.fromkeys(template.gpus[0].model for template in classes if template.workload is None)
        own = {kind_of(self.workload.device).lower(), *(("cpu",) if self.workload.timed else ())}
        return [model for model in models if kind_of(model).lower() not in own]

    @property
    def pace_kept(self) -> bool:
        """Whether the workload keeps another device's pace on a node with GPUs: the step is not the machine's own."""
        return any(device != "cpu" for device in self.other_devices)

    @property
    def assumed(self) -> dict[str, float]:
        """The constants that stand in for unknown figures of a GPU."""
        unknown = gpu_of(self.workload.gpu, self.workload.provenance) is None and not self.workload.one_clock
        if not unknown or self.are_measured("copy_Bps") or self.placement.world_size == 1:
            return {}
        backend = self.options.backend_for(self.workload)
        return {f"{backend}.ddp.copy_Bps": Costs.of(backend, None).copy_Bps}

    @property
    def memory(self) -> Memory | None:
        """What a rank needs of its GPU's memory; None on a CPU, whose memory is not judged."""
        if self.read is None:
            return self.run.memory(self.plan)
        return None if (memory := self.read["memory"]) is None else Memory.from_document(memory)

    @property
    def transports(self) -> ChosenPaths | None:
        """The paths that NCCL chose, and what other choices would give; None where it moves no bytes."""
        return paths_taken(self.placement, self.calibration) if self._moved_by_nccl else None

    @property
    def transport_advice(self) -> tuple[str, ...]:
        """What the machine's file leaves open about NCCL's paths."""
        return paths_advice(self.placement, self.calibration) if self._moved_by_nccl else ()

    @property
    def _moved_by_nccl(self) -> bool:
        return self.options.comm == "real" and self.options.backend_for(self.workload) in GPU_BACKENDS

    @property
    def codec_notes(self) -> tuple[str, ...]:
        """Notes on its compression."""
        sent = sum(self.wire_bytes(bucket.parameters) for bucket in self.plan.buckets)
        return tuple(codec_notes(self.options.codec.name, self.summary.world_size, self.plan.size_bytes, sent))

    @property
    def notes(self) -> tuple[str, ...]:
        """What its figures do not say, a sentence each."""
        if self.read is not None:
            return tuple(self.read["notes"])
        schedule = self.run.schedule()
        noted = pace_notes(
            self.workload,
            self.placement,
            self.options,
            self.memory,
            other_devices=self.other_devices,
            assumed=self.assumed,
            sharded=max(schedule.sharding.gradients, schedule.sharding.optimizer) > 1,
        )
        cuts = self.graph_cuts
        taken_over = calibration_notes(self.calibration, self.placement.topology.name)
        return (*self.codec_notes, *noted, *taken_over, *(() if cuts is None else [cuts.text(self.iteration_s)]))

    @property
    def graph_cuts(self) -> GraphCuts | None:
        """What it costs that torch.compile splits the step at bucket bounds; None where it does not."""
        costs = Costs.of(self.options.backend_for(self.workload), self.calibration, self.workload.device)
        return GraphCuts.of(self.workload, self.options, costs.graph_s, costs.graph_passes)

    def wire_bytes(self, parameters: Sequence[int]) -> int:
        """Return the bytes of the ring allreduce that loads links as a bucket of these parameters does."""
        bucket = [self.workload.parameters[index] for index in parameters]
        messages = self.options.codec.messages(bucket)
        return sum(round(message.allreduce_bytes(self.summary.world_size)) for message in messages)

    def records(self) -> list[dict[str, object]]:
        """Return one flat row of the `predict` document, for `pandas.DataFrame`; rows of a sweep can be joined."""
        from ddpsim.prediction.document import flat

        return [flat(self.document())]

    def step_document(self) -> dict[str, object]:
        """Return the keys of a step that every document has: where it runs, its times, parts, rates and memory."""
        if self.read is not None:
            return {key: value for key, value in self.read.items() if key not in _OF_ONE}
        s = self.summary
        return {
            "topology": self.topology.name,
            "workload": self.workload.name,
            "compute_device": self.workload.device_label,
            "estimated": self.workload.estimated,
            "pace_kept": self.pace_kept,
            "nodes": self.nodes,
            "world_size": s.world_size,
            "scheme": self.options.scheme,
            **self._parts_document(),
            "iteration_s": s.iteration_s,
            "iteration_statistic": s.iteration_statistic,
            "iteration_low_s": self.low_s,
            "iteration_high_s": self.high_s,
            "doubts": [doubt.document() for doubt in self.doubts],
            **self.options.step_times(s.iteration_s, self.low_s, self.high_s),
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            **s.parts,
            "exposed_skew_s": s.exposed_skew_s,
            "clipping_s": self.clipping_s,
            "hidden_comm_cost_s": self.hidden_comm_cost_s,
            "local_s": self.local_s,
            "overlap_ratio": s.overlap_ratio,
            "scaling_efficiency": self.scaling_efficiency,
            **{f"step_{name}": self.options.accumulate * seconds for name, seconds in s.parts.items()},
            "plan_fingerprint": self.plan.fingerprint(),
            "torch": self.plan.torch,
            "memory": None if (memory := self.memory) is None else memory.document(),
        }

    def _parts_document(self) -> dict[str, Any]:
        """Return the keys on stages, or on ranks that share layers or experts; none where there are neither."""
        if self.read is not None:
            return self.step_document()
        tensor, experts, cut = self.workload.tensor, self.workload.experts, self.options.cut
        if cut.stages > 1:
            return {
                "tensor_parallel": self.options.tensor_parallel,
                "data_parallel": self.summary.world_size // self.options.ranks_a_copy,
                "pipeline": {
                    **cut.document(self.workload.boundary_bytes),
                    "parameters": [list(part.indices) for part in self.options.parts(self.workload)],
                },
            }
        if experts is not None:
            return {
                "expert_parallel": experts.ranks,
                "data_parallel": self.summary.world_size,
                "expert_data_parallel": self.summary.world_size // experts.ranks,
                "layer_messages": len(experts.messages),
                "layer_bytes": experts.size_bytes,
            }
        if tensor is None:
            return {}
        return {
            "tensor_parallel": tensor.ranks,
            "data_parallel": self.summary.world_size // tensor.ranks,
            "layer_messages": len(tensor.messages),
            "layer_bytes": tensor.size_bytes,
        }

    def document(self) -> dict[str, object]:
        """Return the `predict` document; the units are in its keys."""
        document = self.kept_document()
        if "transports" not in document:
            paths = self.transports if isinstance(self.run, SimulatedRun) else None
            document["transports"] = None if paths is None else paths.document()
        return document

    def kept_document(self) -> dict[str, object]:
        """Return the `predict` document as answers are cached, without `transports` unless it was read with them.

        To price the paths that NCCL did not choose takes longer than the rest of the document.
        """
        if self.read is not None:
            return dict(self.read)
        unused = {str(rank): [*layers] for rank, layers in self.options.unused.items()}
        return {
            **self.step_document(),
            **({} if (steps := self.rank_steps_s) is None else {"rank_steps_s": {str(r): t for r, t in steps.items()}}),
            **self.remarks,
            "iterations": {name: getattr(self.summary, name) for name in OVER_ITERATIONS},
            "ends": {
                "retimed": sum(ends.retimed for ends in self.ends),
                "simulated": sum(ends.simulated for ends in self.ends),
                "of": document_of(self.ends),
            },
            "buckets": [
                {
                    "index": b.index,
                    "size_bytes": b.size_bytes,
                    "wire_bytes": b.size_bytes if self.options.compression == "none" else self.wire_bytes(b.parameters),
                    "parameters": list(b.parameters),
                    **{moment: getattr(b, moment) for moment in MOMENTS},
                    **{name: getattr(b, name) for name in ("operation", "device", "skew_s")},
                }
                for b in self.summary.buckets
            ],
            "plan": {
                "buckets": [[[*b.parameters], b.limit_bytes] for b in self.plan.buckets],
                "call": document_of(self.plan.call),
            },
            "notes": list(self.notes),
            "provenance": {
                "ddpsim": __version__,
                "seed": self.options.seed,
                "topology_fingerprint": self.topology.fingerprint(),
                "workload_estimated": self.workload.estimated,
                "calibrated": self.calibration is not None and self.calibration.measured,
                "correcting_rows": self.correcting_rows,
                "hidden_comm_known": self.are_measured("compute_slowdown", "communication_slowdown"),
                "fidelity": self.options.fidelity,
                "compression": self.options.compression,
                "drop": dict(self.options.drop),
                "order": self.options.order,
                **({"unused": unused} if unused else {}),
                **({"assumed": assumed} if (assumed := self.assumed) else {}),
            },
        }
