"""`python -m studies.paper`: the evaluation of DDP's paper again, figure by figure, with a verdict a claim."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from ddpsim.cli.app import carry_out
from ddpsim.cli.expand import expand
from ddpsim.cli.keeping import make_resumable
from ddpsim.cli.output import Output, note
from ddpsim.common.files import check_writable
from ddpsim.common.tables import ResultTable
from ddpsim.common.workers.requests import Workers
from studies.paper.assumptions import documents as assumptions
from studies.paper.claim import Claim
from studies.paper.figure import answer_point, points_of
from studies.paper.figures import FIGURES, figures_named
from studies.paper.headlines.open import OPEN
from studies.paper.page import pages_of, tally, written
from studies.study import Page, Study

_PAGE = "paper.md"


@expand
def paper(
    by: Workers,
    output: Output,
    figure: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help="fig2, fig6, ..., aws, schemes, or all. [all]")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Write each figure as a picture, and the page of all.")
    ] = None,
) -> None:
    """Reproduce the evaluation of Li et al., "PyTorch Distributed" (VLDB 2020), and say which of its claims hold.

    Verdicts are those of the central prediction: within 15 % of the paper's figure, or the same best, sign and order.
    """
    asked = figures_named(figure or [])
    if out is not None:
        check_writable(Path(out) / _PAGE)
    points = points_of(asked)
    with make_resumable(by, len(points)) as done:
        answers = dict(zip(points, done.compute(answer_point, points, what="predictions"), strict=True))
        done.deliver(str)
    found = [(each, each.reproduce(answers)) for each in asked]
    if out is not None:
        for path in written(found, Path(out)):
            note(f"wrote {path}")
    claims = sorted((claim for _, made in found for claim in made.claims), key=lambda claim: claim.number)
    document = {
        "claims": [claim.document() for claim in claims],
        "assumptions": assumptions(),
        "open": [asdict(each) for each in OPEN],
    }
    output.emit(document, lambda: _text(claims))


def _text(claims: Sequence[Claim]) -> str:
    rows = tuple(
        (str(claim.number), claim.figure, claim.paper, claim.simulated, claim.measured, claim.verdict)
        for claim in claims
    )
    header = ("", "figure", "the paper", "simulated", "measured", "verdict")
    return f"{ResultTable(header, rows, frozenset({1, 2, 3, 4, 5})).text()}\n\n{tally(claims)}"


@cache
def _pages() -> Mapping[str, str]:
    answers = {point: point.answer() for point in points_of(list(FIGURES.values()))}
    return pages_of([(figure, figure.reproduce(answers)) for figure in FIGURES.values()])


def _page(name: str) -> str:
    return _pages()[name]


STUDY = Study("paper", [Page(name, partial(_page, name), again="check") for name in ("paper.md", "paper-schemes.md")])


def main(arguments: Sequence[str]) -> int:
    """Run the study and return its exit code."""
    application = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.command()(paper)
    return carry_out(typer.main.get_command(application), arguments, "python -m studies.paper")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
