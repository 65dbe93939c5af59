"""What a tuner left of its decisions, `ddpsim.tuning/1`: what was tried, predicted, measured and kept, and its cost."""

from __future__ import annotations

import json
from pathlib import Path

from ddpsim.documents import Count, Document, File, Index, Number, Text, read_as
from ddpsim.documents.model import Amount
from ddpsim.errors import TraceError
from ddpsim.files import read_json, write_whole

NAME = "tuning.json"
"""Its file in the tuner's folder."""
_REMEDY = 'give the folder of `ddpexec.tuned(..., out="tuning")`'


class Tried(Document):
    """A plan that was predicted, and measured where it was tried; seconds a step, gains as shares of the step."""

    call: Text
    buckets: Count
    predicted_step_s: Amount
    predicted_gain: Number
    predicted_gain_low: Number | None = None
    predicted_gain_high: Number | None = None
    measured_step_s: Amount | None = None
    measured_steps: Index = 0
    saved_s: Number | None = None
    saved_low_s: Number | None = None


class TuningRound(Document):
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
    present_step_s: Amount | None = None
    kept_step_s: Amount | None = None
    predicted_step_s: Amount | None = None
    latency_s: Amount | None = None
    bandwidth: Amount | None = None
    probed: Index = 0
    lost_s: Number = 0.0
    own_s: Amount = 0.0
    other_work_processors: Amount | None = None
    processors: Count | None = None
    plans: list[Tried] = []  # noqa: RUF012  pydantic copies it


class Tuning(File):
    """All rounds of one training."""

    SCHEMA = "ddpsim.tuning/1"
    KIND = "tuner's page"

    rounds: list[TuningRound]

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"schema": self.SCHEMA, **self.model_dump()}


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
    """Return what a tuner left in a folder.

    Raises:
        TraceError: no such file, or not a tuner's.
    """
    place = Path(path)
    file = place if place.name == NAME else place / NAME
    return read_as(Tuning, read_json(file, TraceError, _REMEDY), str(file), TraceError, _REMEDY)
