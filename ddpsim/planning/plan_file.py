"""Plan files, `ddpsim.plan/1`, read, and the plan in one, checked against its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddpsim.bucketing import BucketPlan, Parameter
from ddpsim.bucketing.caps import TorchCall
from ddpsim.bucketing.plan import PlanFile, check_model, custom_plan
from ddpsim.common.documents.errors import format_value
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import PlanError
from ddpsim.common.files import display_name, read_json

_REMEDY = "make a plan file with `ddpsim plan -o plan.json`"


def load_plan(path: str | Path, parameters: Sequence[Parameter]) -> BucketPlan:
    """Return the plan in a file, `-` for standard input, for the model with these parameters.

    Raises:
        PlanError: as `plan_from`, and a file that cannot be read.
    """
    return plan_from(read_json(path, PlanError, _REMEDY, wanted="a plan"), parameters, display_name(path))


def plan_from(document: object, parameters: Sequence[Parameter], place: str) -> BucketPlan:
    """Read a `ddpsim.plan/1` document and check that it fits the model.

    Limits and the constructor call are the document's, whose fingerprint says that the buckets are as they were
    written; those of a document without either are worked out from its buckets.

    Args:
        document: parsed JSON.
        parameters: the model's, in registration order.
        place: the file's name, for errors.

    Raises:
        PlanError: a malformed document, a parameter missed or repeated, another model's plan, buckets that are not
            those of its fingerprint.
    """
    read = read_as(PlanFile, document, place, PlanError, _REMEDY)
    try:
        check_model(read.parameter_names, parameters)
        plan = custom_plan(parameters, [bucket.parameters for bucket in read.buckets])
    except PlanError as error:
        error.at(place)
    return _restore_limits(plan, read, place)


def _restore_limits(plan: BucketPlan, read: PlanFile, place: str) -> BucketPlan:
    """Return `plan` with what a document that has not been edited says of its limits and its constructor call."""
    if read.fingerprint is None and read.torch is None:
        return plan
    if read.fingerprint != plan.fingerprint():
        what = (
            f"{format_value(read.fingerprint)} is not the fingerprint of these buckets, which is {plan.fingerprint()!r}"
        )
        remedy = "leave fingerprint and torch out of a plan that you edit; both are worked out again"
        raise PlanError(what, place=f"{place}: fingerprint", remedy=remedy)
    pairs = zip(plan.buckets, read.buckets, strict=True)
    limited = (replace(bucket, limit_bytes=entry.limit_bytes) for bucket, entry in pairs)
    return replace(plan, buckets=tuple(limited), call=plan.call if read.torch is None else _call(read.torch, place))


def _call(text: object, place: str) -> TorchCall:
    try:
        return TorchCall.parse(text if isinstance(text, str) else repr(text))
    except PlanError as error:
        error.at(f"{place}: torch")
