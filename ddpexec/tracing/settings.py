"""How much of a training loop is traced, and how much of it is kept."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ddpexec.errors import OptionError

_REMEDY = 'give a whole number, e.g. `with ddpexec.trace("out", every=1):`'


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Settings of a trace, all counted in steps: a step ends with the optimizer's, however many backwards it has.

    Attributes:
        every: each how-manieth step is stamped; of the others the start alone. 1 for a loop of few steps.
        warm_up: steps at the beginning that are not stamped, as buckets are rebuilt in them.
        steps_per_file: stamped steps in one file of a rank.
        files: how many files of a rank are kept, the one in the making included; older ones are removed.
        interval: steps that one line of the summary tells of.
    """

    every: int = 20
    warm_up: int = 3
    steps_per_file: int = 50
    files: int = 4
    interval: int = 100

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), 0 if each.name == "warm_up" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                what = f"`{each.name}={value!r}` is not a number of {each.name if each.name == 'files' else 'steps'}"
                raise OptionError(f"{what} from {least} on", place="ddpexec.trace", remedy=_REMEDY)

    def is_stamped(self, step: int) -> bool:
        """Return whether the step of that number, from 0 on, is stamped."""
        return step >= self.warm_up and (step - self.warm_up) % self.every == 0
