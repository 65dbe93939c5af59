"""How often a loop has its batch from torch's `DataLoader`, beside what the simulator's rule says.

Run it as `python -m studies.benchmarks.batches`; it wants an idle machine.
"""

from __future__ import annotations

import sys
import time

import torch

from ddpexec.running.batches import Batches
from ddpsim.common.options.input_stage import Loader, input_stage
from studies.command import parser

LOOPS = (
    ("load=90ms", 0.06),
    ("load=100ms,workers=1", 0.2),
    ("load=300ms,workers=2", 0.03),
    ("load=150ms,copy=1MB,pipelined", 0.03),
)
"""Input stages, and the seconds that the loop does something else between two batches."""
BATCHES, LAST = 22, 8
BOUND = 0.15
"""How far the two may be apart."""


def main() -> None:
    """Print both times of each loop; exit with 1 where they are further apart than `BOUND`."""
    parser(__doc__).parse_args()
    worst = 0.0
    for text, step_s in LOOPS:
        found_s, told_s = measured_period(text, step_s), told_period(text, step_s)
        worst = max(worst, abs(found_s / told_s - 1))
        words = f"{text:32} and {step_s * 1e3:3.0f} ms: {found_s * 1e3:5.1f} ms, by the rule {told_s * 1e3:5.1f}"
        print(f"{words} ({found_s / told_s - 1:+.1%})", flush=True)
    sys.exit(worst > BOUND)


def measured_period(text: str, step_s: float) -> float:
    """Return the mean time between the last batches of a loop that does nothing else for `step_s`."""
    batches, ends = Batches(input_stage(text), torch.device("cpu")), []
    for _ in range(BATCHES):
        batches.take()
        time.sleep(step_s)
        ends.append(time.perf_counter())
    batches.close()
    return (ends[-1] - ends[-1 - LAST]) / LAST


def told_period(text: str, step_s: float) -> float:
    """Return the same of batches that come as the simulator's rule says."""
    loader, ends = Loader(input_stage(text)), [0.0]
    for _ in range(BATCHES):
        ends.append(loader.take(ends[-1]) + step_s)
    return (ends[-1] - ends[-1 - LAST]) / LAST


if __name__ == "__main__":
    main()
