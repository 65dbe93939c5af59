"""Workload files, `ddpsim.workload/1`, as pydantic models; times become arrays at once, operators columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, PlainValidator, model_validator

from ddpsim.bucketing.assign import DTYPE_BYTES
from ddpsim.documents import Amount, Count, Document, File, Index, Number, Text, document_error, format_value
from ddpsim.errors import WorkloadError
from ddpsim.workload.devices import DevicePart
from ddpsim.workload.operators import Activations, Operator, PhasesUnderAutocast, StepOperators
from ddpsim.workload.profile import Seconds

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
    heads: list[Index] | None = None
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


def operators_from(read: OperatorsEntry | None, parameters: int, frozen: int = 0) -> StepOperators | None:
    """Return the operators of a file whose model has so many parameters, and frozen ones; None where it has none.

    Raises:
        WorkloadError: columns or lists of different lengths, a gradient of no parameter.
    """
    if read is None:
        return None
    phases = _phases_from(read, parameters, frozen, "operators")
    if read.dtypes is not None and len(read.dtypes) != parameters + frozen:
        raise _make_error(f"{len(read.dtypes)} entries for {parameters + frozen} parameters", "operators.dtypes")
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
        None if read.amp is None else _phases_from(read.amp, parameters, frozen, "operators.amp"),
    )


def _phases_from(read: OperatorsEntry | AutocastEntry, parameters: int, frozen: int, place: str) -> PhasesUnderAutocast:
    forward, backward = (_operators(getattr(read, name), f"{place}.{name}") for name in ("forward", "backward"))
    used = None if read.forward_use is None else tuple(read.forward_use)
    if used is not None and len(used) != parameters + frozen:
        raise _make_error(f"{len(used)} entries for {parameters + frozen} parameters", f"{place}.forward_use")
    if any(number is not None and number >= len(forward) for number in used or ()):
        raise _make_error("a parameter is first used by an operator that is not there", f"{place}.forward_use")
    if any(index >= parameters for operator in backward for index in operator.gradients):
        raise _make_error(f"a gradient of a parameter beyond the {parameters} there are", f"{place}.backward.gradients")
    return PhasesUnderAutocast(forward, backward, used)


_COLUMNS = ("kind", "flops", "traffic_bytes", "fixed_bytes", "fp32")
_WHERE_ANY: Mapping[str, object] = {"fused_bytes": 0.0, "term": "", "product": None, "edge_bytes": 0.0, "heads": 0}
"""Columns that are written where any operator has another value than this."""


def _columns(operators: Sequence[Operator]) -> dict[str, object]:
    more = (name for name, none in _WHERE_ANY.items() if any(getattr(each, name) != none for each in operators))
    return {name: [getattr(operator, name) for operator in operators] for name in (*_COLUMNS, *more)}


def _operators(read: PhaseOperators, place: str) -> tuple[Operator, ...]:
    gradients = read.gradients if read.gradients is not None else [[] for _ in read.kind]
    more = [getattr(read, name) or [none] * len(read.kind) for name, none in _WHERE_ANY.items()]
    columns = (read.kind, read.flops, read.traffic_bytes, read.fp32, gradients, read.fixed_bytes, *more)
    if len({len(column) for column in columns}) > 1:
        raise _make_error(f"columns of {', '.join(str(len(column)) for column in columns)} entries", place)
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
            heads,
        )
        for kind, flops, traffic, fp32, done, fixed, left_out, term, product, edge_bytes, heads in zip(
            *columns, strict=True
        )
    )


def _make_error(what: str, place: str) -> WorkloadError:
    return WorkloadError(what, place=place, remedy=_REMEDY)


_MOST_ELEMENTS = 1 << 63
"""No tensor has as many elements: they are counted in signed 64 bits."""
_KINDS = frozenset((float, int, type(None)))


def _shape(value: list[int]) -> list[int]:
    if math.prod(value) >= _MOST_ELEMENTS:
        raise document_error(f"{format_value(value)} is not the shape of a tensor: too many elements")
    return value


def _dtype(value: str) -> str:
    if value not in DTYPE_BYTES:
        raise document_error(f"{format_value(value)} is not one of {', '.join(DTYPE_BYTES)}")
    return value


def _times(value: object) -> Seconds:
    """Return seconds, `null` as NaN, as an array of shape (iterations,)."""
    if not isinstance(value, list):
        raise document_error(f"{format_value(value)} is not a list of seconds")
    _check_row(value)
    return _array(value)


def _table(value: object) -> Seconds:
    """Return seconds, `null` as NaN, as an array of shape (iterations, parameters)."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise document_error(f"{format_value(value)} is not a list of lists of seconds")
    for number, row in enumerate(value):
        _check_row(row, number)
        if len(row) != len(value[0]):
            raise document_error(f"{len(row)} times, the first iteration has {len(value[0])}", number)
    return _array(value)


def _check_row(row: list[Any], *within: int) -> None:
    # Kinds are told apart a row at a time: pydantic's look at each of millions of times would take as long as reading.
    if not {*map(type, row)} <= _KINDS:
        number = next(number for number, entry in enumerate(row) if type(entry) not in _KINDS)
        raise document_error(f"{format_value(row[number])} is not a number of seconds, nor null", *within, number)


def _array(value: list[Any]) -> Seconds:
    try:
        return np.array(value, dtype=np.float64)
    except OverflowError:
        raise document_error("a time is larger than any number") from None


Shape = Annotated[list[Index], AfterValidator(_shape)]
Dtype = Annotated[str, AfterValidator(_dtype)]
Times = Annotated[Any, PlainValidator(_times)]
Table = Annotated[Any, PlainValidator(_table)]


class ParameterEntry(Document):
    """A parameter; entries stand in registration order."""

    name: Text
    shape: Shape
    dtype: Dtype
    device: Text
    sparse: bool = False


class FrozenEntry(Document):
    """A parameter that takes no gradient; entries stand in registration order.

    Attributes:
        before: how many of `parameters` are registered before it.
    """

    name: Text
    shape: Shape
    dtype: Dtype
    device: Text
    before: Index


class BufferEntry(Document):
    """A module's buffer; entries stand in registration order. Of a rank with one device none is named."""

    name: Text
    shape: Shape
    dtype: Dtype
    device: Text | None = None


class PhaseEntry(Document):
    """Holds one phase's seconds in each recorded iteration, on the host's clock and on the device's."""

    host_s: Times
    device_s: Times


class ForwardUseEntry(Document):
    """When forward first needs each parameter: seconds by registration index on the host's and the device's clock."""

    host: Times
    device: Times


class ForwardUntilEntry(Document):
    """When a device's part of forward is over: seconds from the start of forward on the host's and devices' clocks."""

    host: Amount
    device: Amount


class DeviceEntry(Document):
    """A device of a rank that has several; entries stand in forward's order. See `DevicePart`."""

    device: Text
    forward_until_s: ForwardUntilEntry
    sent_bytes: Index = 0

    def part(self) -> DevicePart:
        """Return what is read."""
        return DevicePart(self.device, self.forward_until_s.host, self.forward_until_s.device, self.sent_bytes)


class InputStageEntry(Document):
    """How batches are loaded and copied; what each key means, `ddpsim.options.input_stage.InputStage` says."""

    load_s: Amount
    workers: Index = 0
    copy_bytes: Index = 0
    rate_Bps: Annotated[Amount, Field(gt=0)] | None = None  # noqa: N815
    pinned: bool = False
    queued: bool = False
    pipelined: bool = False

    @model_validator(mode="after")
    def _check_one_way(self) -> InputStageEntry:
        if self.queued and self.pipelined:
            raise document_error("`queued` and `pipelined` are two ways of copying", "queued")
        return self


class WorkloadFile(File):
    """A whole file; what its parts mean, `ddpsim.workload.profile.Workload` says and checks."""

    SCHEMA = "ddpsim.workload/1"
    KIND = "workload file"

    name: Text
    device: Text
    precision: Text
    batch_size: Count
    threads: Count | None
    estimated: bool
    parameters: list[ParameterEntry]
    buffers: list[BufferEntry]
    forward: PhaseEntry
    backward: PhaseEntry
    optimizer: PhaseEntry
    gradient_hook_s: Table
    gradient_ready_s: Table
    synchronises: list[str]
    provenance: dict[str, Any]
    arithmetic_share: Number = 1.0
    ranks: Count = 1
    forward_use_s: ForwardUseEntry | None = None
    activations_bytes: Index | None = None
    optimizer_kind: Text | None = None
    autocast_dtype: Literal["float16", "bfloat16"] | None = None
    operators: OperatorsEntry | None = None
    input_stage: InputStageEntry | None = None
    sequence_length: Count | None = None
    devices: list[DeviceEntry] = Field(default_factory=list)
    frozen: list[FrozenEntry] = Field(default_factory=list)
