"""`ddpsim paper schemes`: every headline, as one figure without a picture, on a page of its own."""

from __future__ import annotations

from studies.paper.figure import Answers, Figure, Point, Reproduction
from studies.paper.headlines import allreduces, averaged, chunks, reduced, rows, staged
from studies.paper.headlines.headline import NAME
from studies.paper.headlines.page import page_of

HEADLINES = (
    *averaged.HEADLINES, *rows.HEADLINES, *reduced.HEADLINES, *chunks.HEADLINES,
    *allreduces.HEADLINES, *staged.HEADLINES,
)  # fmt: skip


def _points() -> list[Point]:
    return [point for headline in HEADLINES for point in headline.points]


def _reproduce(answers: Answers) -> Reproduction:
    claims = [headline.claim(answers) for headline in HEADLINES]
    return Reproduction([], claims)


FIGURE = Figure(NAME, "The systems beside DDP: headlines of their own papers", _points, _reproduce, page_of)
