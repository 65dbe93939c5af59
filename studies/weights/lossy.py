"""What lossy schemes send, in plain Python: important chunks, and codecs with error feedback."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny
EPSILON = 1e-8
"""Added to norms that are divided by, so that a gradient of zero stays zero."""
Gradients = list[Tensor | None]


class Codec(Protocol):
    """What becomes of all ranks' gradients."""

    def reduced(self, local: Sequence[Gradients]) -> Gradients:
        """Return what every rank's optimizer takes."""


class Flow:
    """GradientFlow: of each bucket the chunks of the largest norms, summed over ranks; the rest is kept for later.

    A parameter that no rank used takes what is sent of its chunks all the same.
    """

    def __init__(self, scheme: str, groups: Sequence[tuple[int, ...]], tensors: Sequence[Tensor]) -> None:
        options = dict(each.split("=") for each in scheme.partition(":")[2].split(",") if each)
        self._share, self._chunk = float(options.get("density", 0.1)), int(options.get("chunk", 32768))
        self._groups, self._tensors = groups, tensors
        self._left: dict[tuple[int, int], Tensor] = {}

    def reduced(self, local: Sequence[Gradients]) -> Gradients:
        """Return the sums of the chosen chunks, and zeros elsewhere."""
        found: Gradients = [None] * len(self._tensors)
        for number, group in enumerate(self._groups):
            tensors = [self._tensors[index] for index in group]
            size = sum(tensor.numel() for tensor in tensors)
            chunks = math.ceil(size / self._chunk)
            for rank, gradients in enumerate(local):
                flat = _joined([gradients[index] for index in group], tensors) * (1 / len(local))
                padded = torch.cat([flat, flat.new_zeros(chunks * self._chunk - size)])
                self._left[number, rank] = self._left.get((number, rank), torch.zeros_like(padded)) + padded
            rows = [self._left[number, rank].view(chunks, self._chunk) for rank in range(len(local))]
            norms = sum((each.abs().sum(1).float() for each in rows), torch.zeros(chunks, dtype=torch.float32))
            count = max(1, math.ceil(self._share * chunks))
            chosen = sorted(range(chunks), key=lambda place: (-float(norms[place]), place))[:count]
            whole = torch.zeros_like(rows[0])
            for place in chosen:
                for each in rows:
                    whole[place] += each[place]
                    each[place] = 0
            _split(found, whole.view(-1), group, tensors)
        return found


class Half:
    """A mean whose parts are rounded to a shorter dtype before they are summed."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype

    def reduced(self, local: Sequence[Gradients]) -> Gradients:
        """Return the means."""
        found: Gradients = []
        for each in zip(*local, strict=True):
            given = [gradient for gradient in each if gradient is not None]
            if not given:
                found.append(None)
                continue
            parts = [gradient.to(self._dtype or gradient.dtype) / len(local) for gradient in given]
            found.append(sum(parts).to(given[0].dtype))
        return found


class Feedback:
    """A mean of what each rank writes, which adds what it lost in one iteration to the next one's gradients.

    What is written of a parameter that no rank used is lost, as under torch's DDP: its gradient is left alone.

    Args:
        groups: the buckets.
        sparse: which parameter has a sparse gradient, which is summed as it is.
        share: of a bucket's entries that are sent; None is as `bits` says.

    Attributes:
        bits: an entry: 1 (and two means a parameter), 8 (levels of its largest), 16 (bfloat16) or 32.
        mean: of the last bucket, flat.
    """

    def __init__(
        self, groups: Sequence[tuple[int, ...]], share: float | None, tensors: Sequence[Tensor], sparse: int | None
    ) -> None:
        self._groups, self._share, self._tensors, self._sparse = groups, share, tensors, sparse
        self._error: dict[tuple[int, int], Tensor] = {}
        self.bits = 1
        self.mean = torch.zeros(0)

    def reduced(self, local: Sequence[Gradients]) -> Gradients:
        """Return the means."""
        found: Gradients = [None] * len(self._tensors)
        for number, group in enumerate(self._groups):
            tensors = [self._tensors[index] for index in group]
            if self._sparse is not None and group == (self._sparse,):
                given = [gradient for each in local if (gradient := each[self._sparse]) is not None]
                found[self._sparse] = sum(given, torch.zeros_like(given[0])) / len(local)
                continue
            total: Any = 0
            for rank, gradients in enumerate(local):
                flat = _joined([gradients[index] for index in group], tensors)
                flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
                corrected = flat + self._error.get((number, rank), 0)
                written = self.written(corrected, tensors)
                self._error[number, rank] = corrected - written
                total = total + written
            self.mean = (total / len(local)).to(tensors[0].dtype)
            _split(found, self.mean, group, tensors)
        used = [any(of is not None for of in each) for each in zip(*local, strict=True)]
        return [each if use else None for each, use in zip(found, used, strict=True)]

    def written(self, flat: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Return what is read of `flat` by those to whom it is written."""
        if self.bits == 32:
            return flat
        if self.bits == 16:
            return flat.bfloat16().to(flat.dtype)
        if self._share is not None:
            kept = max(1, math.ceil(self._share * flat.numel())) if flat.numel() else 0
            places = flat.abs().topk(kept).indices
            written = torch.zeros_like(flat)
            written[places] = flat[places].float().to(flat.dtype)
            return written
        pieces = []
        for piece in flat.split([tensor.numel() for tensor in tensors]):
            if self.bits == 8:
                largest = piece.abs().max() if piece.numel() else piece.new_zeros(())
                scale = (largest / 127).float().to(flat.dtype)
                pieces.append((piece / scale.clamp(min=TINY)).round().clamp(-127, 127) * scale)
                continue
            above = piece > 0
            high, low = (piece[part].sum() / part.sum().clamp(min=1) for part in (above, ~above))
            pieces.append(torch.where(above, high.float().to(flat.dtype), low.float().to(flat.dtype)))
        return torch.cat(pieces)


class Adaptive:
    """A mean of what each rank writes with 1, 8, 16 or 32 bits: the fewest that the first mean of a bucket bears."""

    def __init__(self, groups: Sequence[tuple[int, ...]], tensors: Sequence[Tensor], sparse: int | None) -> None:
        self._tensors, self._sparse = tensors, sparse
        self._parts = [Feedback((group,), None, tensors, sparse) for group in groups]
        self._groups = groups
        self._chosen = [False] * len(groups)

    def reduced(self, local: Sequence[Gradients]) -> Gradients:
        """Return the means."""
        found: Gradients = [None] * len(self._tensors)
        for number, (part, group) in enumerate(zip(self._parts, self._groups, strict=True)):
            if not self._chosen[number]:
                part.bits = 32
            of_group = part.reduced(local)
            for index in group:
                found[index] = of_group[index]
            if not self._chosen[number] and group != (self._sparse,):
                part.bits, self._chosen[number] = self._fewest(part, group), True
        return found

    def _fewest(self, part: Feedback, group: Sequence[int]) -> int:
        tensors, mean = [self._tensors[index] for index in group], part.mean.float()
        for bits in (1, 8, 16):
            part.bits = bits
            if (part.written(mean, tensors) - mean).norm() <= 0.05 * mean.norm():
                return bits
        return 32


class PowerSGD:
    """A mean of gradients that are products of a column and a row, from the third iteration on.

    Vogels et al. 2019, algorithms 1 and 2, with one column: p = sum of M q, q = mean of M' p, M = p q'; what is lost is
    added to the next iteration's. Parameters that are too small are summed as they are.
    """

    FIRST = 2

    def __init__(self, groups: Sequence[tuple[int, ...]], tensors: Sequence[Tensor]) -> None:
        self._groups, self._tensors = groups, tensors
        self._error: dict[tuple[int, int], Tensor] = {}
        self._rows: dict[int, Tensor] = {}
        self._iteration = 0
        self._seeds = np.random.RandomState(0)

    def reduced(self, local: Sequence[Gradients]) -> Gradients:
        """Return the means."""
        found: Gradients = [None] * len(self._tensors)
        for group in self._groups:
            seed = None
            for index in group:
                shape = self._matrix(index)
                if self._iteration >= self.FIRST and shape is not None and index not in self._rows:
                    seed = self._seeds.randint(1_000_000_000) if seed is None else seed
            if seed is None and self._iteration == self.FIRST:
                self._seeds.randint(1_000_000_000)
            draw = None if seed is None else torch.Generator().manual_seed(seed)
            for index in group:
                found[index] = self._mean(index, [gradients[index] for gradients in local], draw)
        self._iteration += 1
        used = [any(of is not None for of in each) for each in zip(*local, strict=True)]
        return [each if use else None for each, use in zip(found, used, strict=True)]

    def _matrix(self, index: int) -> tuple[int, int] | None:
        """Return rows and columns of a gradient as it lies in memory; None of one that is summed as it is."""
        tensor = self._tensors[index]
        if tensor.dim() < 2 or not tensor.numel():
            return None
        rows, columns = tensor.shape if tensor.is_contiguous() else tensor.shape[::-1]
        return (rows, columns) if 2 * (rows + columns) < rows * columns else None

    def _mean(self, index: int, given: Sequence[Tensor | None], draw: torch.Generator | None) -> Tensor:
        tensor = self._tensors[index]
        flats = [_joined([gradient], [tensor]) for gradient in given]
        shape = self._matrix(index)
        out: Gradients = [None] * len(self._tensors)
        if shape is None or self._iteration < self.FIRST:
            _split(out, sum(flats, torch.zeros_like(flats[0])) / len(flats), (index,), [tensor])
        else:
            zero = torch.zeros(shape, dtype=tensor.dtype)
            parts = [flat.view(shape) + self._error.get((index, rank), zero) for rank, flat in enumerate(flats)]
            row = self._rows.get(index)
            row = torch.randn(1, shape[1], 1, dtype=tensor.dtype, generator=draw)[0] if row is None else row
            row = row / (row.norm() + EPSILON)
            column = sum(part @ row for part in parts)
            column = column / (column.norm() + EPSILON)
            self._rows[index] = sum(part.t() @ column for part in parts) / len(parts)
            product = column @ self._rows[index].t()
            for rank, part in enumerate(parts):
                self._error[index, rank] = part - product
            _split(out, product.reshape(-1), (index,), [tensor])
        mean = out[index]
        assert mean is not None
        return mean


def codec_of(case: Any, groups: Sequence[tuple[int, ...]]) -> Codec:
    """Return the codec of a case's scheme, `compression=NAME`."""
    name, _, value = case.scheme.partition("=")[2].partition(":")
    if name in ("none", "fp16", "bf16"):
        return Half({"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}[name])
    tensors = [p for p in case.model(0).parameters() if p.requires_grad]
    if name == "powersgd":
        return PowerSGD(groups, tensors)
    if name == "adaptive":
        return Adaptive(groups, tensors, _sparse(case))
    return Feedback(groups, float(value) if name == "topk" else None, tensors, _sparse(case))


def _sparse(case: Any) -> int | None:
    """Return the registration index of the parameter with a sparse gradient."""
    model = case.model(0)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return names.index("embedding.weight") if case.sparse else None


def _joined(gradients: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> Tensor:
    """Return gradients one after the other as they lie in memory, zeros for none."""
    whole = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, tensors, strict=True)]
    return torch.cat([_flat(gradient, tensor) for gradient, tensor in zip(whole, tensors, strict=True)])


def _flat(gradient: Tensor, tensor: Tensor) -> Tensor:
    """Return a gradient's elements in the order in which those of `tensor` lie in memory."""
    return (gradient.t() if tensor.dim() == 2 and not tensor.is_contiguous() else gradient).reshape(-1)


def _split(found: Gradients, flat: Tensor, group: Sequence[int], tensors: Sequence[Tensor]) -> None:
    offset = 0
    for index, tensor in zip(group, tensors, strict=True):
        part = flat[offset : offset + tensor.numel()]
        offset += tensor.numel()
        turned = tensor.dim() == 2 and not tensor.is_contiguous()
        found[index] = part.view(tensor.shape[::-1]).t().clone() if turned else part.view(tensor.shape).clone()
