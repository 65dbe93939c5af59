"""Whole-process speed of the command line: `make bench` prints each time beside its bound, and how cost grows.

Times are the best of several runs, from the start of the process to its end, as a user waits for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from studies.command import parser

LARGE = ("predict", "--workload", "bert-large", "--topology", "dgx-1v", "--bucket-cap-mb", "25")
STEPS = ("allreduce", "--topology", "dgx-1v", "--fidelity", "steps", "-b", "25M", "-e", "25M")
PLAN = (
    *("plan", "--workload", "bert-large", "--workload", "resnet50", "--nodes", "1,2,4,8"),
    *(
        each
        for name in ("p3.8xlarge", "p3.16xlarge", "dgx-1v", "dgx-a100", "dgx-h100")
        for each in ("--topology", name)
    ),
)
CAPS = "1,2,5,8,10,15,20,25,40,60,80,100"


@dataclass(frozen=True)
class Case:
    """A command, and what it may take at most."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    memory_bytes: float | None = None


CASES = (
    Case("ddpsim --help", ("--help",), 0.3),
    Case("predict resnet50, one 8-GPU node", ("predict", "--workload", "resnet50", "--topology", "dgx-1v"), 0.6),
    Case("predict bert-large, 25 MiB, 128 x 8", (*LARGE, "--nodes", "128"), 1.0, 200e6),
    Case("predict bert-large, 25 MiB, 2,048 x 8", (*LARGE, "--nodes", "2048"), 4.0),
    Case(
        "sweep, 12 caps x 4 node counts",
        ("sweep", "--workload", "resnet50", "--topology", "dgx-1v", "--nodes", "1,2,4,8", "--bucket-cap-mb", CAPS),
        3.0,
    ),
    Case("plan, 2 models x 5 machines x 4 node counts", PLAN, 10.0),
    Case("allreduce --fidelity steps, 128 ranks, ring", (*STEPS, "--nodes", "16", "--algorithm", "ring"), 1.0),
    # Its tree has links for every node and pieces of a few KiB: the dearest transfers there are.
    Case("the same on 16 ranks as NCCL picks, a tree", (*STEPS, "--nodes", "2"), 3.0),
    Case("allreduce, 28 sizes, 128 x 8", ("allreduce", "--topology", "dgx-1v", "--nodes", "128"), 1.0),
)


def main() -> None:
    """Print the cases against their bounds, then the growth."""
    missed = 0
    print(f"{'command':45} {'seconds':>8} {'bound':>6} {'peak MB':>8} {'bound':>6}")
    for case in CASES:
        seconds, memory = measure(case.arguments)
        late = seconds > case.seconds or (case.memory_bytes is not None and memory > case.memory_bytes)
        missed += late
        bound = "" if case.memory_bytes is None else f"{case.memory_bytes / 1e6:.0f}"
        mark = "  MISSED" if late else ""
        print(f"{case.name:45} {seconds:8.2f} {case.seconds:6.1f} {memory / 1e6:8.0f} {bound:>6}{mark}", flush=True)
    print("\ngrowth with ranks (bert-large, 25 MiB, dgx-1v)")
    growth([((*LARGE, "--nodes", str(nodes)), f"{8 * nodes:6} ranks") for nodes in (1, 4, 16, 64, 256, 1024)])
    print("\ngrowth with buckets (bert-large, 16 x 8 ranks)")
    smaller = (*LARGE[:-1],)
    growth([((*smaller, cap, "--nodes", "16"), f"cap {cap:>5} MiB") for cap in ("1000", "100", "25", "5", "1", "0")])
    sys.exit(f"{missed} bounds missed" if missed else 0)


def growth(runs: Sequence[tuple[tuple[str, ...], str]]) -> None:
    """Print the time of each run and its factor over the first."""
    first = 0.0
    for arguments, label in runs:
        seconds, _ = measure(arguments, times=2)
        first = first or seconds
        print(f"  {label}  {seconds:6.2f} s  x {seconds / first:.2f}", flush=True)


def measure(arguments: Sequence[str], times: int = 3) -> tuple[float, float]:
    """Return the least wall time and the largest resident bytes of `python -m ddpsim arguments --json`."""
    best, memory = float("inf"), 0.0
    extra = () if "--help" in arguments else ("--json",)
    for _ in range(times):
        started = time.perf_counter()
        usage = run([sys.executable, "-m", "ddpsim", *arguments, *extra])
        best = min(best, time.perf_counter() - started)
        memory = max(memory, usage)
    return best, memory


def run(command: list[str]) -> float:
    """Run `command` with its output thrown away; return its peak resident bytes."""
    process = os.fork()
    if process == 0:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.execv(command[0], command)
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return usage.ru_maxrss * 1024.0


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
