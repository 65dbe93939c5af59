"""The table of figures: a module with a `FIGURE` each."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.errors import UnknownNameError
from ddpsim.paper import aws, fig6, fig11
from ddpsim.paper.figure import Figure

FIGURES: dict[str, Figure] = {figure.name: figure for figure in (fig6.FIGURE, fig11.FIGURE, aws.FIGURE)}
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
