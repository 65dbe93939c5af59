"""Operators in a workload file: `operators`, by columns, as pydantic models, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from ddpsim.documents import Amount, Count, Document, Index, Text
from ddpsim.errors import WorkloadError
from ddpsim.workload.operators import Activations, Operator, StepOperators

Kind = Literal["conv", "grouped_conv", "gemm", "memory"]
Flops = Annotated[float, Field(ge=0, le=1e21)]
_REMEDY = "make the file again with `python -m ddpexec estimate`, or leave `operators` out"


class PhaseOperators(Document):
    """The operators of forward or backward in launch order, a column an attribute; see `Operator`."""

    kind: list[Kind]
    flops: list[Flops]
    traffic_bytes: list[Amount]
    fixed_bytes: list[Amount]
    fp32: list[bool]
    fused_bytes: list[Amount] | None = None
    gradients: list[list[Index]] | None = None


class ActivationsEntry(Document):
    """Bytes of tensors at the peak of a step; see `Activations`."""

    narrow_bytes: Index
    wide_bytes: Index
    amp_bytes: Index | None = None
    fixed_bytes: Index = 0
    amp_fixed_bytes: Index = 0


class OperatorsEntry(Document):
    """A step as its operators; see `StepOperators`."""

    batch_size: Count
    sample: str
    forward: PhaseOperators
    backward: PhaseOperators
    forward_use: list[Index | None] | None = None
    activations: ActivationsEntry | None = None
    dtypes: list[Text] | None = None
    synchronises: list[Text]
    counted: str | None = None


def operators_document(operators: StepOperators) -> dict[str, object]:
    """Return `operators` as JSON values."""
    kept = operators.activations
    return {
        "batch_size": operators.batch_size,
        "sample": operators.sample,
        "forward": _columns(operators.forward),
        "backward": _columns(operators.backward) | {"gradients": [list(o.gradients) for o in operators.backward]},
        "forward_use": None if operators.forward_use is None else list(operators.forward_use),
        "activations": None if kept is None else asdict(kept),
        "dtypes": None if operators.dtypes is None else list(operators.dtypes),
        "synchronises": list(operators.synchronises),
        "counted": operators.counted,
    }


def operators_from(read: OperatorsEntry | None, parameters: int) -> StepOperators | None:
    """Return the operators of a file whose model has so many parameters; None where it has none.

    Raises:
        WorkloadError: columns or lists of different lengths, a gradient of no parameter.
    """
    if read is None:
        return None
    phases = {name: _operators(getattr(read, name), f"operators.{name}") for name in ("forward", "backward")}
    for name in ("forward_use", "dtypes"):
        given = getattr(read, name)
        if given is not None and len(given) != parameters:
            raise _wrong(f"{len(given)} entries for {parameters} parameters", f"operators.{name}")
    used: Any = read.forward_use or ()
    if any(number is not None and number >= len(phases["forward"]) for number in used):
        raise _wrong("a parameter is first used by an operator that is not there", "operators.forward_use")
    if any(index >= parameters for operator in phases["backward"] for index in operator.gradients):
        raise _wrong(f"a gradient of a parameter beyond the {parameters} there are", "operators.backward.gradients")
    kept = read.activations
    return StepOperators(
        read.batch_size,
        read.sample,
        phases["forward"],
        phases["backward"],
        None if read.forward_use is None else tuple(read.forward_use),
        None if kept is None else Activations(**kept.model_dump()),
        None if read.dtypes is None else tuple(read.dtypes),
        tuple(read.synchronises),
        read.counted,
    )


_COLUMNS = ("kind", "flops", "traffic_bytes", "fixed_bytes", "fp32")


def _columns(operators: Sequence[Operator]) -> dict[str, object]:
    columns = (*_COLUMNS, "fused_bytes") if any(operator.fused_bytes for operator in operators) else _COLUMNS
    return {name: [getattr(operator, name) for operator in operators] for name in columns}


def _operators(read: PhaseOperators, place: str) -> tuple[Operator, ...]:
    gradients = read.gradients if read.gradients is not None else [[] for _ in read.kind]
    fused = read.fused_bytes if read.fused_bytes is not None else [0.0] * len(read.kind)
    columns = (read.kind, read.flops, read.traffic_bytes, read.fp32, gradients, read.fixed_bytes, fused)
    if len({len(column) for column in columns}) > 1:
        raise _wrong(f"columns of {', '.join(str(len(column)) for column in columns)} entries", place)
    return tuple(
        Operator(kind, flops, traffic, fp32, tuple(done), min(fixed, traffic), left_out)
        for kind, flops, traffic, fp32, done, fixed, left_out in zip(*columns, strict=True)
    )


def _wrong(what: str, place: str) -> WorkloadError:
    return WorkloadError(what, place=place, remedy=_REMEDY)
