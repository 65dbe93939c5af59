"""A claim of the paper, what is simulated and measured of it, and whether it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["holds", "fails", "undecided"]

TOLERANCE = 0.15
"""Of a figure that the paper states, relative: within so much of it a simulated figure holds."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim is one statement of the paper, beside what this project says of it.

    Attributes:
        number: of the claim, from 1; claims are told apart by it.
        figure: name of the figure that shows it, as `ddpsim paper` takes it.
        paper: what the paper says.
        simulated: what the central prediction says, in the same terms.
        measured: what a run on the lab says; None where nothing was run.
        verdict: of the central prediction; `undecided` where it says neither.
        why: the physics that makes it hold, or that is missing.
    """

    number: int
    figure: str
    paper: str
    simulated: str
    measured: str | None
    verdict: Verdict
    why: str

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return asdict(self)


def near(simulated: float, paper: float) -> Verdict:
    """Return whether a figure is within `TOLERANCE` of the paper's.

    >>> near(0.34, 0.38), near(0.30, 0.38)
    ('holds', 'fails')
    """
    return "holds" if abs(simulated - paper) <= TOLERANCE * abs(paper) else "fails"


def all_of(facts: Iterable[bool]) -> Verdict:
    """Return `holds` where every fact is so."""
    return "holds" if all(facts) else "fails"


def of_halves(*halves: Verdict) -> Verdict:
    """Return the verdict of a claim with halves: that of those which are decided.

    >>> of_halves("undecided", "holds"), of_halves("undecided", "undecided"), of_halves("holds", "fails")
    ('holds', 'undecided', 'fails')
    """
    told = [each for each in halves if each != "undecided"]
    return all_of(each == "holds" for each in told) if told else "undecided"


def counted(claims: Sequence[Claim]) -> str:
    """Return how many claims have each verdict, in words.

    >>> counted([])
    ''
    """
    words: dict[Verdict, str] = {"holds": "hold", "fails": "fail", "undecided": "undecided"}
    counts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict])
