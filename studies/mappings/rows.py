"""Published steps with their mapping, in series: mappings of one model on so many GPUs with one global batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from studies.accuracy.rows import read_rows

ROWS = Path(__file__).with_name("steps") / "steps.csv"


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer as its page describes it.

    Attributes:
        tokens: of a sequence.
    """

    width: int
    layers: int
    heads: int
    vocabulary: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """A published step.

    Attributes:
        series: name of what it may be compared with.
        cluster: where, and by whose code.
        data, tensor, stages, experts: ranks of each kind of group.
        micro_batch, global_batch: in sequences, of a rank's micro-batch and of all of a step.
        step_s: measured.
    """

    series: str
    cluster: str
    gpus: int
    model: Model
    data: int
    tensor: int
    stages: int
    experts: int
    micro_batch: int
    global_batch: int
    step_s: float

    @property
    def micro_batches(self) -> int:
        """How many a rank computes in a step."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def mapping(self) -> str:
        """Data x tensor x stages, and the micro-batch."""
        experts = f", {self.experts} with experts" if self.experts > 1 else ""
        return f"{self.data} x {self.tensor} x {self.stages}{experts}, {self.micro_batch} a micro-batch"


def rows() -> list[Row]:
    """Return every row, in the file's order."""
    return [
        Row(
            each["series"],
            each["cluster"],
            int(each["gpus"]),
            Model(*(int(each[name]) for name in ("width", "layers", "heads", "vocabulary", "sequence"))),
            int(each["dp"]),
            int(each["tp"]),
            int(each["pp"]),
            int(each["ep"]),
            int(each["micro_batch"]),
            int(each["global_batch"]),
            float(each["step_s"]),
        )
        for each in read_rows(ROWS)
    ]


def judging(each: list[Row]) -> frozenset[str]:
    """Return the series that judge: every other one by name, beginning with the second."""
    return frozenset(sorted({row.series for row in each})[1::2])
