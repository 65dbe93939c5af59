"""`Workers`: the options of a command on who computes its points, and the pool that they ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import current_process
from typing import Annotated

from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Option, Section, check_at_least_one
from ddpsim.common.workers.crew import WorkerPool

MOST = 1024
"""Processes on one machine: more than any has processors; beyond it a cluster shares the points."""

FEW = 4
"""Points from which on a second process is worth its start, where the user states no number."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that share points: processes of this machine, or a cluster's.

    Attributes:
        workers: processes; 1 is this one alone, None as many as it may use processors, where the points are not few.
        scheduler: address of a Dask scheduler, whose workers compute instead.
        cache: journal of answers for this command and later ones; None is one that goes when the command ends well.

    Raises:
        InputError: no number of processes, or both of them.
    """

    workers: Annotated[
        int | None,
        Option("Processes that share the points; 1: this one alone. [a processor each]", "N"),
        Section.COMPUTED,
    ] = None
    scheduler: Annotated[
        str | None,
        Option("Dask scheduler whose workers share the points, e.g. tcp://HOST:8786.", "ADDRESS"),
        Section.COMPUTED,
    ] = None
    cache: Annotated[
        str | None,
        Option("Keep every answer here, and compute none that is here already. [until done, beside -o]", "FILE"),
        Section.COMPUTED,
    ] = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_at_least_one("workers", self.workers, MOST)
        refuse_excluded(self, "workers")

    @contextmanager
    def crew(self, points: int) -> Iterator[WorkerPool | None]:
        """Yield the pool that computes `points` of them; None where this process does it alone.

        Raises:
            WorkersError: a scheduler that cannot be used, as `ddpsim.common.workers.cluster.DaskPool` says.
        """
        crew = self._make_pool(points)
        try:
            yield crew
        finally:
            if crew is not None:
                crew.dismiss()

    def _make_pool(self, points: int) -> WorkerPool | None:
        from ddpsim.common.workers.cluster import DaskPool
        from ddpsim.common.workers.processes import Processes

        if self.scheduler is not None:
            return DaskPool(self.scheduler)
        count = min(points, _processors() if self.workers is None else self.workers)
        # A daemonic process, a worker of another pool, may have no children.
        few = points < FEW and self.workers is None
        return None if few or count < 2 or current_process().daemon else Processes(count)


def _processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
