from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from ddpexec.groups.process_groups import Communicator
from ddpexec.timing import stopwatch
from ddpexec.timing.stopwatch import measure_last_to_last, median_difference, span_of
from tests.ddpexec.groups import ranks

DEVICE = torch.device("cpu")


def spans_of(rank: int) -> list[float]:
    """Rank 1 comes 0.5 s late; rank 0 takes 0.1 s longer to be done."""

    def collective() -> None:
        dist.barrier()
        time.sleep(0.1 if rank == 0 else 0.0)

    dist.barrier()
    time.sleep(0.5 * rank)
    return measure_last_to_last([span_of(collective, DEVICE)], Communicator([dist.group.WORLD]))


def test_a_collective_lasts_from_its_last_ranks_start_to_its_last_ranks_end() -> None:
    first, second = ranks.run(2, spans_of)
    assert first == second
    assert 0.1 <= first[0] < 0.5


def taking(seconds: list[float]) -> Callable[[], Callable[[], float]]:
    """Return what prepares work that takes these times, one after the other."""
    times: Iterator[float] = iter(seconds)
    return lambda: lambda: next(times)


@pytest.mark.parametrize(("longer", "shorter", "difference"), [("ddp", "plain", 3.0), ("plain", "ddp", 0.0)])
def test_a_difference_is_of_medians_after_two_to_warm_up(
    monkeypatch: pytest.MonkeyPatch, longer: str, shorter: str, difference: float
) -> None:
    monkeypatch.setattr(stopwatch, "seconds_of", lambda work, device: work())
    times = {"ddp": taking([90.0, 80.0, 9.0, 5.0, 4.0]), "plain": taking([1.0, 1.0, 2.0, 7.0, 0.0])}
    assert median_difference(times[longer], times[shorter], DEVICE, repeats=3) == difference
