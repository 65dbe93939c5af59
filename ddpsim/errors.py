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
from collections.abc import Iterable
from typing import NoReturn


class DdpsimError(Exception):
    """Base of every exception this package raises on purpose."""


class InputError(DdpsimError):
    """Bad input, with the place it stands in and the remedy.

    Args:
        message: what is wrong, with the offending value in it.
        place: where it stands: `cluster.yaml: nodes.0.count`, `row 7, column time_us`, `--nodes`.
        remedy: what to write instead, as an imperative.
    """

    def __init__(self, message: str, *, place: str | None = None, remedy: str | None = None) -> None:
        self.message, self.place, self.remedy = message, place, remedy
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text}; {self.remedy}" if self.remedy else text

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
        remedy = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}"
        return cls(f"unknown {kind} {name!r}", place=place, remedy=remedy)


class UnitError(InputError):
    """A quantity without a unit, with an unknown one, or out of range."""


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
