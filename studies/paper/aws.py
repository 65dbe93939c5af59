"""The AWS post's measurements: four 1080 Ti under DataParallel and DDP, p3 machines alone, in pairs, beside M60."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.report.charts import Axis, Chart, StackedBar
from studies.paper.aws_allreduce import Allreduce
from studies.paper.aws_setup import (
    ALONE_PER_S,
    BOARD,
    FLOW,
    G3,
    MAXWELL,
    MIXED,
    MIXED_BATCH,
    P3,
    P3_LARGE,
    PASCAL_BATCH,
    PASCAL_STEP_S,
    SWITCHED,
    VOLTA,
    VOLTA_BATCH,
    VOLTA_STEP_S,
    COPY_Bps,
    of_mix,
    on_pascal,
    on_volta,
)
from studies.paper.aws_step import AwsStep
from studies.paper.claim import Claim, all_of, near
from studies.paper.figure import Answers, Figure, Point, Reproduction

FIRST = 15
"""Number of the post's first row: the paper's own claims are 1 to 14."""
LAST_S, ON_FOUR_S = 75e-3, 4e-3
"""The last allreduce on two p3.8xlarge, and one of 25 MB on four V100."""
MEASURED_ON_FOUR_S = 0.47e-3
"""The same on four V100 as vTrain's table has it (`python -m studies.accuracy`, "Times stated in AWS's post")."""
_PARTS = ("input_s", "forward_s", "backward_compute_s", "exposed_comm_s", "optimizer_s")


@dataclass(frozen=True, slots=True)
class Row:
    """A row is a step that the post timed.

    Attributes:
        what: it is, in few words.
        label: under its bar.
        paper: images a second of the post.
        images: a step has, on all GPUs.
        central: the prediction.
        others: under the other ends of what is assumed.
        why: the physics.
    """

    what: str
    label: str
    paper: float
    images: int
    central: AwsStep
    others: Sequence[AwsStep]
    why: str

    def rate(self, answers: Answers) -> float:
        """Return the predicted images a second."""
        return float(self.images / answers[self.central]["iteration_s"])

    def claim(self, number: int, answers: Answers, beside: Sequence[Row]) -> Claim:
        """Return the row's verdict: within the tolerance, and in the post's place among the rows it is compared with.

        Args:
            beside: those rows, itself included.
        """
        rate, *ends = (self.images / answers[point]["iteration_s"] for point in (self.central, *self.others))
        low, high = round(min(rate, *ends)), round(max(rate, *ends))
        simulated = f"{rate:.0f} images/s" + (f" ({low} to {high})" if low < high else "")
        place, posts = (
            1 + sum(of(each) > of(self) for each in beside)
            for of in (lambda each: each.rate(answers), lambda each: each.paper)
        )
        ordered = f"Place {place} of {len(beside)} by images a second, in the post {posts}."
        return Claim(
            number,
            "aws",
            f"{self.what}: {self.paper:.4g} images/s",
            f"{simulated}, place {place} of {len(beside)}" + (f" instead of {posts}" if place != posts else ""),
            None,
            all_of([near(rate, self.paper) == "holds", place == posts]),
            f"{self.why} {ordered}",
        )

    def bar(self, answers: Answers) -> StackedBar:
        """Return its bar: milliseconds of a step by their parts."""
        found, times = answers[self.central], [answers[point]["iteration_s"] for point in (self.central, *self.others)]
        heights = [(part.removesuffix("_s"), 1e3 * (found[part] or 0.0)) for part in _PARTS]
        rest = 1e3 * found["iteration_s"] - sum(height for _, height in heights)
        parts = (*heights, ("rest", max(rest, 0.0)))
        return StackedBar(self.label, parts, 1e3 * min(times), 1e3 * max(times), 1e3 * self.images / self.paper)


def _pascal(what: str, label: str, paper: float, why: str, **options: str) -> Row:
    central, other = (on_pascal(board, **options) for board in (BOARD, SWITCHED))
    return Row(f"4 x 1080 Ti, {what}", label, paper, 4 * PASCAL_BATCH, central, [other], why)


def _volta(what: str, gpus: int, batches: int, seconds: float, why: str, points: Sequence[AwsStep]) -> Row:
    images = gpus * VOLTA_BATCH
    return Row(what, what, images * batches / seconds, images, points[0], points[1:], why)


ON_FOUR = (
    _pascal(
        "DataParallel", "DataParallel", 610,
        "One thread copies four batches, and parameters go out and gradients come in with nothing computed beside.",
        mode="dataparallel",
    ),
    _pascal(
        "DataParallel with copies on their own stream", "DataParallel,\nown stream", 651.5,
        "Copies go beside computation; parameters and gradients do not.",
        mode="dataparallel", ahead="yes",
    ),
    _pascal(
        "DDP by NCCL", "DDP, NCCL", 714,
        "Four processes copy at once, and sums go beside backward.",
    ),
    _pascal(
        "DDP by gloo", "DDP, gloo", 602,
        "The same through the host's memory.",
        backend="gloo",
    ),
)  # fmt: skip
ON_AWS = (
    _volta(
        P3, 4, 196, 76.4, "Sums go over NVLink beside backward; the host copies the batches.",
        [on_volta(P3), on_volta(P3, copies=False)],
    ),
    _volta(
        P3_LARGE, 8, 98, 37.6, "The same on eight.",
        [on_volta(P3_LARGE), on_volta(P3_LARGE, copies=False)],
    ),
    _volta(
        f"2 x {P3}", 8, 98, 45.6, "The network carries sums beside backward, and the last bucket after it.",
        [on_volta(FLOW, 2), on_volta(P3, 2), on_volta(FLOW, 2, copies=False), on_volta(P3, 2, copies=False)],
    ),
)  # fmt: skip
_MIX, _SLOW, _FAST = of_mix(VOLTA, MIXED, mixed=True), of_mix(MAXWELL, G3), of_mix(VOLTA, P3)
_ALONE = on_pascal(BOARD, mode="alone")
_ALLREDUCE = Allreduce(P3)


def _points() -> list[Point]:
    rows = [point for row in (*ON_FOUR, *ON_AWS) for point in (row.central, *row.others)]
    return [*rows, _MIX, _SLOW, _FAST, _ALONE, _ALLREDUCE]


def _reproduce(answers: Answers) -> Reproduction:
    rows = (*ON_FOUR, *ON_AWS)
    groups = [group for group in (ON_FOUR, ON_AWS) for _ in group]
    claims = [
        row.claim(FIRST + number, answers, group) for number, (row, group) in enumerate(zip(rows, groups, strict=True))
    ]
    claims += [make(FIRST + len(rows) + number, answers) for number, make in enumerate((_last, _on_four, _held_up))]
    panels = [
        Chart(title, Axis(""), Axis("step", "ms"), bars=tuple(row.bar(answers) for row in chosen))
        for title, chosen in (("Four 1080 Ti, 64 images each", ON_FOUR), ("V100 on AWS, 128 images each", ON_AWS))
    ]
    return Reproduction(panels, claims, _notes(answers))


def _last(number: int, answers: Answers) -> Claim:
    slow, fast = (answers[point]["last_s"] for point in (on_volta(FLOW, 2), on_volta(P3, 2)))
    says = f"2 x p3.8xlarge: the last allreduce takes about {LAST_S * 1e3:.0f} ms"
    why = "25 MB go around a ring over one TCP connection, which EC2 limits to 5 Gb/s outside a placement group."
    return Claim(number, "aws", says, f"{slow * 1e3:.0f} ms (from {fast * 1e3:.0f})", None, near(slow, LAST_S), why)


def _on_four(number: int, answers: Answers) -> Claim:
    found = answers[_ALLREDUCE]["seconds"]
    says = f"an allreduce of 25 MB on four V100 takes about {ON_FOUR_S * 1e3:.0f} ms"
    why = (
        f"It takes {found * 1e3:.2f} ms over NVLink, and {MEASURED_ON_FOUR_S * 1e3:.2f} ms were measured on four V100 "
        "by vTrain. A profile's kernel also waits for the last rank."
    )
    return Claim(number, "aws", says, f"{found * 1e3:.2f} ms", None, near(found, ON_FOUR_S), why)


def _held_up(number: int, answers: Answers) -> Claim:
    mix, slow, fast = (answers[point]["iteration_s"] for point in (_MIX, _SLOW, _FAST))
    facts = near(mix, slow) == "holds", mix > 2 * fast
    simulated = (
        f"{mix * 1e3:.0f} ms a step, {mix / fast:.1f} times the V100s' {fast * 1e3:.0f}; M60 alone {slow * 1e3:.0f}"
    )
    why = "Every allreduce waits for the last rank, so that all keep the pace of the slowest GPU."
    return Claim(
        number, "aws", "a g3.16xlarge (M60) beside p3 holds all others up", simulated, None, all_of(facts), why
    )


def _notes(answers: Answers) -> list[str]:
    alone, step_ms = PASCAL_BATCH / answers[_ALONE]["iteration_s"], 1e3 * VOLTA_STEP_S
    assumed = (
        (
            "the host's copies",
            f"{COPY_Bps / 1e9:.2f} GB/s",
            "on AWS to no copies at all",
            f"the {ALONE_PER_S} images/s",
        ),
        ("the board of the 1080 Ti", "two sockets", "one, two cards a switch", "nothing: the shipped machine"),
        ("a V100's step of 128 images", f"{step_ms:.0f} ms", "", "a published step, not the post's"),
        ("one TCP flow on EC2", "5 Gb/s", "to 10 Gb/s", "EC2's user guide: 10 in a placement group alone"),
        ("a batch beside M60", f"{MIXED_BATCH} images", "", "8 GiB of memory"),
    )
    rows = [
        f"| {' | '.join(each)} |" for each in (("assumed", "value", "other end", "fixed by"), ("---",) * 4, *assumed)
    ]
    return [
        f"One 1080 Ti alone makes {alone:.1f} images/s, the post's {ALONE_PER_S} by construction: it fixes how fast "
        f"the host copies a batch, and its {1e3 * PASCAL_STEP_S:.0f} ms fix the step. All else is the machines. "
        "Bars have the band of the other ends.",
        "\n" + "\n".join(rows),
    ]


FIGURE = Figure("aws", "The AWS post: one-GPU figures carried to many", _points, _reproduce)
