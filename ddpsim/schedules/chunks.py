"""GradientFlow: of each bucket only the chunks of the largest gradients are summed, which ranks agree on beforehand.

A rank adds what it did not send before to its gradients, sums the norm of each chunk over the ranks (the consensus
phase), and then the chunks of the largest norms. What is left out stays where it is for the next step.

Source: Sun et al., "Optimizing Network Performance for Distributed DNN Training on GPU Clusters: ImageNet/AlexNet
Training in 1.5 Minutes" (2019), sections III.B and III.C: lazy allreduce, which buckets are here, and coarse-grained
sparse communication. Momentum is corrected as by Lin et al., "Deep Gradient Compression" (2018), sections 3.2 and 3.3,
which GradientFlow's own correction follows in aim; its formula was not read. A rank keeps a velocity u of its own,
u <- m u + g, adds it instead of the gradient to what was left, and forgets that of what it sends; the optimizer has no
momentum then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ddpsim.common.errors import InputError
from ddpsim.common.suboptions import count, factor, value

NORM_BYTES = 4
"""Bytes of a chunk's norm, in fp32."""

SUMMING_PASSES = 3.0
"""Passes of a copy's size before norms are there: gradients are added to what was left, and each chunk's sizes summed.

Reads two and writes one, then, as torch has no sum of sizes at once that is as fast, reads one and writes one, and
reads one: six times a gradient's bytes, of which a copy moves two.
"""


MOMENTUM_PASSES = 2.5
"""More of them where momentum is corrected: the velocity is scaled (2 times a gradient's bytes) and added to (3)."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks are equal consecutive parts of a bucket, of which a message carries some, or the norm of each.

    Attributes:
        elements: of a chunk.
        chosen: how many are carried.
        phase: what the message carries of them.
        momentum: of the velocity that is added to what was left, in place of the gradients; 0 adds those.
    """

    elements: int
    chosen: int
    phase: Literal["norms", "values"]
    momentum: float = 0.0


def parse_share(text: str, place: str) -> float:
    """Return a share above 0, at most 1.

    Raises:
        InputError: no such share.
    """
    share = factor(text, place)
    if not 0 < share <= 1:
        what = "chunks that cover nothing" if share == 0 else f"{text} is no share of the chunks"
        raise InputError(what, place=place, remedy="write e.g. 0.1")
    return share


def parse_below_one(text: str, place: str) -> float:
    """Return a number from 0, below 1.

    Raises:
        InputError: no such number.
    """
    number = factor(text, place)
    if number >= 1:
        raise InputError(f"{text} is no momentum", place=place, remedy="write e.g. 0.9")
    return number


@dataclass(frozen=True, slots=True)
class GradientFlow:
    """What `gradientflow` may be asked.

    Attributes:
        density: share of the chunks of a bucket that is summed; a tenth is our choice.
        chunk: elements of a chunk, the paper's 32,000 or so as a power of two.
        momentum: that is corrected, in place of the optimizer's; 0 corrects none.
    """

    density: float = value(parse_share, 0.1)
    chunk: int = value(count, 32768)
    momentum: float = value(parse_below_one, 0.0)

    def chunks(self, elements: int) -> int:
        """Return the chunks of a bucket of so many elements."""
        return math.ceil(elements / self.chunk)

    def count_chosen(self, elements: int) -> int:
        """Return how many of them are summed: one at least."""
        return max(1, math.ceil(self.density * self.chunks(elements)))
