"""A headline of a system: what its own paper says, where that was read, by which set-up, and what is simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from studies.paper.claim import Claim, Verdict
from studies.paper.figure import Answers, Point

NAME = "schemes"


@dataclass(frozen=True, slots=True)
class Said:
    """What the simulator says of a headline.

    Attributes:
        simulated: in the same terms.
        verdict: of it.
        why: they differ, or agree.
    """

    simulated: str
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class Headline:
    """A headline is one claim of a system's own paper, or of its documentation.

    Attributes:
        number: of the claim; DDP's paper and the AWS post have 1 to 24.
        system: its name.
        paper: what it claims.
        source: where that was read.
        stated: of the set-up, what the source states.
        assumed: of it, what is assumed; each with where from.
        points: what has to be answered.
        judge: says what is simulated of the answers, and how that stands to the claim.
    """

    number: int
    system: str
    paper: str
    source: str
    stated: str
    assumed: str
    points: Sequence[Point]
    judge: Callable[[Answers], Said]

    def claim(self, answers: Answers) -> SystemClaim:
        """Return it with its verdict."""
        said = self.judge(answers)
        return SystemClaim(
            number=self.number,
            figure=NAME,
            paper=f"{self.system}: {self.paper}",
            simulated=said.simulated,
            measured=None,
            verdict=said.verdict,
            why=said.why,
            system=self.system,
            source=self.source,
            stated=self.stated,
            assumed=self.assumed,
        )


@dataclass(frozen=True, slots=True)
class Open:
    """An open headline is one whose set-up its source does not state; it is listed, and neither run nor judged.

    Attributes:
        system, paper, source: as a headline's.
        missing: what decides it and is not stated.
    """

    system: str
    paper: str
    source: str
    missing: str


@dataclass(frozen=True, slots=True)
class SystemClaim(Claim):
    """A system claim is a headline with its verdict; attributes as those of `Headline`."""

    system: str
    source: str
    stated: str
    assumed: str
