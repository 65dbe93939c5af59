"""What is kept of a prediction: what was simulated for it, as JSON values; the rest is found again as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter
from ddpsim.bucketing.assign import Bucket
from ddpsim.bucketing.caps import TorchCall
from ddpsim.doubts.doubt import Ends
from ddpsim.prediction.prediction import Prediction
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.job import Job
from ddpsim.trace.metrics import Summary


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan without what its model knows: parameters and limit of each bucket, and torch's call."""

    buckets: tuple[tuple[tuple[int, ...], int | None], ...]
    call: TorchCall

    @classmethod
    def of(cls, plan: BucketPlan) -> KeptPlan:
        """Return what is kept of `plan`."""
        return cls(tuple((bucket.parameters, bucket.limit_bytes) for bucket in plan.buckets), plan.call)

    def restore(self, parameters: Sequence[Parameter]) -> BucketPlan:
        """Return the plan of the model with these parameters."""
        buckets = (
            Bucket(indices, sum(parameters[index].size_bytes for index in indices), limit_bytes)
            for indices, limit_bytes in self.buckets
        )
        return BucketPlan(tuple(buckets), tuple(parameter.name for parameter in parameters), self.call)


@dataclass(frozen=True, slots=True)
class KeptPrediction:
    """What `restore_prediction` makes a prediction of again: its numbers to the last bit, and its buckets.

    Of the options only the buckets asked for are kept: the others are those of the question.
    """

    caps: BucketCaps
    asked_plan: KeptPlan | None
    summary: Summary
    plan: KeptPlan
    local_s: float
    low_s: float
    high_s: float
    ends: tuple[Ends, ...]
    hidden_comm_cost_s: float | None

    @classmethod
    def of(cls, prediction: Prediction) -> KeptPrediction:
        """Return what is kept of `prediction`."""
        options = prediction.options
        return cls(
            options.caps,
            None if options.plan is None else KeptPlan.of(options.plan),
            prediction.summary,
            KeptPlan.of(prediction.plan),
            prediction.local_s,
            prediction.low_s,
            prediction.high_s,
            prediction.ends,
            prediction.hidden_comm_cost_s,
        )


def restore_prediction(kept: KeptPrediction, job: Job) -> Prediction:
    """Return the prediction that was kept; its trace is simulated again where it is asked for.

    Args:
        job: that `predict` was asked about, whatever its buckets.
    """
    parameters, asked = job.workload.parameters, kept.asked_plan
    options = replace(job.options, caps=kept.caps, plan=None if asked is None else asked.restore(parameters))
    run = SimulatedRun.of(replace(job, options=options))
    plan = kept.plan.restore(parameters)
    found = Prediction(run, kept.summary, plan, kept.local_s, kept.low_s, kept.high_s, kept.ends)
    return replace(found, hidden_comm_cost_s=kept.hidden_comm_cost_s)
