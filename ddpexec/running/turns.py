"""Runs that take turns with one process in one launch, in short blocks, so that a machine that drifts meets all alike.

One round is A B C D D C B A: A is one process, without communication, the others are the runs. Each has the same mean
place in its round, so that a speed that changes evenly over it changes no ratio of one to another. What a round tells
of a run is the ratio of its step to one process's step of that round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ddpexec.errors import OptionError
from ddpexec.running.run import Run, Turn
from ddpexec.running.settings import RunSettings
from ddpexec.timing.stopwatch import gather
from ddpsim.common.options.exclusions import refuse_excluded

STEPS = 3
"""Optimizer steps of a block that count, after one that does not: blocks as short as half a second at 100 ms a step,
since a shared machine's speed changes within seconds; chosen by hand."""


def check_turns(settings: RunSettings, *, step: bool, pipeline: bool) -> None:
    """Raise OptionError for what cannot take turns in one process."""
    refuse_excluded(
        settings, "run --interleave", OptionError, beside={"interleave": True, "step": step, "pipeline": pipeline}
    )


def train_in_turns(runs: Sequence[Run], progress: Callable[[int, int, float], None]) -> list[list[Turn]]:
    """Train the runs in rounds until each has its iterations; return each run's turns, the same on every rank.

    A step of a run is that of its slowest rank, one process's step the mean over the ranks, which all compute then.

    Raises:
        LostRankError: another rank died, raised or did not come within the timeout.
    """
    settings = runs[0].settings
    rounds = max(2, math.ceil(settings.iterations / settings.accumulate / (2 * STEPS)))
    blocks: list[Run | None] = [None, *runs]
    order = [*blocks, *reversed(blocks)]
    for run in runs:
        run.warm_up()
    runs[0].train_block(1, local=True)
    seconds: list[list[float]] = []
    for number in range(rounds):
        taken: dict[Run | None, list[float]] = {block: [] for block in blocks}
        for place, block in enumerate(order):
            block_s = runs[0].train_block(STEPS, local=True) if block is None else block.train_block(STEPS)
            taken[block].append(block_s)
            progress(number * len(order) + place + 1, rounds * len(order), block_s)
        seconds.append([sum(each) / len(each) for each in taken.values()])
    by_rank = gather([each for row in seconds for each in row], runs[0].communicator)
    columns = [list(each) for each in zip(*by_rank, strict=True)]
    rows = [columns[begin : begin + len(blocks)] for begin in range(0, len(columns), len(blocks))]
    return [[Turn(sum(local) / len(local), max(steps[place])) for local, *steps in rows] for place in range(len(runs))]
