"""What is kept of a prediction: what was simulated for it, as JSON values; the rest is found again as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter
from ddpsim.bucketing.assign import Bucket
from ddpsim.bucketing.torch_call import TorchCall
from ddpsim.collectives.calibration import Calibration
from ddpsim.doubts.doubt import Ends
from ddpsim.prediction.predict import predicted
from ddpsim.prediction.prediction import Prediction
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation import Options
from ddpsim.topology.graph import Cluster
from ddpsim.trace.metrics import Summary
from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """What `prediction_document` says of a plan: parameters and limit of each bucket, and torch's call."""

    buckets: list[tuple[list[int], int | None]]
    call: TorchCall


@dataclass(frozen=True, slots=True)
class KeptPrediction:
    """The document of `prediction_document`, for who checks one that was read."""

    caps: BucketCaps
    asked_plan: KeptPlan | None
    brief: bool
    summary: Summary
    plan: KeptPlan
    local_s: float
    low_s: float
    high_s: float
    ends: list[Ends]
    hidden_comm_cost_s: float


def prediction_document(prediction: Prediction) -> dict[str, object]:
    """Return what `restore_prediction` makes the prediction of again: its numbers to the last bit, and its buckets.

    Of the options only the buckets asked for are kept: the others are those of the question.
    """
    options = prediction.options
    return {
        "caps": asdict(options.caps),
        "asked_plan": None if options.plan is None else _plan_document(options.plan),
        "brief": prediction.run.brief,
        "summary": prediction.summary.document(),
        "plan": _plan_document(prediction.plan),
        "local_s": prediction.local_s,
        "low_s": prediction.low_s,
        "high_s": prediction.high_s,
        "ends": [asdict(ends) for ends in prediction.ends],
        "hidden_comm_cost_s": prediction.hidden_comm_cost_s,
    }


def restore_prediction(
    document: Mapping[str, Any],
    workload: Workload,
    topology: Cluster,
    *,
    nodes: int | None,
    gpus_per_node: int | None,
    options: Options,
    calibration: Calibration | None,
) -> Prediction:
    """Return the prediction of which `document` was kept; its trace is simulated again where it is asked for.

    Args:
        document: of `prediction_document`.
        workload, topology, nodes, gpus_per_node, calibration: that were given to `predict`.
        options: likewise, but for the buckets.
    """
    parameters, asked = workload.parameters, document["asked_plan"]
    options = replace(options, caps=_caps(document["caps"]), plan=None if asked is None else _plan(asked, parameters))
    run = SimulatedRun.of(workload, topology, nodes, gpus_per_node, options, calibration, brief=document["brief"])
    prediction = predicted(
        run, Summary.of(document["summary"]), _plan(document["plan"], parameters), document["local_s"]
    )
    return replace(
        prediction,
        low_s=document["low_s"],
        high_s=document["high_s"],
        ends=tuple(map(_ends, document["ends"])),
        hidden_comm_cost_s=document["hidden_comm_cost_s"],
    )


def _plan_document(plan: BucketPlan) -> dict[str, object]:
    buckets = [[bucket.parameters, bucket.limit_bytes] for bucket in plan.buckets]
    return {"buckets": buckets, "call": asdict(plan.call)}


def _plan(document: Mapping[str, Any], parameters: Sequence[Parameter]) -> BucketPlan:
    buckets = (
        Bucket(tuple(indices), sum(parameters[index].size_bytes for index in indices), limit_bytes)
        for indices, limit_bytes in document["buckets"]
    )
    call = document["call"]
    flags = tuple((name, value) for name, value in call["flags"])
    caps = None if call["caps"] is None else _caps(call["caps"])
    names = tuple(parameter.name for parameter in parameters)
    return BucketPlan(tuple(buckets), names, TorchCall(caps, flags, call["note"]))


def _caps(document: Mapping[str, Any]) -> BucketCaps:
    listed = document["bucket_cap_mb_list"]
    return BucketCaps(**{**document, "bucket_cap_mb_list": None if listed is None else tuple(listed)})


def _ends(document: Mapping[str, Any]) -> Ends:
    (low, high), (low_factors, high_factors) = document["steps_s"], document["factors"]
    return Ends(**{**document, "steps_s": (low, high), "factors": (tuple(low_factors), tuple(high_factors))})
