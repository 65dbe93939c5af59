"""The page of a tuner, `ddpsim.tuning/1`: each round's plans as predicted and measured, its decision and its cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ddpsim.common.documents.fields import WRITTEN, Amount, Count, Index, Number, Text, document_of
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import TraceError
from ddpsim.common.files import read_json, write_whole

NAME = "tuning.json"
"""Name of the page in the tuner's folder."""
_REMEDY = 'give the folder of `ddpexec.tuned(..., out="tuning")`'


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A plan that was predicted, and measured where it was tried; seconds a step, gains as shares of the step."""

    call: Text
    buckets: Count
    predicted_step_s: Amount
    predicted_gain: Number
    predicted_gain_low: Annotated[Number | None, WRITTEN] = None
    predicted_gain_high: Annotated[Number | None, WRITTEN] = None
    measured_step_s: Annotated[Amount | None, WRITTEN] = None
    measured_steps: Annotated[Index, WRITTEN] = 0
    saved_s: Annotated[Number | None, WRITTEN] = None
    saved_low_s: Annotated[Number | None, WRITTEN] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRound:
    """A round of tuning.

    Attributes:
        first_step, steps: counted from the tuner's first step.
        present, kept: lines that give the plan before and after, to torch's DDP or to our wrapper of schemes.
        present_step_s, kept_step_s: as measured.
        predicted_step_s: of the present plan.
        latency_s, bandwidth: of an allreduce, as observed: seconds, bytes a second; None where none was.
        probed: plans run to see messages of other sizes.
        lost_s: what the steps took beyond as many of the present plan's.
        own_s: of it, the tuner's time between steps.
        other_work_processors, processors: how many of rank 0's machine were busy with other work, and how many it has;
            None where it did not tell.
        plans: the best predicted first.
    """

    first_step: Index
    steps: Index
    present: Text
    kept: Text
    reason: Text
    present_step_s: Annotated[Amount | None, WRITTEN] = None
    kept_step_s: Annotated[Amount | None, WRITTEN] = None
    predicted_step_s: Annotated[Amount | None, WRITTEN] = None
    latency_s: Annotated[Amount | None, WRITTEN] = None
    bandwidth: Annotated[Amount | None, WRITTEN] = None
    probed: Annotated[Index, WRITTEN] = 0
    lost_s: Annotated[Number, WRITTEN] = 0.0
    own_s: Annotated[Amount, WRITTEN] = 0.0
    other_work_processors: Annotated[Amount | None, WRITTEN] = None
    processors: Annotated[Count | None, WRITTEN] = None
    plans: Annotated[tuple[Tried, ...], WRITTEN] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All rounds of one training."""

    SCHEMA: ClassVar = "ddpsim.tuning/1"
    KIND: ClassVar = "tuner's page"

    rounds: tuple[TuningRound, ...]

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        document: dict[str, object] = document_of(self)
        return document


def is_tuning(path: str | Path) -> bool:
    """Whether a path is a tuner's folder, or its file; a name that no file system takes is neither."""
    place = Path(path)
    try:
        return (place / NAME).is_file() or (place.name == NAME and place.is_file())
    except OSError:  # too long: what reads traces says so
        return False


def write_tuning(tuning: Tuning, folder: Path) -> None:
    """Write a tuner's page into its folder.

    Raises:
        InputError: it cannot be written.
    """
    write_whole(folder / NAME, json.dumps(tuning.document(), indent=1) + "\n")


def read_tuning(path: str | Path) -> Tuning:
    """Return the page of a tuner in a folder.

    Raises:
        TraceError: no such file, or not a tuner's.
    """
    place = Path(path)
    file = place if place.name == NAME else place / NAME
    return read_as(Tuning, read_json(file, TraceError, _REMEDY), str(file), TraceError, _REMEDY)
