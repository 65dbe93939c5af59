"""Which of the bytes that operators move stay as they are with another batch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.capturing.live import fp32_bytes, storage_key
from ddpexec.capturing.operators import ElementBytes, traffic_of

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Moved:
    """What one operator moves: of each tensor read its writer, its shape and bytes; of each written its storage."""

    plain: bool
    read: list[tuple[tuple[int, int | None] | None, Shape, float]]
    written: list[tuple[int | None, Shape, float]]


@dataclass(slots=True)
class FixedBytes:
    """Counts bytes that do not depend on the batch: of parameters, buffers, tensors derived from them, gradients.

    A tensor turns out to be a gradient when it is handed to its parameter: the operator that wrote it wrote fixed
    bytes, and where that only copied or added tensors of the same shape, so did those before it.

    Args:
        module: that is trained.
        element_bytes: of a tensor.

    Attributes:
        bytes: of operators of backward, by their number.
    """

    module: nn.Module
    element_bytes: ElementBytes = fp32_bytes
    bytes: dict[int, float] = field(init=False, default_factory=dict)
    _storages: set[int | None] = field(init=False)
    _moved: dict[int, _Moved] = field(init=False, default_factory=dict)
    _writer: dict[int | None, int] = field(init=False, default_factory=dict)
    _seen: set[tuple[int, int | None]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        own = [*self.module.parameters(), *self.module.buffers()]
        self._storages = {storage_key(tensor) for tensor in own} - {None}

    def is_made_of_parameters(self, read: Sequence[Tensor]) -> bool:
        """Return whether an operator reads nothing that goes with the batch."""
        return bool(read) and all(storage_key(tensor) in self._storages for tensor in read)

    def of(self, func: Any, read: Sequence[Tensor], written: Sequence[Tensor]) -> float:
        """Return the bytes that `func` moves of parameters and of tensors derived from parameters alone."""
        name = func._schema.name.partition("::")[2]
        of_parameters = self.is_made_of_parameters(read)
        if of_parameters:
            self._remember(written)
        known = [tensor for tensor in read if storage_key(tensor) in self._storages]
        return traffic_of(name, known, written if of_parameters else [], self.element_bytes)

    def note(
        self, number: int, func: Any, fixed: float, flops: float, read: Sequence[Tensor], written: Sequence[Tensor]
    ) -> None:
        """Note operator `number` of backward, of whose traffic `fixed` bytes are known to be fixed already."""
        name = func._schema.name.partition("::")[2]
        known = [None if storage_key(t) in self._storages else self._source(storage_key(t)) for t in read]
        self._moved[number] = _Moved(
            not flops,
            [
                (source, _shape(t), traffic_of(name, [t], [], self.element_bytes))
                for source, t in zip(known, read, strict=True)
            ],
            [(storage_key(t), _shape(t), traffic_of(name, [], [t], self.element_bytes)) for t in written],
        )
        self.bytes[number] = fixed
        self._writer |= {storage_key(tensor): number for tensor in written}

    def is_gradient(self, gradient: Tensor | None) -> None:
        """Count what wrote `gradient`, which was handed to its parameter just now."""
        if gradient is None:
            return
        if gradient.layout != torch.strided:
            gradient = gradient._values()
        if (source := self._source(storage_key(gradient))) is not None:
            self._mark(source)

    def _source(self, key: int | None) -> tuple[int, int | None] | None:
        return None if key is None or key not in self._writer else (self._writer[key], key)

    def _mark(self, source: tuple[int, int | None]) -> None:
        waiting = [source]
        while waiting:
            number, key = source = waiting.pop()
            if source in self._seen:
                continue
            self._seen.add(source)
            moved = self._moved[number]
            shapes = {shape for written, shape, _ in moved.written if written == key}
            self.bytes[number] += sum(size for written, _, size in moved.written if written == key)
            for before, shape, size in moved.read if moved.plain else ():
                if before is not None and shape in shapes:
                    self.bytes[number] += size
                    waiting.append(before)

    def _remember(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            key = storage_key(tensor)
            if key is not None and key not in self._storages:
                self._storages.add(key)
                weakref.finalize(tensor.untyped_storage(), self._storages.discard, key)


def _shape(tensor: Tensor) -> Shape:
    return tuple(sorted(size for size in tensor.shape if size > 1))
