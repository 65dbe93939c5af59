"""The figures as pictures, and the page that tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddpsim.files import write_whole
from ddpsim.paper.figure import Figure, Reproduction

Found = Sequence[tuple[Figure, Reproduction]]


def written(found: Found, folder: Path) -> list[Path]:
    """Write a picture of each figure that has panels, and `paper.md`; return their paths."""
    from ddpsim.plots.panels import plot_panels

    paths = []
    for figure, made in found:
        if made.panels:
            path = folder / f"paper-{figure.name}.png"
            plot_panels(made.panels, path)
            paths.append(path)
    page = folder / "paper.md"
    write_whole(page, _page(found).encode())
    return [*paths, page]


def _page(found: Found) -> str:
    lines = ["# The paper's evaluation, again", ""]
    for figure, made in found:
        lines += [f"## {figure.title}", ""]
        lines += [f"![{figure.title}](paper-{figure.name}.png)", ""] if made.panels else []
        lines += ["| claim | the paper | simulated | measured | verdict | why |", "|---" * 6 + "|"]
        for claim in made.claims:
            cells = (claim.number, claim.paper, claim.simulated, claim.measured or "-", claim.verdict, claim.why)
            lines.append(f"| {' | '.join(map(str, cells))} |")
        lines += ["", *made.notes, ""]
    return "\n".join(lines) + "\n"
