"""Codecs: flat gradients into bytes that all ranks gather, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ddpsim.schedules import compression

TINY = torch.finfo(torch.float32).tiny


class FlatLayout:
    """Where each parameter lies in a flat buffer: one after another.

    Attributes:
        lengths: elements of each parameter.
        sizes: the same as a tensor on the buffer's device.
        elements: their sum.
    """

    __slots__ = ("elements", "lengths", "sizes")

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = list(lengths)
        self.sizes = torch.tensor(self.lengths, dtype=torch.int64, device=device)
        self.elements = sum(self.lengths)

    def pieces(self, flat: Tensor) -> Sequence[Tensor]:
        """Return a view of `flat` for each parameter."""
        return torch.split(flat, self.lengths)


class Codec(Protocol):
    """A way to write flat gradients as bytes; float32 or float64 in, the same out."""

    def encode(self, flat: Tensor, layout: FlatLayout) -> Tensor:
        """Return the elements of `flat`, one dimension, as uint8."""

    def decode(self, payload: Tensor, layout: FlatLayout, into: Tensor) -> None:
        """Add what `payload` stands for to `into`."""


class OneBitCodec:
    """Signs, and for each parameter the mean of its positive and of its other entries (Seide et al. 2014)."""

    def encode(self, flat: Tensor, layout: FlatLayout) -> Tensor:
        """Return two float32 means a parameter, then each one's signs, eight a byte."""
        pieces = layout.pieces(flat)
        signs = [piece > 0 for piece in pieces]
        counts = torch.stack([sign.sum() for sign in signs])
        above = torch.stack([piece.clamp(min=0).sum() for piece in pieces])
        below = torch.stack([piece.sum() for piece in pieces]) - above
        means = torch.cat([above / counts.clamp(min=1), below / (layout.sizes - counts).clamp(min=1)])
        return torch.cat([_view_as_bytes(means, torch.float32), *map(_pack, signs)])

    def decode(self, payload: Tensor, layout: FlatLayout, into: Tensor) -> None:
        """Add each element's mean to `into`."""
        split = 8 * len(layout.lengths)
        above, below = _from_bytes(payload[:split], torch.float32).to(into.dtype).view(2, -1)
        # Row b of a parameter's table holds the eight values that byte b of its signs stands for.
        tables = torch.where(_bits_of_bytes(into.device), above.view(-1, 1, 1), below.view(-1, 1, 1))
        signs = payload[split:].int().split([-(-length // 8) for length in layout.lengths])  # type: ignore[no-untyped-call]
        for piece, table, packed in zip(layout.pieces(into), tables, signs, strict=True):
            piece += table.index_select(0, packed).view(-1)[: piece.numel()]


class LinearCodec:
    """Sends whole numbers of eight bits, scaled by each parameter's largest magnitude."""

    def encode(self, flat: Tensor, layout: FlatLayout) -> Tensor:
        """Return one float32 scale a parameter, then int8 values."""
        pieces = layout.pieces(flat)
        largest = torch.stack([piece.abs().max() if piece.numel() else flat.new_zeros(()) for piece in pieces])
        scales = (largest / 127).to(torch.float32)
        divisors = scales.clamp(min=TINY).to(flat.dtype)
        levels = torch.cat([piece / divisor for piece, divisor in zip(pieces, divisors, strict=True)])
        return torch.cat(
            [_view_as_bytes(scales, torch.float32), _view_as_bytes(levels.round_().clamp_(-127, 127), torch.int8)]
        )

    def decode(self, payload: Tensor, layout: FlatLayout, into: Tensor) -> None:
        """Add the scaled values."""
        split = 4 * len(layout.lengths)
        scales = _from_bytes(payload[:split], torch.float32).to(into.dtype)
        levels = layout.pieces(_from_bytes(payload[split:], torch.int8).to(into.dtype))
        for piece, level, scale in zip(layout.pieces(into), levels, scales, strict=True):
            piece += level * scale


class HalfCodec:
    """Sends bfloat16, which has float32's range in two bytes."""

    def encode(self, flat: Tensor, layout: FlatLayout) -> Tensor:
        """Return bfloat16 values."""
        return _view_as_bytes(flat, torch.bfloat16)

    def decode(self, payload: Tensor, layout: FlatLayout, into: Tensor) -> None:
        """Add the values."""
        into += _from_bytes(payload, torch.bfloat16).to(into.dtype)


class TopKCodec:
    """The entries of largest magnitude of the whole bucket, with their places.

    Args:
        density: the share of entries that is sent, above 0 and at most 1.
    """

    def __init__(self, density: float = 0.01) -> None:
        self.scheme = compression.TopK(density)

    def encode(self, flat: Tensor, layout: FlatLayout) -> Tensor:
        """Return float32 values, then int32 places."""
        places = flat.abs().topk(self.scheme.count_kept(flat.numel()), sorted=False).indices
        return torch.cat([_view_as_bytes(flat[places], torch.float32), _view_as_bytes(places, torch.int32)])

    def decode(self, payload: Tensor, layout: FlatLayout, into: Tensor) -> None:
        """Add the values at their places."""
        half = payload.numel() // 2
        places = _from_bytes(payload[half:], torch.int32).long()
        into.index_add_(0, places, _from_bytes(payload[:half], torch.float32).to(into.dtype))


def _view_as_bytes(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype).contiguous().view(torch.uint8)


def _from_bytes(payload: Tensor, dtype: torch.dtype) -> Tensor:
    return payload.clone().view(dtype)  # a slice may start where this dtype is not aligned


def _pack(bits: Tensor) -> Tensor:
    """Return bits eight a byte, the first one lowest: a product gathers the low bits of eight bytes in the top one."""
    if bits.numel() % 8:
        bits = torch.nn.functional.pad(bits, (0, -bits.numel() % 8))
    return (bits.view(torch.uint8).view(torch.int64) * 0x0102040810204080 >> 56).to(torch.uint8)


def _bits_of_bytes(device: torch.device) -> Tensor:
    values = torch.arange(256, device=device)
    return (values.unsqueeze(1) >> torch.arange(8, device=device)) % 2 == 1
