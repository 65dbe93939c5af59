"""Operators in a workload file: `operators`, by columns, as pydantic models, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field

from ddpsim.documents import Amount, Count, Document, Index, Text
from ddpsim.errors import WorkloadError
from ddpsim.workload.operators import Activations, Operator, PhasesUnderAutocast, StepOperators

Kind = Literal["conv", "grouped_conv", "gemm", "memory"]
Term = Literal["", "products", "convolutions", "attention", "norms", "softmax", "loss", "casts", "dropout", "pointwise"]
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
    term: list[Term] | None = None
    product: list[Annotated[list[Count], Field(min_length=4, max_length=4)] | None] | None = None
    edge_bytes: list[Amount] | None = None
    gradients: list[list[Index]] | None = None


class ActivationsEntry(Document):
    """Bytes of tensors at the peak of a step; see `Activations`."""

    narrow_bytes: Index
    wide_bytes: Index
    amp_bytes: Index | None = None
    fixed_bytes: Index = 0
    amp_fixed_bytes: Index = 0


class AutocastEntry(Document):
    """The operators that autocast dispatches; see `PhasesUnderAutocast`."""

    forward: PhaseOperators
    backward: PhaseOperators
    forward_use: list[Index | None] | None = None


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
    amp: AutocastEntry | None = None


def operators_document(operators: StepOperators) -> dict[str, object]:
    """Return `operators` as JSON values."""
    kept = operators.activations
    return {
        "batch_size": operators.batch_size,
        "sample": operators.sample,
        **_phases_document(operators),
        "activations": None if kept is None else asdict(kept),
        "dtypes": None if operators.dtypes is None else list(operators.dtypes),
        "synchronises": list(operators.synchronises),
        "counted": operators.counted,
        **({} if operators.amp is None else {"amp": _phases_document(operators.amp)}),
    }


def _phases_document(of: StepOperators | PhasesUnderAutocast) -> dict[str, object]:
    return {
        "forward": _columns(of.forward),
        "backward": _columns(of.backward) | {"gradients": [list(o.gradients) for o in of.backward]},
        "forward_use": None if of.forward_use is None else list(of.forward_use),
    }


def operators_from(read: OperatorsEntry | None, parameters: int) -> StepOperators | None:
    """Return the operators of a file whose model has so many parameters; None where it has none.

    Raises:
        WorkloadError: columns or lists of different lengths, a gradient of no parameter.
    """
    if read is None:
        return None
    phases = _phases_from(read, parameters, "operators")
    if read.dtypes is not None and len(read.dtypes) != parameters:
        raise _wrong(f"{len(read.dtypes)} entries for {parameters} parameters", "operators.dtypes")
    kept = read.activations
    return StepOperators(
        read.batch_size,
        read.sample,
        phases.forward,
        phases.backward,
        phases.forward_use,
        None if kept is None else Activations(**kept.model_dump()),
        None if read.dtypes is None else tuple(read.dtypes),
        tuple(read.synchronises),
        read.counted,
        None if read.amp is None else _phases_from(read.amp, parameters, "operators.amp"),
    )


def _phases_from(read: OperatorsEntry | AutocastEntry, parameters: int, place: str) -> PhasesUnderAutocast:
    forward, backward = (_operators(getattr(read, name), f"{place}.{name}") for name in ("forward", "backward"))
    used = None if read.forward_use is None else tuple(read.forward_use)
    if used is not None and len(used) != parameters:
        raise _wrong(f"{len(used)} entries for {parameters} parameters", f"{place}.forward_use")
    if any(number is not None and number >= len(forward) for number in used or ()):
        raise _wrong("a parameter is first used by an operator that is not there", f"{place}.forward_use")
    if any(index >= parameters for operator in backward for index in operator.gradients):
        raise _wrong(f"a gradient of a parameter beyond the {parameters} there are", f"{place}.backward.gradients")
    return PhasesUnderAutocast(forward, backward, used)


_COLUMNS = ("kind", "flops", "traffic_bytes", "fixed_bytes", "fp32")
_WHERE_ANY: Mapping[str, object] = {"fused_bytes": 0.0, "term": "", "product": None, "edge_bytes": 0.0}
"""Columns that are written where any operator has another value than this."""


def _columns(operators: Sequence[Operator]) -> dict[str, object]:
    more = (name for name, none in _WHERE_ANY.items() if any(getattr(each, name) != none for each in operators))
    return {name: [getattr(operator, name) for operator in operators] for name in (*_COLUMNS, *more)}


def _operators(read: PhaseOperators, place: str) -> tuple[Operator, ...]:
    gradients = read.gradients if read.gradients is not None else [[] for _ in read.kind]
    more = [getattr(read, name) or [none] * len(read.kind) for name, none in _WHERE_ANY.items()]
    columns = (read.kind, read.flops, read.traffic_bytes, read.fp32, gradients, read.fixed_bytes, *more)
    if len({len(column) for column in columns}) > 1:
        raise _wrong(f"columns of {', '.join(str(len(column)) for column in columns)} entries", place)
    return tuple(
        Operator(
            kind,
            flops,
            traffic,
            fp32,
            tuple(done),
            min(fixed, traffic),
            left_out,
            term,
            None if product is None else (product[0], product[1], product[2], product[3]),
            edge_bytes,
        )
        for kind, flops, traffic, fp32, done, fixed, left_out, term, product, edge_bytes in zip(*columns, strict=True)
    )


def _wrong(what: str, place: str) -> WorkloadError:
    return WorkloadError(what, place=place, remedy=_REMEDY)
