"""A sweep of thousands of points: how busy it keeps the processors, what Ctrl-C loses, how soon it goes on.

`python -m studies.benchmarks.sweeping [--points 10000] [--stop-after 60]` sweeps node counts and caps in two processes,
stops the sweep once and goes on. A process is busy while it is in a point; its share is of the time from the first
point's start to the last one's end. Whoever else computes on the machine makes points longer, and leaves that share
as it is.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ddpsim.bucketing import BucketCaps
from ddpsim.common.workers.points import Points
from ddpsim.common.workers.requests import Workers
from ddpsim.planning.sweep import SweptJob, list_swept, swept_row
from ddpsim.prediction.answers import Answers
from ddpsim.simulation.job import Job
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload

BUSY, RESUMED_S = 0.9, 2.0
"""What is to be reached: share of busy time at least, seconds to the first new point at most."""

NODES = 100
COUNT = 2
"""Processes."""


@dataclass(frozen=True)
class Timed:
    """Who computed a point, and when."""

    process: int
    start_s: float
    end_s: float
    lines: list[str]


def timed(job: Job, swept: SweptJob) -> Timed:
    """Compute one point."""
    start_s, answers = time.monotonic(), Answers()
    swept_row(job, answers, swept, whole=True)
    return Timed(os.getpid(), start_s, time.monotonic(), answers.lines)


def busy(points: int, workload: str, machine: str) -> dict[int, float]:
    """Return the share of its time that each process is in a point."""
    job = Job(load_workload(workload), load_topology(machine))
    asked = list_swept(*grid(points))
    with Workers(workers=COUNT).crew(len(asked)) as crew:
        found = [timed for _, timed in Points(partial(timed, job), asked, crew)]
    span_s = max(each.end_s for each in found) - min(each.start_s for each in found)
    shares: dict[int, float] = {}
    for each in found:
        shares[each.process] = shares.get(each.process, 0.0) + (each.end_s - each.start_s) / span_s
    return shares


def grid(points: int) -> tuple[list[int | None], list[BucketCaps]]:
    """Return node counts and caps that are so many points."""
    return list(range(1, NODES + 1)), [BucketCaps(bucket_cap_mb=cap) for cap in caps(points)]


def caps(points: int) -> list[float]:
    """Return the caps in MiB."""
    return [1 + number / 2 for number in range(points // NODES)]


def command(points: int, workload: str, machine: str, out: Path) -> list[str]:
    """Return the sweep on the command line."""
    given = ("--nodes", ",".join(map(str, range(1, NODES + 1))), "--bucket-cap-mb", ",".join(map(str, caps(points))))
    words = ("sweep", "--workload", workload, "--topology", machine, *given, "--workers", str(COUNT), "-o", str(out))
    return [sys.executable, "-m", "ddpsim", *words]


def stopped(words: Sequence[str], journal: Path, after_s: float) -> tuple[int, int]:
    """Stop the sweep as Ctrl-C does, and return the lines in its journal at that moment and at the end."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    time.sleep(after_s)
    before = lines(journal)
    os.killpg(process.pid, signal.SIGINT)
    process.wait()
    return before, lines(journal)


def resumed_s(words: Sequence[str], journal: Path) -> float:
    """Return the seconds from the command to its first new point, and stop it."""
    before, start_s = journal.stat().st_size, time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while journal.stat().st_size == before and process.poll() is None:
        time.sleep(0.005)
    seconds = time.monotonic() - start_s
    os.killpg(process.pid, signal.SIGINT)
    process.wait()
    return seconds


def lines(path: Path) -> int:
    """Return how many lines a file has."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main() -> None:
    """Print what is reached beside what is to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--busy-points", type=int, default=None, help="of the first part [all]")
    parser.add_argument("--stop-after", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--topology", default="dgx-1v")
    given = parser.parse_args()
    shares = busy(given.busy_points or given.points, given.workload, given.topology)
    told = ", ".join(f"{share:.1%}" for share in shares.values())
    print(f"busy: {told} of each process (at least {BUSY:.0%})", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sweep.jsonl"
        words, journal = command(given.points, given.workload, given.topology, out), Path(f"{out}.partial")
        before, after = stopped(words, journal, given.stop_after)
        print(f"Ctrl-C: {before} points in the journal then, {after} at the end (none of those done is lost)")
        seconds = resumed_s(words, journal)
        print(f"goes on: {seconds:.2f} s to the first new point after {after} (at most {RESUMED_S:g} s)")
    missed = min(shares.values()) < BUSY or after < before or seconds > RESUMED_S
    sys.exit("a bound is missed" if missed else 0)


if __name__ == "__main__":
    main()
