"""What is kept of a prediction: one line of JSON, of which, and of its job, an equal prediction is made."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import TypeAdapter

from ddpsim.bucketing import BucketPlan, Parameter
from ddpsim.bucketing.assign import Bucket
from ddpsim.bucketing.caps import TorchCall
from ddpsim.doubts.doubt import Ends
from ddpsim.prediction.prediction import Prediction
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.job import Job
from ddpsim.trace.metrics import Summary

_Buckets = tuple[tuple[tuple[int, ...], int | None], ...]
"""Parameters and limit of each bucket; the job knows the rest."""

_LINE = TypeAdapter(tuple[Summary, _Buckets, TorchCall, float, float, float, tuple[Ends, ...], float | None])


def prediction_line(prediction: Prediction) -> str:
    """Return all of a prediction that its job does not tell.

    Raises:
        ValueError: a figure that JSON lacks.
    """
    p = prediction
    buckets = tuple((bucket.parameters, bucket.limit_bytes) for bucket in p.plan.buckets)
    kept = (p.summary, buckets, p.plan.call, p.local_s, p.low_s, p.high_s, p.ends, p.hidden_comm_cost_s)
    return json.dumps(_LINE.dump_python(kept), allow_nan=False)


def prediction_of(line: str, job: Job) -> Prediction:
    """Return the prediction of a job of which `line` was kept; its trace is simulated again where it is asked for.

    Raises:
        ValueError, IndexError: the line of no prediction, or of another job's.
        InputError: values that contradict each other.
    """
    summary, buckets, call, local_s, low_s, high_s, ends, hidden_s = _LINE.validate_json(line, strict=True)
    plan = _restore_plan(buckets, call, job.workload.parameters)
    return Prediction(SimulatedRun.of(job), summary, plan, local_s, low_s, high_s, ends, hidden_s)


def _restore_plan(buckets: _Buckets, call: TorchCall, parameters: Sequence[Parameter]) -> BucketPlan:
    whole = (
        Bucket(indices, sum(parameters[index].size_bytes for index in indices), limit) for indices, limit in buckets
    )
    return BucketPlan(tuple(whole), tuple(parameter.name for parameter in parameters), call)
