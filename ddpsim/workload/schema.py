"""Workload files, `ddpsim.workload/1`, as pydantic models; times become arrays at once."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, PlainValidator, model_validator

from ddpsim.bucketing.assign import DTYPE_BYTES
from ddpsim.documents import Amount, Count, Document, File, Index, Number, Text, document_error, format_value
from ddpsim.workload.operators_schema import OperatorsEntry
from ddpsim.workload.profile import Seconds

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
    """An entry is a parameter; entries stand in registration order."""

    name: Text
    shape: Shape
    dtype: Dtype
    device: Text
    sparse: bool = False


class BufferEntry(Document):
    """An entry is a module's buffer; entries stand in registration order."""

    name: Text
    shape: Shape
    dtype: Dtype


class PhaseEntry(Document):
    """Holds one phase's seconds in each recorded iteration, on the host's clock and on the device's."""

    host_s: Times
    device_s: Times


class ForwardUseEntry(Document):
    """When forward first needs each parameter: seconds by registration index on the host's and the device's clock."""

    host: Times
    device: Times


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
    def _one_way(self) -> InputStageEntry:
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
    operators: OperatorsEntry | None = None
    input_stage: InputStageEntry | None = None
    sequence_length: Count | None = None
