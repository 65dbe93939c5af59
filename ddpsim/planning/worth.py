"""Whether to change a job for something faster: one rule for buckets, schemes and searches.

The default stays unless the whole band of the gain is above zero and its middle above 1 %. A choice that is expected to
gain 1 % or more and is not advised is worth one trial run. On sweeps that nobody tuned to, bolder rules lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddpsim.prediction.prediction import Band

WORTH_IT = 0.01
"""Gain, a share of the step, above which a change is advised."""

LIST_MORE = 0.02
"""Share of the step by which a list of caps must beat the best single cap; chosen by hand: a list fits one model."""

NO_GAIN = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Trial:
    """A choice worth one trial run: expected to gain 1 % or more, but not surely.

    Attributes:
        torch: the constructor call.
        gain, gain_low, gain_high: share of the step, with its band.
        name: what to try where the call does not say it, as a scheme; empty is what the call says of buckets.
    """

    torch: str
    gain: float
    gain_low: float
    gain_high: float
    name: str = ""

    def __str__(self) -> str:
        what = self.name or arguments_of(self.torch)
        return f"worth a try: {what}, {format_gain(self.gain, self.gain_low, self.gain_high, 'shorter step expected ')}"

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"torch": self.torch, "gain": self.gain, "gain_low": self.gain_low, "gain_high": self.gain_high}


Choice = TypeVar("Choice")


def decide(choices: Sequence[tuple[Choice, Band]]) -> tuple[tuple[Choice, Band] | None, tuple[Choice, Band] | None]:
    """Return which of several choices is advised, and which is worth one trial run, by their gains over the default.

    None is advised where the default stays. A trial is of a choice that is expected to gain more than the advised one.
    """
    by_gain = sorted(choices, key=lambda each: -each[1][0])
    advised = next((each for each in by_gain if is_advised(each[1])), None)
    trial = next((each for each in by_gain if each[1][0] >= WORTH_IT), None)
    return advised, None if trial is advised else trial


def is_advised(gain: Band) -> bool:
    """Whether a change of this gain is advised."""
    middle, low, _ = gain
    return middle > WORTH_IT and low > 0


def may_gain(high: float) -> bool:
    """Whether a gain whose band ends at `high` may be worth it: the rule where a trial costs a few training steps."""
    return high >= WORTH_IT


def is_list_worth_it(list_s: float, one_cap_s: float, default_s: float) -> bool:
    """Whether a list of caps saves so much more of the default's step than the best single cap as to be considered."""
    return one_cap_s - list_s >= LIST_MORE * default_s


def arguments_of(call: str) -> str:
    """Return the arguments of a constructor call after its model.

    >>> arguments_of("DistributedDataParallel(model, bucket_cap_mb=100)")
    'bucket_cap_mb=100'
    """
    return call.partition("(model, ")[2].removesuffix(")") or "torch's default"


def format_gain(gain: float, low: float, high: float, kind: str = "") -> str:
    """Return a gain with its band, from low to high.

    >>> format_gain(0.035, -0.013, 0.06, "expected ")
    '3.5 % expected (-1.3 to 6.0)'
    """
    return f"{100 * gain:.1f} % {kind}({100 * low:.1f} to {100 * high:.1f})"
