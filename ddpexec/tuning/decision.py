"""A decision of the tuner as data: what was tried, predicted, measured and kept, what it cost; and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpexec.tuning.blocks import Measured
from ddpexec.tuning.ranking import Candidate, CapRanking
from ddpsim.bucketing import BucketCaps
from ddpsim.explaining.tuned import Tried, Tuning, TuningRound, write_tuning


def call_of(caps: BucketCaps) -> str:
    """Return the line that gives torch's DDP these caps."""
    arguments = "".join(f", {name}={value}" for name, value in caps.torch_arguments().items())
    return f"DistributedDataParallel(model{arguments})"


@dataclass(slots=True)
class RoundDecision:
    """One round of tuning, from its first step to what was kept.

    Attributes:
        first_step, steps: of the round, counted from the tuner's first.
        present: caps at its beginning.
        kept: caps at its end.
        reason: why those were kept, in words.
        step_s: usual step with the kept plan; None where no step was measured.
        lost_s: what the round's steps took beyond as many of the present plan's, the tuner's own time included.
        own_s: the tuner's own time between steps, of rank 0.
    """

    first_step: int
    present: BucketCaps
    kept: BucketCaps
    reason: str = "not decided yet"
    steps: int = 0
    step_s: float | None = None
    present_s: float | None = None
    lost_s: float = 0.0
    own_s: float = 0.0
    probed: int = 0
    ranking: CapRanking | None = None
    tried: Sequence[Candidate] = ()
    measured: Sequence[Measured] = field(default_factory=tuple)

    def line(self) -> str:
        """Return it as one line of log."""
        step = "" if self.step_s is None else f", {self.step_s * 1e3:.4g} ms a step"
        share = ""
        if self.present_s and self.steps:
            share = f" ({self.lost_s / (self.steps * self.present_s):.2%} of those steps)"
        saved = "" if self.kept == self.present else f" instead of {call_of(self.present)}"
        return (
            f"ddpexec.tuned: {call_of(self.kept)}{saved}{step}: {self.reason}; decided in {self.steps} steps, "
            f"which cost {self.lost_s * 1e3:.3g} ms{share}"
        )

    def told(self) -> TuningRound:
        """Return it as the page has it."""
        ranking = self.ranking
        tried = {each.caps: measured for each, measured in zip(self.tried, self.measured[1:], strict=False)}
        rows = [] if ranking is None else [_row(each, tried.get(each.caps)) for each in ranking.candidates]
        return TuningRound(
            first_step=self.first_step,
            steps=self.steps,
            present=call_of(self.present),
            kept=call_of(self.kept),
            reason=self.reason,
            present_step_s=self.present_s,
            kept_step_s=self.step_s,
            predicted_step_s=None if ranking is None else ranking.step_s,
            latency_s=None if ranking is None else ranking.wire.latency_s,
            bandwidth=None if ranking is None or ranking.wire.per_byte_s <= 0 else 1 / ranking.wire.per_byte_s,
            probed=self.probed,
            lost_s=self.lost_s,
            own_s=self.own_s,
            plans=rows,
        )


def _row(candidate: Candidate, measured: Measured | None) -> Tried:
    return Tried(
        call=call_of(candidate.caps),
        buckets=len(candidate.groups),
        predicted_step_s=candidate.step_s,
        predicted_gain=candidate.gain,
        predicted_gain_low=candidate.gain_low,
        predicted_gain_high=candidate.gain_high,
        measured_step_s=None if measured is None else measured.step_s,
        measured_steps=0 if measured is None else measured.steps,
        saved_s=None if measured is None else measured.saved_s,
        saved_low_s=None if measured is None else measured.saved_low_s,
    )


def write_page(out: Path, decisions: Sequence[RoundDecision]) -> None:
    """Write what was decided into the folder, whole.

    Raises:
        InputError: it cannot be written.
    """
    write_tuning(Tuning(rounds=[each.told() for each in decisions]), out)
