"""The prediction of the traced configuration, beside the trace term by term, and what `plan` would change of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ddpsim.bucketing.plan import custom_plan
from ddpsim.collectives.calibration import Calibration, CurvePoint
from ddpsim.collectives.conditions import Backend
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.explaining.basis import PredictionBasis
from ddpsim.explaining.bucket_origin import bucket_origin, is_whole, sets_of
from ddpsim.explaining.machine import TracedMachine
from ddpsim.explaining.ranks import PARTS
from ddpsim.planning.planner import plan as best_plan
from ddpsim.planning.rows import PlanRow
from ddpsim.planning.worth import NO_GAIN, Trial, decide, is_advised
from ddpsim.prediction.doubts.doubt import Effect
from ddpsim.prediction.path import Sensitivity
from ddpsim.prediction.periods import with_assumptions
from ddpsim.prediction.predict import gain_band, predict
from ddpsim.prediction.prediction import Band, Prediction
from ddpsim.prediction.sensitivities import sensitivities_of
from ddpsim.simulation import Options
from ddpsim.simulation.communication import Assumptions, WireFactor
from ddpsim.simulation.job import Job
from ddpsim.workload import Workload
from ddpsim.workload.profile import Phase

_ITERATIONS = 8
"""Simulated steps that count, of at most a dozen recorded: a trace has no more, and the answer is wanted at once."""
_FEWEST_STEPS = 2
"""Of micro-batches whole steps count."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of the step, traced and predicted, seconds."""

    name: str
    traced_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class PredictedBreakdown:
    """The prediction beside the trace.

    Attributes:
        step_s, low_s, high_s: predicted, input included.
        terms: of the step, by `PARTS`.
        traced_s: the step to hold it against.
        buckets: what the traced buckets are among torch's.
        prediction: of the traced configuration.
        row: what `plan` found; None where the prediction is not to be relied on.
        best_gain: share of the step that the best buckets save over the traced ones, advised or not, with its band.
        gain_doubts: what of the gain rests on the traced collectives alone.
    """

    step_s: float
    low_s: float
    high_s: float
    traced_s: float
    terms: tuple[StepPart, ...]
    buckets: str
    prediction: Prediction = field(repr=False)
    row: PlanRow | None = field(default=None, repr=False)
    best_gain: Band = NO_GAIN
    gain_doubts: tuple[Effect, ...] = ()
    sensitivities: tuple[Sensitivity, ...] = ()

    @property
    def worth_it(self) -> bool:
        """Whether to change the traced buckets."""
        return is_advised(self.best_gain)

    @property
    def gain_band(self) -> Band:
        """Share of the step that what is advised saves, with its band; 0 where the traced buckets stay."""
        return self.best_gain if self.worth_it else NO_GAIN

    @property
    def gain(self) -> float:
        """The middle of that band."""
        return self.gain_band[0]

    @property
    def trial(self) -> Trial | None:
        """What is worth one trial run where the traced buckets stay."""
        _, trial = decide([] if self.row is None else [(self.row.best.plan.torch, self.best_gain)])
        return None if trial is None else Trial(trial[0], *trial[1])

    @property
    def error(self) -> float:
        """Predicted / traced - 1."""
        return self.step_s / self.traced_s - 1

    @property
    def holds(self) -> bool:
        """Whether the traced step is inside the band."""
        return self.low_s <= self.traced_s <= self.high_s

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "step_s": self.step_s,
            "step_low_s": self.low_s,
            "step_high_s": self.high_s,
            "error": self.error,
            "inside_band": self.holds,
            "parts": {term.name: term.predicted_s for term in self.terms},
            "terms": [
                {
                    "name": t.name,
                    "traced_s": t.traced_s,
                    "predicted_s": t.predicted_s,
                    "error_s": t.predicted_s - t.traced_s,
                }
                for t in self.terms
            ],
            "buckets": self.buckets,
            **dict(zip(("gain", "gain_low", "gain_high"), self.gain_band, strict=True)),
            "trial": None if self.trial is None else self.trial.document(),
            "gain_doubts": [
                {"name": d.name, "low": d.low, "high": d.high, "remedy": d.remedy} for d in self.gain_doubts
            ],
            "torch": self.row.best.plan.torch if self.row is not None and self.worth_it else None,
            "topology": self.prediction.topology.name,
            "nodes": self.prediction.nodes,
            "doubts": [doubt.document() for doubt in self.prediction.doubts],
            **self.prediction.critical_path.entries(),
            "sensitivities": [each.document() for each in self.sensitivities],
        }


def foretell(
    basis: PredictionBasis,
    machine: TracedMachine,
    traced_s: float,
    parts: Mapping[str, float],
    backend: Backend,
    *,
    advise: bool = True,
) -> PredictedBreakdown:
    """Predict the traced configuration, and plan where the prediction holds.

    Raises:
        InputError: as `predict`.
    """
    calibration = with_costs(machine.calibration, machine.library(backend), basis.costs)
    count = basis.accumulate
    options = Options(
        plan=custom_plan(basis.parameters, basis.groups) if is_whole(basis) else None,
        # Without buffers the option changes nothing, and is none to advise.
        broadcast_buffers=basis.broadcasts or not basis.workload.buffers,
        backend=backend,
        iterations=max(_ITERATIONS, _FEWEST_STEPS * count),
        accumulate=count,
        sync=basis.sync,
    )

    def predicted(workload: Workload) -> Prediction:
        return predict(
            Job(workload, machine.topology, machine.nodes, machine.gpus_per_node, options, calibration),
        )

    workload = basis.finishing
    prediction = predicted(workload)
    summary = prediction.summary
    others = {part: seconds for part, seconds in parts.items() if part not in PARTS}
    # What the loop does beside DDP is not predicted but as traced; on a GPU as its host had it.
    as_traced = {"input_s": parts["input_s"] if workload.on_cpu or others else basis.input_s, **others}
    told = {part: count * getattr(summary, part, 0.0) for part in PARTS[:-1]} | as_traced
    extra = sum(as_traced.values())
    if basis.finishes == "optimizer":
        # In backward the simulation itself counts what makes the device idle as DDP's.
        told["optimizer_s"] -= basis.finish_s
        told["ddp_overhead_s"] += basis.finish_s
    step_s, low_s, high_s = prediction.step_s
    made = PredictedBreakdown(
        step_s=step_s + extra,
        low_s=low_s + extra,
        high_s=high_s + extra,
        traced_s=traced_s,
        terms=tuple(StepPart(part, parts[part], told[part]) for part in (*PARTS, *others)),
        buckets=bucket_origin(basis),
        prediction=prediction,
        sensitivities=tuple(sensitivities_of(prediction)),
    )
    if not (advise and made.holds and is_whole(basis)):
        return made
    usual = _reduce_to_usual(workload)
    report = best_plan(
        usual,
        [machine.topology],
        nodes=[machine.nodes],
        gpus_per_node=machine.gpus_per_node,
        options=replace(options, plan=None, iterations=None, keep_pace=True),
        calibration=calibration,
    )
    row = report.rows[0]
    (gain, low, high), now = row.best_gain, row.default
    if sets_of(row.default.plan) != sets_of(prediction.plan):
        now = predicted(usual)
        gain, (low, high) = 1 - row.best.iteration_s / now.iteration_s, gain_band(now, row.best)
    doubts = () if machine.one_size is None else one_size_doubt(now, row.best, gain, machine.one_size, calibration)
    below = math.hypot(gain - low, *(gain - doubt.low for doubt in doubts))
    above = math.hypot(high - gain, *(doubt.high - gain for doubt in doubts))
    return replace(made, row=row, best_gain=(gain, gain - below, gain + above), gain_doubts=doubts)


def _reduce_to_usual(workload: Workload) -> Workload:
    """Return the workload whose one iteration is the usual one: buckets are told apart by it in a fraction of the time.

    The traced iteration whose backward is the median's stands for all.
    """
    middle = int(np.argsort(workload.backward.host_s, kind="stable")[workload.iterations // 2])
    rows = slice(middle, middle + 1)

    def one(phase: Phase) -> Phase:
        return Phase(phase.host_s[rows], phase.device_s[rows])

    return replace(
        workload,
        forward=one(workload.forward),
        backward=one(workload.backward),
        optimizer=one(workload.optimizer),
        gradient_hook_s=workload.gradient_hook_s[rows],
        gradient_ready_s=workload.gradient_ready_s[rows],
    )


def with_costs(calibration: Calibration | None, backend: str, costs: Mapping[str, float]) -> Calibration:
    """Return `calibration`, or the priors, with DDP's own host costs as the trace has them."""
    priors = Calibration.priors(backend)
    known = (
        priors if calibration is None else replace(calibration, constants={**priors.constants, **calibration.constants})
    )
    values = {name: value for key, value in costs.items() if (name := f"{backend}.ddp.{key}") in known.constants}
    return known.with_values(values, source="measured in the trace, its profiler included")


_ENDS = (0.1, 0.9)
"""Shares of a collective's time that do not grow with its bytes: where nothing tells, any from none to all is as
likely, and 80 % of them lie between these."""
_REMEDY = "trace a few steps with half the bucket_cap_mb, or give the machine and --nccl-tests"


def one_size_doubt(
    now: Prediction, other: Prediction, gain: float, known: CurvePoint, calibration: Calibration | None
) -> tuple[Effect, ...]:
    """Return what it changes of `gain` whether the traced time of messages of one size is bytes or latency.

    Args:
        now: with the traced buckets.
        other: with those whose gain is in question.
        gain: share of the step that `other` saves.
        known: size and time of the traced messages.
        calibration: that both were predicted with.
    """
    backend = now.options.backend_for(now.workload)
    transport = make_transport(now.placement, backend, calibration)

    def factor_of(share: float) -> WireFactor:
        def factor(size_bytes: int) -> float:
            time_s = known.time_s * (share + (1 - share) * size_bytes / known.size_bytes)
            return time_s / transport.time_s(Operation.ALLREDUCE, size_bytes)

        return factor

    gains = []
    for share in _ENDS:
        assumed = Assumptions(calibration, factor_of(share))
        now_s, other_s = (with_assumptions(each.run, assumed).iteration_s for each in (now, other))
        gains.append(1 - other_s / now_s)
    name = f"bytes and latency not told apart by messages of one size, {known.size_bytes / MIB:.2f} MiB,"
    return (Effect(name, _REMEDY, min(gain, *gains), max(gain, *gains)),)
