"""Kept trainings: how the loss fell in real runs whose gradients were synchronised every n iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, ClassVar

from ddpsim.common.documents.fields import Amount, Bounds, Count, Index, Text
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import InputError
from ddpsim.common.files import display_name, read_json

_REMEDY = "make the file again with `make convergence`"
TAIL = 0.1
"""Share of a run, at its end, whose mean loss is its final loss."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training: the mean loss of all ranks by window of iterations, and what is made of images held out."""

    batch_size: Count
    learning_rate: Amount
    every: Count
    seed: Index
    loss: Annotated[tuple[Amount, ...], Bounds(min_length=1)]
    held_out_loss: Amount
    held_out_accuracy: Amount


@dataclass(frozen=True, slots=True)
class TrainingFile:
    """A whole file of `python -m studies.convergence.convergence`."""

    SCHEMA: ClassVar = "ddpsim.training/1"
    KIND: ClassVar = "training file"

    images: Text
    model: Text
    optimizer: Text
    ranks: Count
    window: Count
    torch: Text
    runs: Annotated[tuple[Run, ...], Bounds(min_length=1)]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve is the trainings of one setting that differ in their seed.

    Attributes:
        every: iterations from one synchronisation to the next.
        loss: mean over the seeds, by window.
        tails: the windows that are each one's final loss, seeds ascending.
    """

    every: int
    loss: Sequence[float]
    tails: Sequence[Sequence[float]]

    @property
    def finals(self) -> list[float]:
        """The final loss of each, seeds ascending."""
        return [fmean(tail) for tail in self.tails]

    @property
    def final(self) -> float:
        """The mean final loss."""
        return fmean(self.finals)

    @property
    def scatter(self) -> float:
        """By how much the loss goes up and down at the end: the standard deviation of all windows of all tails."""
        return stdev(loss for tail in self.tails for loss in tail)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of `values`; 0 of one."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


KEPT = Path(__file__).parents[1] / "convergence" / "digits.json"


def load_training(path: str | Path = KEPT) -> TrainingFile:
    """Return the kept trainings in a file.

    Raises:
        InputError: no such file, not JSON, a key missing or of the wrong kind.
    """
    return read_as(TrainingFile, read_json(path, InputError, _REMEDY), display_name(str(path)), InputError, _REMEDY)


def curves(file: TrainingFile, batch_size: int) -> dict[int, Curve]:
    """Return the curves of a batch size by their `every`, ascending.

    Raises:
        InputError: runs of different lengths, or of other seeds.
    """
    found = {}
    chosen = sorted((run for run in file.runs if run.batch_size == batch_size), key=lambda run: run.seed)
    seeds = {tuple(run.seed for run in chosen if run.every == every) for every in {run.every for run in chosen}}
    if len(seeds) > 1:
        raise InputError("settings have different seeds", place="training file", remedy=_REMEDY)
    for every in sorted({run.every for run in chosen}):
        losses = [run.loss for run in chosen if run.every == every]
        if len({len(loss) for loss in losses}) > 1:
            raise InputError("runs of one setting differ in length", place="training file", remedy=_REMEDY)
        tail = max(1, round(TAIL * len(losses[0])))
        mean = [fmean(values) for values in zip(*losses, strict=True)]
        found[every] = Curve(every, mean, [loss[-tail:] for loss in losses])
    return found
