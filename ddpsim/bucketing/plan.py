"""A bucket plan as data: what to reduce together, in which order, and how to make stock torch do the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from ddpsim.bucketing.assign import Bucket, Parameter, assign_buckets, repeated_name
from ddpsim.bucketing.caps import NO_CALL, BucketCaps, TorchCall
from ddpsim.bucketing.torch_caps import torch_caps
from ddpsim.common.documents.fields import document_of
from ddpsim.common.errors import PlanError

Assignment = Literal["rebuilt", "initial", "unused"]
ASSIGNMENTS: tuple[Assignment, ...] = get_args(Assignment)


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as a file has it; people who edit one leave out `fingerprint` and `torch`."""

    SCHEMA: ClassVar = "ddpsim.plan/1"
    KIND: ClassVar = "plan file"

    buckets: tuple[Bucket, ...]
    parameter_names: tuple[str, ...]
    fingerprint: Any = None
    torch: Any = None


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """Buckets in launch order.

    Attributes:
        buckets: in launch order; together they hold each parameter once.
        parameter_names: by registration index.
        call: the keywords of torch's constructor that give stock torch these buckets, or why there are none.
    """

    buckets: tuple[Bucket, ...]
    parameter_names: tuple[str, ...]
    call: TorchCall

    def __post_init__(self) -> None:
        if (same := repeated_name(self.parameter_names)) is not None:
            what = f"parameters {same[0]} and {same[1]} are both named {self.parameter_names[same[0]]!r}"
            raise PlanError(what, place="parameter_names", remedy="give each parameter a name of its own")
        seen: dict[int, int] = {}
        for number, bucket in enumerate(self.buckets):
            for index in bucket.parameters:
                if not 0 <= index < len(self.parameter_names):
                    what = f"parameter {index} does not exist; the model has {len(self.parameter_names)}"
                    remedy = f"give indices from 0 to {len(self.parameter_names) - 1}"
                    raise PlanError(what, place=f"buckets.{number}.parameters", remedy=remedy)
                if index in seen:
                    where = f"buckets {seen[index]} and {number}" if seen[index] != number else f"bucket {number} twice"
                    raise PlanError(
                        f"parameter {index} ({self.parameter_names[index]}) is in {where}",
                        place=f"buckets.{number}.parameters",
                        remedy="put each parameter in exactly one bucket",
                    )
                seen[index] = number
        if missing := sorted(set(range(len(self.parameter_names))) - seen.keys()):
            named = ", ".join(f"{i} ({self.parameter_names[i]})" for i in missing[:3])
            what = f"{len(missing)} parameters are in no bucket: {named}"
            raise PlanError(what, place="buckets", remedy="put each parameter in exactly one bucket")

    def __repr__(self) -> str:
        return f"<BucketPlan: {len(self.buckets)} buckets of {len(self.parameter_names)} parameters, {self.torch[:80]}>"

    @property
    def torch(self) -> str:
        """The line to paste: the constructor call, or a comment where there is none."""
        return str(self.call)

    @property
    def size_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    def groups(self) -> list[tuple[int, ...]]:
        """Return the registration indices of each bucket, for a `LaunchQueue`."""
        return [bucket.parameters for bucket in self.buckets]

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with any bucket, its order, or a parameter's name."""
        content = json.dumps([self.groups(), self.parameter_names])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def document(self) -> dict[str, object]:
        """Return the plan as the JSON document `ddpsim.plan/1`."""
        document: dict[str, object] = document_of(
            PlanFile(self.buckets, self.parameter_names, self.fingerprint(), self.torch)
        )
        return document


def initial_plan(parameters: Sequence[Parameter], caps: BucketCaps) -> BucketPlan:
    """Return the assignment of torch's first iteration: one bucket for each (dtype, device), no overlap.

    A `bucket_cap_mb_list` applies from the first iteration on, as in torch; so does `first_bucket_mb`, which torch
    takes as such a list.
    """
    limits: list[int | None] = [*caps.limits()] if "bucket_cap_mb_list" in caps.torch_arguments() else [None]
    return _plan(parameters, assign_buckets(parameters, limits)[::-1], caps)


def unused_plan(parameters: Sequence[Parameter], caps: BucketCaps) -> BucketPlan:
    """Return the assignment under `find_unused_parameters`: registration order, reversed, never rebuilt."""
    return _plan(parameters, assign_buckets(parameters, caps.limits())[::-1], caps, find_unused_parameters=True)


def rebuilt_plan(parameters: Sequence[Parameter], caps: BucketCaps, order: Sequence[int] | None = None) -> BucketPlan:
    """Return the assignment torch settles on after its first backward.

    Args:
        parameters: in registration order.
        caps: the constructor's cap options.
        order: registration indices in arrival order; None is the reverse of registration.
    """
    arrival = range(len(parameters) - 1, -1, -1) if order is None else order
    return _plan(parameters, assign_buckets(parameters, caps.limits(), arrival), caps)


def plan_buckets(
    parameters: Sequence[Parameter], caps: BucketCaps, assignment: str = "rebuilt", order: Sequence[int] | None = None
) -> BucketPlan:
    """Return the plan of one of `ASSIGNMENTS`; `order` matters to `rebuilt` alone."""
    if assignment == "rebuilt":
        return rebuilt_plan(parameters, caps, order)
    if assignment in ASSIGNMENTS:
        return (initial_plan if assignment == "initial" else unused_plan)(parameters, caps)
    raise PlanError(f"unknown assignment {assignment!r}", remedy=f"use one of {', '.join(ASSIGNMENTS)}")


def custom_plan(parameters: Sequence[Parameter], groups: Sequence[Sequence[int]]) -> BucketPlan:
    """Return a plan from explicit groups of registration indices in launch order.

    Its constructor call lists the roundest caps with which stock torch makes the same buckets from the arrival order
    that the groups spell out; where there are none, it says that only ddpexec can run the plan.

    Raises:
        PlanError: a parameter missed, repeated or unknown.
    """
    names = tuple(parameter.name for parameter in parameters)
    sizes = [sum(parameters[i].size_bytes for i in group if 0 <= i < len(parameters)) for group in groups]
    buckets = [Bucket(tuple(group), size, size) for group, size in zip(groups, sizes, strict=True)]
    plan = BucketPlan(tuple(buckets), names, NO_CALL)  # refuses groups that are no plan, before caps are sought
    caps = torch_caps(parameters, groups)
    return plan if caps is None else replace(plan, call=TorchCall(BucketCaps(bucket_cap_mb_list=caps)))


def _plan(
    parameters: Sequence[Parameter],
    buckets: Sequence[Bucket],
    caps: BucketCaps,
    *,
    find_unused_parameters: bool = False,
) -> BucketPlan:
    names = tuple(parameter.name for parameter in parameters)
    flags = (("find_unused_parameters", True),) if find_unused_parameters else ()
    return BucketPlan(tuple(buckets), names, TorchCall(caps, flags))


def check_model(names: Sequence[str], parameters: Sequence[Parameter]) -> None:
    """Refuse a plan for parameters called `names` where the model has others.

    Raises:
        PlanError: names the first parameter that differs.
    """
    own = [parameter.name for parameter in parameters]
    if list(names) == own:
        return
    if len(names) != len(own):
        what = f"it has {len(names)} parameters, the model {len(own)}"
    else:
        index = next(i for i, (a, b) in enumerate(zip(names, own, strict=True)) if a != b)
        what = f"its parameter {index} is {names[index]!r}, the model's {own[index]!r}"
    what = f"this plan belongs to another model: {what}"
    raise PlanError(what, place="parameter_names", remedy="plan for this model")
