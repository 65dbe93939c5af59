"""Whether this machine's processors do other work during a measurement, which comes out slower for it.

Other work is what /proc/stat counts of the machine's processors beyond what the processes of the measurement took:
this one, the ranks and loaders beside it, and those that started them, as far as they run the same Python.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BUSY_SHARE = 0.2
"""Share of a machine's processors from which on other work is reported; chosen by hand: of two processors 0.4, more
than the kernel's own work for the network of two ranks."""

_COUNTED = (0, 1, 2, 7)
"""Of the first line of /proc/stat: user, nice, system, and what the host of a virtual machine gave to others.
Interrupts are left out: they are the network's, of the measurement itself."""

_TICKS = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0
"""Of /proc, in a second."""


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """What the processors of a machine did in a stretch of time, in processor seconds.

    Attributes:
        machine: its name.
        processors: how many it has.
        job: the process that started the measurement there; ranks with one job count each other's work.
        wall_s: how long the stretch was.
        all_s: of everything.
        own_s: of the processes of the job.
    """

    machine: str
    processors: int
    job: int
    wall_s: float
    all_s: float
    own_s: float


@dataclass(frozen=True, slots=True)
class OtherWork:
    """How many processors of a machine were busy with other work, in the mean, and how many it has."""

    busy: float
    processors: int

    @property
    def disturbs(self) -> bool:
        """Whether that is enough to make a measurement slower."""
        return self.busy >= BUSY_SHARE * self.processors

    @classmethod
    def read(cls, document: Mapping[str, object]) -> OtherWork | None:
        """Return the other work in a document, as `document()` writes it; None where there is none."""
        busy, processors = document.get("other_work_processors"), document.get("processors")
        known = isinstance(busy, int | float) and isinstance(processors, int) and processors > 0
        return cls(float(busy), processors) if known else None  # type: ignore[arg-type]

    def document(self) -> dict[str, object]:
        """Return it as keys of a document."""
        return {"other_work_processors": round(self.busy, 3), "processors": self.processors}

    def notes(self) -> list[str]:
        """Return the note for whoever measured; none where it disturbs nothing."""
        return [self.text()] if self.disturbs else []

    def text(self) -> str:
        """Return it in a sentence."""
        return (
            f"the machine was busy: other work took {self.busy:.1f} of its {self.processors} processors meanwhile, so "
            "that what was measured is slower than on a quiet one; measure again when it has ended"
        )


class ProcessorClock:
    """Counts what the processors of this machine do from now on.

    Args:
        job: the process whose work, and that of those below it, is the measurement's own; None is that which started
            this one, the topmost that runs the same Python.
        proc: the /proc file system.
    """

    def __init__(self, job: int | None = None, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._job = self._topmost(os.getpid()) if job is None else job
        self._began = self._now()

    def since(self) -> ProcessorUse | None:
        """Return what they did since; None on a system without /proc."""
        if self._began is None or (now := self._now()) is None:
            return None
        wall_s, all_s, own_s = (after - before for before, after in zip(self._began, now, strict=True))
        return ProcessorUse(socket.gethostname(), os.cpu_count() or 1, self._job, wall_s, all_s, own_s)

    def _now(self) -> tuple[float, float, float] | None:
        try:
            fields = (self._proc / "stat").read_text().splitlines()[0].split()[1:]
            ticks = sum(int(fields[place]) for place in _COUNTED)
            return time.monotonic(), ticks / _TICKS, self._own_ticks() / _TICKS
        except (OSError, ValueError, IndexError):
            return None

    def _stat(self, pid: int | str) -> list[str]:
        """Return the fields of a process behind its name: state, parent, ...; its processor time from the 12th on."""
        return (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()

    def _topmost(self, pid: int) -> int:
        try:
            # Ranks are started by launchers, which run the same Python: work of another is other work.
            python = os.readlink(self._proc / str(pid) / "exe")
            while (above := int(self._stat(pid)[1])) > 1 and os.readlink(self._proc / str(above) / "exe") == python:
                pid = above
        except (OSError, ValueError, IndexError):
            pass
        return pid

    def _own_ticks(self) -> int:
        """Return the processor time of the job's process and of all below it, those that have ended included."""
        ticks: dict[int, int] = {}
        children: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            if name.isdigit():
                try:
                    fields = self._stat(name)
                except OSError:  # it has ended meanwhile
                    continue
                ticks[int(name)] = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append(int(name))
        total, pending = 0, [self._job]
        while pending:
            pid = pending.pop()
            total += ticks.get(pid, 0)
            pending += children.get(pid, ())
        return total


def find_other_work(uses: Sequence[ProcessorUse | None]) -> OtherWork | None:
    """Return the other work on the machine that had most of it; None where no rank could count it.

    Args:
        uses: by rank, of about the same stretch of time.
    """
    machines: dict[str, list[ProcessorUse]] = {}
    for use in uses:
        if use is not None and use.wall_s > 0:
            machines.setdefault(use.machine, []).append(use)
    found = [_on_one(each) for each in machines.values()]
    return max(found, key=lambda other: other.busy / other.processors, default=None)


def _on_one(uses: Sequence[ProcessorUse]) -> OtherWork:
    longest = max(uses, key=lambda use: use.wall_s)
    own_s = {use.job: max(each.own_s for each in uses if each.job == use.job) for use in uses}
    return OtherWork(max(0.0, longest.all_s - sum(own_s.values())) / longest.wall_s, longest.processors)
