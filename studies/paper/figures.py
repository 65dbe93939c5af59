"""The table of figures: a module with a `FIGURE` each."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.common.errors import UnknownNameError
from studies.paper import aws, buckets, fig2, fig6, fig11, fig12, scaling
from studies.paper.figure import Figure
from studies.paper.headlines import figure as schemes

_TABLE = (
    fig2.FIGURE, fig6.FIGURE, buckets.FIGURE_7, buckets.FIGURE_8, scaling.FIGURE_9, scaling.FIGURE_10, fig11.FIGURE,
    fig12.FIGURE, aws.FIGURE, schemes.FIGURE,
)  # fmt: skip

FIGURES: dict[str, Figure] = {figure.name: figure for figure in _TABLE}
"""By name, in the order of the page."""

ALL = "all"


def figures_named(names: Sequence[str]) -> list[Figure]:
    """Return the figures of these names, in the table's order; none, or `all`, is every figure.

    Raises:
        UnknownNameError: no such figure.
    """
    for name in names:
        if name not in (ALL, *FIGURES):
            raise UnknownNameError.among("figure", name, [*FIGURES, ALL])
    wanted = set(FIGURES) if not names or ALL in names else set(names)
    return [figure for name, figure in FIGURES.items() if name in wanted]
