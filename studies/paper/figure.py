"""What a figure is: the points it needs, and what it makes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ddpsim.prediction.answers import Answers as KeptAnswers
from studies.paper.claim import Claim

if TYPE_CHECKING:
    from ddpsim.report.charts import Chart


class Point(Protocol):
    """A point is one question whose answer takes time: frozen, hashable and pickled, so that workers share points.

    Points that are equal are answered once, whoever asks; its text tells people which it is.
    """

    def answer(self) -> Any:
        """Return the answer as JSON values."""


Answers = Mapping[Point, Any]
"""The answer of every point that a figure asked."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What comes of a figure.

    Attributes:
        panels: its panels, as the paper drew them.
        claims: those that the figure is judged by.
        notes: sentences of the page beside the picture: what was assumed, what to see.
    """

    panels: Sequence[Chart]
    claims: Sequence[Claim]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, or a table, of the paper that is reproduced.

    Attributes:
        name: as `ddpsim paper` takes it, `fig6`.
        title: one line.
        points: returns what has to be answered.
        reproduce: makes panels and claims of the answers.
        page: writes its claims as a page of its own, `paper-NAME.md`; None leaves them to the page of all.
    """

    name: str
    title: str
    points: Callable[[], Sequence[Point]]
    reproduce: Callable[[Answers], Reproduction]
    page: Callable[[Sequence[Claim]], str] | None = None


def points_of(figures: Sequence[Figure]) -> list[Point]:
    """Return every point of the figures once."""
    return list(dict.fromkeys(point for figure in figures for point in figure.points()))


def answer_point(answers: KeptAnswers, point: Point) -> Any:
    """Return the answer of a point, of a journal where that has it."""
    return answers.ask(Any, point.answer, repr(point))
