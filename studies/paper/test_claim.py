"""Verdicts, and the table of figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpsim.cli.app import run
from ddpsim.common.errors import UnknownNameError
from studies.paper.claim import TOLERANCE, all_of, near
from studies.paper.figure import points_of
from studies.paper.figures import FIGURES, figures_named

PAPER = (0.380, 0.352, 0.268, 0.215)
"""By which part overlap shortens a step, in figure 6."""
PAGE = Path(__file__).with_name("paper.md").read_text()


@pytest.mark.parametrize("paper", [0.38, 2.0, 250e-3])
def test_a_figure_holds_within_the_tolerance_on_both_sides(paper: float) -> None:
    for side in (-1, 1):
        assert near(paper * (1 + side * 0.99 * TOLERANCE), paper) == "holds"
        assert near(paper * (1 + side * 1.01 * TOLERANCE), paper) == "fails"


def test_one_wrong_fact_fails_a_claim() -> None:
    assert (all_of([True, True]), all_of([True, False])) == ("holds", "fails")


def test_figures_are_asked_for_by_name_and_come_in_the_tables_order() -> None:
    assert [figure.name for figure in figures_named([])] == list(FIGURES)
    assert figures_named(["all"]) == figures_named([])
    with pytest.raises(UnknownNameError, match="fig6"):
        figures_named(["fig66"])


def test_claims_come_as_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["paper", "fig11", "--json", "--workers", "1"]) == 0
    [claim] = json.loads(capsys.readouterr().out)["claims"]
    assert claim["number"] == 13
    assert f"| {claim['measured']} | {claim['verdict']} |" in PAGE, "`make paper` writes the page anew"


@pytest.mark.parametrize("name", ["fig2", "fig6"])
def test_claims_of_a_figure_are_those_of_the_page(name: str) -> None:
    """Of two figures, in seconds; `make check` makes the whole page."""
    [figure] = figures_named([name])
    claims = figure.reproduce({point: point.answer() for point in points_of([figure])}).claims
    assert claims
    for claim in claims:
        assert f"**{claim.number}. {claim.paper}: {claim.verdict}.** Simulated: {claim.simulated}." in PAGE


def test_verdicts_of_figure_6_are_those_of_its_figures() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and line.split(" | ")[1] == "fig6"]
    assert [row[0] for row in rows] == ["| 3", "| 4", "| 5", "| 6"]
    verdicts = [near(float(row[3].split("%")[0]), 100 * paper) for row, paper in zip(rows, PAPER, strict=True)]
    # Claim 3 fixed what it rests on.
    assert [f"{each} |" for each in ("undecided", *verdicts[1:])] == [row[5] for row in rows]


def test_an_unknown_figure_is_refused_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["paper", "fig13"]) == 2
    assert "fig13" in capsys.readouterr().err
