"""GradientFlow: of each bucket only the chunks of the largest gradients are summed, which ranks agree on beforehand.

A rank adds what it did not send before to its gradients, sums the norm of each chunk over the ranks (the consensus
phase), and then the chunks of the largest norms. What is left out stays where it is for the next step.

Source: Sun et al., "Optimizing Network Performance for Distributed DNN Training on GPU Clusters: ImageNet/AlexNet
Training in 1.5 Minutes" (2019), sections III.B and III.C: lazy allreduce, which buckets are here, and coarse-grained
sparse communication, without its correction of momentum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ddpsim.errors import InputError
from ddpsim.options.asked import count, factor, value

NORM_BYTES = 4
"""Bytes of a chunk's norm, in fp32."""

SUMMING_PASSES = 3.0
"""Passes of a copy's size before norms are there: gradients are added to what was left, and each chunk's sizes summed.

Reads two and writes one, then, as torch has no sum of sizes at once that is as fast, reads one and writes one, and
reads one: six times a gradient's bytes, of which a copy moves two.
"""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks are equal consecutive parts of a bucket, of which a message carries some, or the norm of each.

    Attributes:
        elements: of a chunk.
        chosen: how many are carried.
        phase: what the message carries of them.
    """

    elements: int
    chosen: int
    phase: Literal["norms", "values"]


def some_share(text: str, place: str) -> float:
    """Return a share above 0, at most 1.

    Raises:
        InputError: no such share.
    """
    share = factor(text, place)
    if not 0 < share <= 1:
        what = "chunks that cover nothing" if share == 0 else f"{text} is no share of the chunks"
        raise InputError(what, place=place, remedy="write e.g. 0.1")
    return share


@dataclass(frozen=True, slots=True)
class GradientFlow:
    """What `gradientflow` may be asked.

    Attributes:
        density: share of the chunks of a bucket that is summed; a tenth is our choice.
        chunk: elements of a chunk, the paper's 32,000 or so as a power of two.
    """

    density: float = value(some_share, 0.1)
    chunk: int = value(count, 32768)

    def chunks(self, elements: int) -> int:
        """Return the chunks of a bucket of so many elements."""
        return math.ceil(elements / self.chunk)

    def chosen(self, elements: int) -> int:
        """Return how many of them are summed: one at least."""
        return max(1, math.ceil(self.density * self.chunks(elements)))
