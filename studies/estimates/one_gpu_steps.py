"""Published training steps on one GPU, and the two halves into which they are split before anything is fitted.

A row is kept where its model has a constructor here, it ran eager and channels first, without checkpointing, with
weights in 32 bits, and its precision, optimizer, accumulation and GPU are certain: 128 of 350 rows collected first.
Left out: 84 for the model, 67 compiled or fused by TorchScript, 16 for the optimizer, 15 channels last, 15 for the
precision, 12 for the accumulation, 8 with weights in 16 bits, 4 with checkpointing, 1 for the GPU. Of those found last
(`later_steps.csv`, which says what was left out) all judge.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import yaml

from studies.accuracy.rows import read_rows

FOLDER = Path(__file__).parent
_BY_NAME = (
    "cs336-gaoyue",
    "cs336-yyin",
    "exp-llm",
    "gb300-ddp",
    "nanogpt-readme",
    "rtxpro6000-ddp",
    "summerquest-chen",
    "summerquest-jin",
    "summerquest-li",
    "summerquest-ma",
    "summerquest-wang",
    "summerquest-wu",
    "summerquest-xu",
)
_FILES = ("steps.csv", "plain_steps.csv")
_LATER = "later_steps.csv"


@dataclass(frozen=True, slots=True)
class Step:
    """One published step.

    Attributes:
        source: key of `sources.yaml`.
        gpu: in the table of GPUs.
        model: as `shapes` builds it.
        precision: `fp32`, `tf32` or `amp`.
        batch_size: samples of one forward and backward.
        length: tokens of a sequence; 0 of images.
        fused_attention: whether attention is one kernel.
        optimizer: as `--optimizer` takes it.
        accumulation: forwards and backwards before the optimizer.
        seconds: of the whole step.
        published: the figure as it stands at the source.
        checkpointed: whether forward is computed again in backward, layer by layer.
        later: whether it was found after everything was fitted and settled.
    """

    source: str
    gpu: str
    model: str
    precision: str
    batch_size: int
    length: int
    fused_attention: bool
    optimizer: str
    accumulation: int
    seconds: float
    published: str
    checkpointed: bool = False
    later: bool = False

    @property
    def fused(self) -> bool:
        """Whether its kernels were fused by hand: NVIDIA's BERT has norms, activations and optimizer of one each."""
        return self.source == "lambda" and self.model.startswith("bert")

    @property
    def fitted(self) -> bool:
        """Whether it is of the first half, on which constants may be fitted.

        The halves are drawn by a hash of the source: the repository, and in it the machine that was measured, for one
        repository has half of all rows, from fourteen machines. Sources of plain transformers, which came later, are
        drawn by name: of the list in alphabetical order each second one is judged. What was found last is judged.
        """
        if self.later:
            return False
        if self.source in _BY_NAME:
            return _BY_NAME.index(self.source) % 2 == 0
        digest = hashlib.sha256(f"{self.source}/{self.gpu}".encode()).hexdigest()
        return int(digest, 16) % 2 == 0


def steps() -> list[Step]:
    """Return every row, in the file's order."""
    return [
        Step(
            row["source"],
            row["gpu"],
            row["model"],
            row["precision"],
            int(row["batch_size"]),
            int(row["sequence_length"] or 0),
            row["fused_attention"] == "yes",
            row["optimizer"],
            int(row["accumulation"]),
            float(row["step_ms"]) / 1e3,
            row["as_published"],
            row["checkpointed"] == "yes",
            file == _LATER,
        )
        for file in (*_FILES, _LATER)
        for row in ({"checkpointed": ""} | each for each in read_rows(FOLDER / file))
    ]


def sources() -> dict[str, dict[str, object]]:
    """Return what `sources.yaml` says of each source."""
    found: dict[str, dict[str, object]] = yaml.safe_load((FOLDER / "sources.yaml").read_text(encoding="utf-8"))
    return found
