"""The exceptions of ddpexec: each is an `InputError`, so that the command line prints it and exits with 2.

`RuntimeError` is among the bases because that is what torch's DDP raises in the same situations::

    InputError, RuntimeError
    └── ExecutionError
        ├── OptionError            constructor options that contradict each other, or do not apply (a ValueError too)
        ├── ModelMismatchError     ranks with different models or plans
        ├── ReadyTwiceError        a parameter's gradient came twice in one backward
        ├── NeverReadyError        a parameter's gradient never came
        └── LostRankError          a collective failed: a rank died, or is too slow for the group's timeout
"""

from __future__ import annotations

from ddpsim.common.errors import InputError


class ExecutionError(InputError, RuntimeError):
    """Anything the executor refuses or cannot finish."""


class OptionError(ExecutionError, ValueError):
    """Options that contradict each other, or do not apply here."""


class ModelMismatchError(ExecutionError):
    """Ranks that do not hold the same model, or the same plan."""


class ReadyTwiceError(ExecutionError):
    """A parameter's gradient came twice in one backward; the message is whole, as torch's is."""

    whole = True


class NeverReadyError(ExecutionError):
    """A parameter's gradient never came, so that a bucket was never reduced; the message is whole, as torch's is."""

    whole = True


class LostRankError(ExecutionError):
    """A collective failed: another rank died, raised, or is slower than the group's timeout.

    Args:
        message, place, remedy: as of any `InputError`.
        speaker: the rank that tells of it where several find out; None: each does, for none knows who is left.
    """

    def __init__(
        self, message: str, *, place: str | None = None, remedy: str | None = None, speaker: int | None = None
    ) -> None:
        super().__init__(message, place=place, remedy=remedy)
        self.speaker = speaker
