"""The prediction of the traced configuration against the trace, part by part, and what `plan` would change of it.

Start at `predict_traced`. Its workload is the traced step without DDP (`basis`), its machine the one that the user
names or one assumed for the GPU (`machine`): a traced step outside the predicted band therefore shows what the model
misses, and no buckets are advised then.
"""

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
from ddpsim.simulation.communication import Assumptions, WireFactor
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload
from ddpsim.workload.profile import Phase

_ITERATIONS = 8
"""Simulated steps that count, of at most a dozen recorded: a trace has no more, and the answer is wanted at once."""
_FEWEST_STEPS = 2
"""Whole steps that are simulated of a job that accumulates gradients, where `_ITERATIONS` micro-batches hold fewer."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of the step, traced and predicted, seconds."""

    name: str
    traced_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class PredictedBreakdown:
    """The predicted step of the traced configuration, part by part, and the advice on its buckets."""

    step_s: float
    """Predicted, the input between steps included; `low_s` to `high_s` is its 80 % band."""
    low_s: float
    high_s: float
    traced_s: float
    """The traced step, against which the prediction is judged."""
    terms: tuple[StepPart, ...]
    """The step by `PARTS`, then collectives that are not DDP's."""
    buckets: str
    """Which of torch's caps give the traced buckets."""
    prediction: Prediction = field(repr=False)
    row: PlanRow | None = field(default=None, repr=False)
    """The row of `plan`; None where the traced step is outside the band, or no advice is wanted."""
    best_gain: Band = NO_GAIN
    """Share of the step that the best buckets save over the traced ones, advised or not, with its band."""
    gain_doubts: tuple[Effect, ...] = ()
    """How far the gain depends on what the traced collectives cannot show."""
    sensitivities: tuple[Sensitivity, ...] = ()

    @property
    def worth_it(self) -> bool:
        """Whether to change the traced buckets."""
        return is_advised(self.best_gain)

    @property
    def gain_band(self) -> Band:
        """Share of the step that the advised buckets save, with its band; 0 where the traced ones stay."""
        return self.best_gain if self.worth_it else NO_GAIN

    @property
    def gain(self) -> float:
        """The middle of that band."""
        return self.gain_band[0]

    @property
    def trial(self) -> Trial | None:
        """The buckets that are worth one trial run where the traced ones stay."""
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


def predict_traced(
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

    def predict_step(workload: Workload) -> Prediction:
        return predict(
            Job(workload, machine.topology, machine.nodes, machine.gpus_per_node, options, calibration),
        )

    workload = basis.finishing
    prediction = predict_step(workload)
    summary = prediction.summary
    others = {part: seconds for part, seconds in parts.items() if part not in PARTS}
    # The simulator knows neither the loop between steps nor collectives other than DDP's: both are taken as traced, so
    # that they are in the predicted step without being judged. On a GPU the input is what the host spent, for the
    # device may still be computing meanwhile.
    as_traced = {"input_s": parts["input_s"] if workload.on_cpu or others else basis.input_s, **others}
    predicted_parts = {part: count * getattr(summary, part, 0.0) for part in PARTS[:-1]} | as_traced
    extra = sum(as_traced.values())
    if basis.finishes == "optimizer":
        # `finishing` put the end of DDP's backward into the optimizer: there it is DDP's cost and not the optimizer's.
        # In backward (on a GPU) the simulation itself counts as DDP's what leaves the device idle.
        predicted_parts["optimizer_s"] -= basis.finish_s
        predicted_parts["ddp_overhead_s"] += basis.finish_s
    step_s, low_s, high_s = prediction.step_s
    breakdown = PredictedBreakdown(
        step_s=step_s + extra,
        low_s=low_s + extra,
        high_s=high_s + extra,
        traced_s=traced_s,
        terms=tuple(StepPart(part, parts[part], predicted_parts[part]) for part in (*PARTS, *others)),
        buckets=bucket_origin(basis),
        prediction=prediction,
        sensitivities=tuple(sensitivities_of(prediction)),
    )
    if not (advise and breakdown.holds and is_whole(basis)):
        return breakdown
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
    # `plan` reports gains over torch's default; where the job runs other buckets the gain is over those, so that they
    # are simulated on the same usual step.
    if sets_of(row.default.plan) != sets_of(prediction.plan):
        now = predict_step(usual)
        gain, (low, high) = 1 - row.best.iteration_s / now.iteration_s, gain_band(now, row.best)
    doubts = () if machine.one_size is None else one_size_doubt(now, row.best, gain, machine.one_size, calibration)
    # The doubts of the prediction and that of the collectives' size are independent: they add in quadrature.
    below = math.hypot(gain - low, *(gain - doubt.low for doubt in doubts))
    above = math.hypot(high - gain, *(doubt.high - gain for doubt in doubts))
    return replace(breakdown, row=row, best_gain=(gain, gain - below, gain + above), gain_doubts=doubts)


def _reduce_to_usual(workload: Workload) -> Workload:
    """Return the workload of one iteration alone, the traced one with the median backward.

    `plan` simulates dozens of bucketings: which is best hardly depends on the jitter between iterations, and one
    iteration takes a fraction of the time.
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
    """Return `calibration`, or the priors, with DDP's own host costs replaced by the traced ones."""
    priors = Calibration.priors(backend)
    known = (
        priors if calibration is None else replace(calibration, constants={**priors.constants, **calibration.constants})
    )
    values = {name: value for key, value in costs.items() if (name := f"{backend}.ddp.{key}") in known.constants}
    return known.with_values(values, source="measured in the trace, its profiler included")


_ENDS = (0.1, 0.9)
"""Shares of a collective's time that do not grow with its bytes. Messages of one size do not show the share: any from 0
to 1 is as likely, and 80 % of them lie between these."""
_REMEDY = "trace a few steps with half the bucket_cap_mb, or give the machine and --nccl-tests"


def one_size_doubt(
    now: Prediction, other: Prediction, gain: float, known: CurvePoint, calibration: Calibration | None
) -> tuple[Effect, ...]:
    """Return how far `gain` moves with the share of latency in the traced collectives, all of one size.

    Fewer buckets save latency, more hide more bytes: the gain of other buckets is another by whether the one traced
    time is mostly latency or mostly bytes. Both ends of `_ENDS` are simulated.

    Args:
        now: the prediction with the traced buckets.
        other: the prediction with the buckets whose gain is in question.
        gain: share of the step that `other` saves.
        known: size and time of the traced messages.
        calibration: with which both were predicted.
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
