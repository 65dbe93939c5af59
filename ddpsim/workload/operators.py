"""The operators of a training step, without any time in them: what a step is estimated from on any GPU.

Start at `Operator`; `StepOperators` is a whole step of them, as a workload keeps it.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated

from ddpsim.common.documents.fields import (
    STATED,
    WRITTEN,
    Amount,
    AsColumns,
    Bounds,
    Checked,
    Count,
    Index,
    OneOf,
    Text,
)
from ddpsim.common.errors import WorkloadError

Product = tuple[Count, Count, Count, Count]
"""How many products of matrices, and rows, columns and depth of each."""

KINDS = ("conv", "grouped_conv", "gemm", "memory")
TERMS = ("products", "convolutions", "attention", "norms", "softmax", "loss", "casts", "dropout", "pointwise")
"""What eager mode's kernels are counted as; `pointwise` is all else."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One launch of a training step: its operations, its bytes, and the gradients complete with it.

    Attributes:
        kind: `conv`, `grouped_conv`, `gemm` or `memory` (everything else); picks the achieved share of peak.
        flops: floating-point operations, a multiply-add as two.
        traffic_bytes: read from and written to device memory in fp32.
        fp32: whether autocast keeps it in fp32 (norms of transformers, softmax, losses).
        gradients: registration indices of the parameters whose gradient is complete when it is.
        fixed_bytes: of `traffic_bytes`, what is of parameters, their gradients and buffers, whatever the batch.
        fused_bytes: in fp32, of intermediates that the memory-bound operators just before it wrote and it is the first
            of them to read, written and read, or read again: what is not moved where all of them are one kernel. Only
            counted where torch.compile compiles the step.
        term: of `TERMS`, what it is part of; empty where it was not noted.
        edge_bytes: of an operator of forward, of tensors made before it that it or later ones read and that fusion
            would keep out of memory: what a graph that began with it would take from there. As wide as `traffic_bytes`
            are.
        product: of a product of matrices how many there are, and rows, columns and depth of each; None of all else.
        heads: of attention that is one kernel, of its queries; 0 of all else, and where they are not known.
    """

    kind: Annotated[str, OneOf(KINDS)]
    flops: Annotated[float, Bounds(ge=0, le=1e21)]
    traffic_bytes: Amount
    _: KW_ONLY
    fixed_bytes: Annotated[Amount, STATED] = 0.0
    fp32: Annotated[bool, STATED] = False
    fused_bytes: Amount = 0.0
    term: Annotated[str, OneOf(("", *TERMS))] = ""
    product: Product | None = None
    edge_bytes: Amount = 0.0
    heads: Index = 0
    gradients: tuple[Index, ...] = ()

    def times(self, factor: float) -> Operator:
        """Return the operator of a batch `factor` times as large."""
        grown = (self.traffic_bytes - self.fixed_bytes) * factor
        fused = self.fused_bytes * factor
        return replace(
            self,
            flops=self.flops * factor,
            traffic_bytes=self.fixed_bytes + grown,
            fused_bytes=fused,
            edge_bytes=self.edge_bytes * factor,
            product=self.product and _grow(self.product, factor, self.fixed_bytes),
        )


def _fix_rounding(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return operators of which no more is fixed than they move, whatever rounding left in a file."""
    return tuple(
        each if each.fixed_bytes <= each.traffic_bytes else replace(each, fixed_bytes=each.traffic_bytes)
        for each in operators
    )


Launches = Annotated[tuple[Operator, ...], Checked(_fix_rounding), AsColumns()]


def _grow(product: Product, factor: float, fixed_bytes: float) -> Product:
    """Return a product of a larger batch: what is fixed of it, its result or an operand, keeps its two dimensions."""
    many, rows, columns, depth = product
    if not fixed_bytes:
        return max(round(many * factor), 1), rows, columns, depth
    apart = {
        (name, width): abs(math.log(fixed_bytes / (width * size)))
        for name, size in _sides(product).items()
        for width in (2, 4)
    }
    nearest, _ = min(apart, key=apart.__getitem__)
    if nearest == "result":
        return many, rows, columns, max(round(depth * factor), 1)
    if nearest == "left":
        return many, rows, max(round(columns * factor), 1), depth
    return many, max(round(rows * factor), 1), columns, depth


def _sides(product: Product) -> dict[str, int]:
    many, rows, columns, depth = product
    return {"right": many * depth * columns, "result": many * rows * columns, "left": many * rows * depth}


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of tensors at the peak of a step, beside parameters, gradients, buffers, optimizer state and the batch.

    Attributes:
        narrow_bytes: of floating-point tensors, in fp32, that 16-bit precisions halve.
        wide_bytes: of all others: integers, masks, and what autocast keeps in fp32.
        amp_bytes: of the step under autocast, whose peak is another; None where it was not counted.
        fixed_bytes: of the first two together, what does not go with the batch, as parameters cast to 16 bits.
        amp_fixed_bytes: of `amp_bytes`, likewise.
    """

    narrow_bytes: Index
    wide_bytes: Index
    amp_bytes: Annotated[Index | None, WRITTEN] = None
    fixed_bytes: Annotated[Index, WRITTEN] = 0
    amp_fixed_bytes: Annotated[Index, WRITTEN] = 0

    def with_amp(self, peak: Activations) -> Activations:
        """Return this with the bytes of the same step under autocast, `peak`."""
        return replace(self, amp_bytes=peak.narrow_bytes + peak.wide_bytes, amp_fixed_bytes=peak.fixed_bytes)

    def in_precision(self, precision: str) -> int:
        """Return the bytes of a step in `precision`."""
        if precision == "amp" and self.amp_bytes is not None:
            return self.amp_bytes
        return self.wide_bytes + (self.narrow_bytes // 2 if precision in NARROW else self.narrow_bytes)

    def times(self, factor: float) -> Activations:
        """Return the bytes of a batch `factor` times as large."""
        grown = self.narrow_bytes + self.wide_bytes - self.fixed_bytes
        whole = factor if not self.fixed_bytes else (grown * factor + self.fixed_bytes) / (grown + self.fixed_bytes)
        amp = self.amp_bytes and round((self.amp_bytes - self.amp_fixed_bytes) * factor + self.amp_fixed_bytes)
        narrow, wide = round(self.narrow_bytes * whole), round(self.wide_bytes * whole)
        return Activations(narrow, wide, amp, self.fixed_bytes, self.amp_fixed_bytes)


NARROW = ("amp", "bf16")
"""Precisions of 16-bit tensors."""


@dataclass(frozen=True, slots=True)
class PhasesUnderAutocast:
    """The kernels of a step under autocast: casts among them, each tensor as wide as it is there.

    Attributes:
        forward, backward: operators in launch order, whose bytes are of the step's own 16 and 32 bits.
        forward_use: as `StepOperators` has it.
    """

    forward: Launches
    backward: Launches
    forward_use: Annotated[tuple[Index | None, ...] | None, WRITTEN] = None

    def times(self, factor: float) -> PhasesUnderAutocast:
        """Return the operators of a batch `factor` times as large."""
        forward, backward = (
            tuple(operator.times(factor) for operator in phase) for phase in (self.forward, self.backward)
        )
        return replace(self, forward=forward, backward=backward)


@dataclass(frozen=True, slots=True)
class StepOperators:
    """A step as its operators, beside a workload's own parameters and buffers.

    Attributes:
        batch_size: samples the operators are counted for.
        sample: what a sample is.
        forward, backward: operators in launch order; the loss belongs to forward.
        forward_use: by registration index the number of the forward operator that first reads the parameter; None
            where forward reads it nowhere, or where it is not known.
        activations: at the peak; None where they are not known.
        dtypes: of the parameters as they were counted, by registration index; None where they are the workload's.
            In both frozen ones follow the others.
        synchronises: where the host waits for the device in each step.
        counted: how the operators were counted, where not as the shipped models' are.
        amp: the operators that autocast dispatches; None where it was not counted.
    """

    batch_size: Count
    sample: str
    forward: Launches
    backward: Launches
    forward_use: Annotated[tuple[Index | None, ...] | None, WRITTEN] = None
    activations: Annotated[Activations | None, WRITTEN] = None
    dtypes: Annotated[tuple[Text, ...] | None, WRITTEN] = None
    synchronises: Annotated[tuple[Text, ...], STATED] = ()
    counted: Annotated[str | None, WRITTEN] = None
    amp: PhasesUnderAutocast | None = None

    def check(self, parameters: int, frozen: int = 0) -> None:
        """Hold these against the number of parameters, and of frozen ones.

        Raises:
            WorkloadError: lists of different lengths, a parameter's first operator that is not there, a gradient of no
                parameter.
        """
        if self.dtypes is not None and len(self.dtypes) != parameters + frozen:
            raise _make_error(f"{len(self.dtypes)} entries for {parameters + frozen} parameters", "dtypes")
        for place, phases in (("", self), ("amp.", self.amp)):
            if phases is None:
                continue
            used = phases.forward_use or ()
            if phases.forward_use is not None and len(used) != parameters + frozen:
                what = f"{len(used)} entries for {parameters + frozen} parameters"
                raise _make_error(what, f"{place}forward_use")
            if any(number is not None and number >= len(phases.forward) for number in used):
                what = "a parameter is first used by an operator that is not there"
                raise _make_error(what, f"{place}forward_use")
            if any(index >= parameters for operator in phases.backward for index in operator.gradients):
                what = f"a gradient of a parameter beyond the {parameters} there are"
                raise _make_error(what, f"{place}backward.gradients")

    def __repr__(self) -> str:
        return f"<StepOperators: {len(self.forward)} forward, {len(self.backward)} backward, batch {self.batch_size}>"

    def with_batch(self, batch_size: int) -> StepOperators:
        """Return the operators of the same step with another batch.

        Arithmetic and activations go with the batch; of the traffic, what is not of parameters.
        """
        if batch_size == self.batch_size:
            return self
        factor = batch_size / self.batch_size
        forward, backward = (
            tuple(operator.times(factor) for operator in phase) for phase in (self.forward, self.backward)
        )
        activations = None if self.activations is None else self.activations.times(factor)
        amp = self.amp and self.amp.times(factor)
        return replace(
            self, batch_size=batch_size, forward=forward, backward=backward, activations=activations, amp=amp
        )


def _make_error(what: str, place: str) -> WorkloadError:
    remedy = "make the file again with `python -m ddpexec estimate`, or leave `operators` out"
    return WorkloadError(what, place=f"operators.{place}", remedy=remedy)
