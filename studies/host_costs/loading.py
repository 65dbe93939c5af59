"""Steps that wait for torch's own `DataLoader`, beside predictions' rule: `python -m studies.host_costs.loading`.

Samples and steps sleep, so that a machine that does other work too tells as much.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import fmean

import torch
from torch.utils.data import DataLoader, Dataset

from ddpsim.common.options.input_stage import InputStage, Loader
from studies.command import parser

CASES = ((0.05, 0, 0.1), (0.05, 1, 0.1), (0.2, 1, 0.1), (0.2, 4, 0.1), (0.4, 4, 0.02), (0.3, 2, 0.2))
"""Seconds in which a process loads a batch, processes, seconds of a step."""
STEPS, SETTLED = 40, 16


class Sleeping(Dataset[torch.Tensor]):
    """Batches each of which takes so many seconds."""

    def __init__(self, load_s: float) -> None:
        self.load_s = load_s

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.load_s)
        return torch.zeros(1)


def measured_s(load_s: float, workers: int, step_s: float) -> float:
    """Return the mean period of a loop over a real loader, once settled."""
    moments = []
    for _ in DataLoader(Sleeping(load_s), batch_size=None, num_workers=workers):
        moments.append(time.perf_counter())
        time.sleep(step_s)
    return fmean(later - earlier for earlier, later in zip(moments[SETTLED:], moments[SETTLED + 1 :], strict=False))


def predicted_s(load_s: float, workers: int, step_s: float) -> float:
    """Return the same by the rule."""
    loader, now_s, moments = Loader(InputStage(load_s=load_s, workers=workers)), 0.0, []
    for _ in range(STEPS):
        moments.append(loader.take(now_s))
        now_s = moments[-1] + step_s
    return (moments[-1] - moments[SETTLED]) / (STEPS - 1 - SETTLED)


def rows() -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| a batch takes | processes | a step takes | period, torch's loader | period, the rule |"
    yield "|--:|--:|--:|--:|--:|"
    for load_s, workers, step_s in CASES:
        real, ours = measured_s(load_s, workers, step_s), predicted_s(load_s, workers, step_s)
        cells = (
            f"{load_s * 1e3:.0f} ms",
            workers,
            f"{step_s * 1e3:.0f} ms",
            f"{real * 1e3:.1f} ms",
            f"{ours * 1e3:.1f} ms",
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    parser(__doc__).parse_args()
    print("\n".join(rows()))
