"""Points of an iteration: where messages begin to be possible, and where a rank waits for them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

from ddpsim.common.errors import PlanError


class PointKind(StrEnum):
    """What a rank is about to do, or has just done, with a parameter or with all of them.

    An iteration passes them in this order: forward needs a parameter, backward needs it, its gradient is ready,
    backward has ended, the optimizer is about to update the parameter, it has updated it.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    GRADIENT = "gradient"
    BACKWARD_END = "backward_end"
    OPTIMIZER = "optimizer"
    UPDATED = "updated"

    # Points are looked up at each gradient: without this, by a hash that is written in Python.
    __hash__ = str.__hash__


WAITING = (PointKind.FORWARD, PointKind.BACKWARD, PointKind.BACKWARD_END, PointKind.OPTIMIZER)
"""Kinds of points at which a rank can wait for a message."""


class Point(NamedTuple):
    """A point of an iteration; written `gradient:3`, or `backward_end`.

    Attributes:
        kind: what happens there.
        parameter: registration index of whose; None for the end of backward.
    """

    kind: PointKind
    parameter: int | None = None

    def __str__(self) -> str:
        return self.kind.value if self.parameter is None else f"{self.kind.value}:{self.parameter}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the point that `text` names.

        Raises:
            PlanError: text that names none.

        >>> Point.parse("gradient:3")
        Point(kind=<PointKind.GRADIENT: 'gradient'>, parameter=3)
        """
        kind, colon, number = text.partition(":")
        whole = kind == PointKind.BACKWARD_END
        if (
            kind not in tuple(PointKind)
            or bool(colon) == whole
            or not (whole or (number.isascii() and number.isdigit()))
        ):
            of_parameters = ", ".join(each for each in PointKind if each != PointKind.BACKWARD_END)
            remedy = f"write `{PointKind.BACKWARD_END}`, or {of_parameters} and `:INDEX`"
            raise PlanError(f"{text!r} is no point of an iteration", remedy=remedy)
        return cls(PointKind(kind), None if whole else int(number))


BACKWARD_END = Point(PointKind.BACKWARD_END)


def points(kind: PointKind, parameters: tuple[int, ...]) -> tuple[Point, ...]:
    """Return the point `kind` of each of `parameters`."""
    return tuple(Point(kind, index) for index in parameters)


Kind = PointKind
"""The name of this class in earlier versions, kept for one release."""
