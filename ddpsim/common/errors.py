"""The exceptions of ddpsim.

Everything a user can cause is an `InputError`; the command line prints it in one message and exits with 2::

    DdpsimError
    └── InputError                 bad input: what is wrong, where, and what to do
        ├── UnknownNameError       no such machine, model, workload or link; carries the nearest names
        ├── UnitError              a bare number, an unknown unit, a quantity out of range
        ├── TopologyError          a graph that cannot be built or used
        ├── WorkloadError          a workload that cannot be read or contradicts itself
        ├── PlanError              a bucket plan that does not fit its model
        ├── TraceError             a trace that cannot be read
        └── CalibrationError       a measured table or a calibration that cannot be used
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar, NoReturn

_LONGEST_PLACE, _LONGEST_MESSAGE, _LONGEST_REMEDY = 250, 450, 290
"""Characters; with what joins them, an error says at most 1,000, but for the lines of a file's problems."""
_MOST_PROBLEMS = 1000
"""Problems of one file that are listed; chosen by hand, more than anybody writes."""
_MOST_NAMES = 20
"""Known names that are listed; of more, the first."""


def shorten(text: str, most: int) -> str:
    """Return `text`, with its middle left out where it has more than `most` characters.

    >>> shorten("9" * 400, 40)
    '9999999 ... (400 characters) ... 9999999'
    """
    if len(text) <= most:
        return text
    left_out = f" ... ({len(text)} characters) ... "
    kept = most - len(left_out)
    return f"{text[: kept // 2]}{left_out}{text[len(text) - (kept - kept // 2) :]}"


def list_few(names: Sequence[str], most: int) -> str:
    """Return the first `most` of some names and how many more there are.

    >>> list_few(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def join_problems(problems: Sequence[str]) -> str:
    """Return the problems of one file as a message: alone on its line, several on a line each."""
    if len(problems) == 1:
        return problems[0]
    lines = [f"\n  {shorten(problem, _LONGEST_MESSAGE // 2)}" for problem in problems[:_MOST_PROBLEMS]]
    return "".join(lines) + (f"\n  and {len(problems) - len(lines)} more" if len(lines) < len(problems) else "")


class DdpsimError(Exception):
    """Base of every exception this package raises on purpose."""


class InputError(DdpsimError):
    """Bad input, with the place it stands in and the remedy.

    A parameter is named as Python has it, in a sentence between backticks, `nodes` or `nodes=4`; the command line says
    `--nodes` instead.

    Args:
        message: what is wrong, with the offending value in it.
        place: where it stands: `cluster.yaml: nodes.0.count`, `row 7, column time_us`, `nodes`.
        remedy: what to write instead, as an imperative.

    Attributes:
        whole: message and remedy are printed to their last character; without, of long ones their ends.
    """

    whole: ClassVar[bool] = False

    def __init__(self, message: str, *, place: str | None = None, remedy: str | None = None) -> None:
        self.message, self.place, self.remedy = message, place, remedy
        super().__init__(message)

    def __str__(self) -> str:
        """Return what the command line prints; a part that is too long, whatever the file held, loses its middle."""
        whole = self.whole or self.message.startswith("\n  ")  # as `join_problems` has it, each line short by itself
        text = self.message if whole else shorten(self.message, _LONGEST_MESSAGE)
        text = f"{shorten(self.place, _LONGEST_PLACE)}: {text}" if self.place else text
        if not self.remedy:
            return text
        return f"{text}; {self.remedy if self.whole else shorten(self.remedy, _LONGEST_REMEDY)}"

    def at(self, place: str) -> NoReturn:
        """Raise this error again with `place` put before its own place."""
        inner = f"{place}: {self.place}" if self.place else place
        raise type(self)(self.message, place=inner, remedy=self.remedy) from self


class UnknownNameError(InputError):
    """A name that is not among the known ones."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str], *, place: str | None = None) -> UnknownNameError:
        """Build the error for `name`, naming the nearest of `known`.

        >>> print(UnknownNameError.among("machine", "dgx-1", ["dgx-1v", "dgx-a100", "loopback"]))
        unknown machine 'dgx-1'; did you mean dgx-1v, dgx-a100?
        """
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        remedy = f"did you mean {', '.join(near)}?" if near else f"known: {list_few(names, _MOST_NAMES)}"
        return cls(f"unknown {kind} {name!r}", place=place, remedy=remedy)


class UnitError(InputError):
    """Raised for a quantity that has no unit, an unknown one, or is out of range."""


class TopologyError(InputError):
    """A topology that cannot be built or used."""


class WorkloadError(InputError):
    """A workload that cannot be read or contradicts itself."""


class PlanError(InputError):
    """A bucket plan that does not fit its model."""


class TraceError(InputError):
    """A trace that cannot be read."""


class CalibrationError(InputError):
    """A measured table or a calibration that cannot be used."""
