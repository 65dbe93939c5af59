"""A physical constant of a transport or of DDP: a value with its unit, its origin and its doubt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ddpsim.common.documents.fields import WRITTEN, Bounds, NotInFile

_RANGES = {"s": (1e-12, 1e6), "B/s": (1.0, 1e18), "B": (1.0, 1e18), "1": (1e-6, 1e6), "spread": (1e-12, 10.0)}
"""Least and most of constants by unit, far beyond what any machine has; a spread is one of logarithms."""

LARGEST_SPREAD = 100.0
"""Of the standard deviation of a logarithm: more than any measurement leaves."""
GIVEN = "given"
"""Source of a constant that a user set outright: it is neither measured nor in doubt."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of the model that measurements can determine.

    Attributes:
        name: dotted: `gloo.step_s`, `nccl.simple.efficiency.nvlink`.
        value: in `unit`.
        unit: `s`, `B/s`, `B`, or `1` for a ratio.
        source: where the value comes from: a page, a source file, or `fitted to FILE`.
        fitted: whether measurements determined it; a prior otherwise.
        log_std: standard deviation of its natural logarithm; None where unknown.
        most: the largest value that a user may set, if there is one; a fit may come out above, by noise.
    """

    name: str
    value: float
    unit: str
    source: str
    fitted: Annotated[bool, WRITTEN] = False
    log_std: Annotated[float | None, Bounds(ge=0, le=LARGEST_SPREAD), WRITTEN] = None
    most: Annotated[float | None, NotInFile] = None

    @property
    def measured(self) -> bool:
        """Whether measurements determined it."""
        return self.fitted and self.source != GIVEN

    @property
    def standing(self) -> str:
        """What its value rests on: `measured`, `given`, `prior`."""
        return "measured" if self.measured else GIVEN if self.source == GIVEN else "prior"

    def allows(self, value: object) -> bool:
        """Whether `value` may take the place of this constant's own.

        What its unit makes sense of. A cost of DDP in seconds, a count or a spread may be 0 too: a rate or a factor
        never. A slow-down is at least 1.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        spread = self.name.endswith("_spread")
        if value == 0:
            return spread or (".ddp." in self.name and self.unit != "B/s" and self.least == 0)
        least, most = _RANGES["spread" if spread else self.unit]
        return max(least, self.least) <= value <= most

    @property
    def least(self) -> float:
        """The least that its meaning makes sense of: 1 of a slow-down."""
        return 1.0 if self.name.endswith("_slowdown") else 0.0


def constant_as(known: str, other: str, constant: Constant) -> Constant:
    """Return a constant of the library `known` as a prior of `other`."""
    name = constant.name.replace(f"{known}.", f"{other}.", 1)
    return replace(constant, name=name, source=f"as {_NAMES[known]}'s: {constant.source}")


_NAMES = {"nccl": "NCCL", "gloo": "gloo"}
