from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from ddpexec.process_groups import Communicator  # noqa: E402
from ddpexec.stopwatch import last_to_last, span_of  # noqa: E402
from tests.exec.ranks import run  # noqa: E402

DEVICE = torch.device("cpu")


def spans_of(rank: int) -> list[float]:
    """Rank 1 comes 0.5 s late; rank 0 takes 0.1 s longer to be done."""

    def collective() -> None:
        dist.barrier()
        time.sleep(0.1 if rank == 0 else 0.0)

    dist.barrier()
    time.sleep(0.5 * rank)
    return last_to_last([span_of(collective, DEVICE)], Communicator([dist.group.WORLD]))


def test_a_collective_lasts_from_its_last_ranks_start_to_its_last_ranks_end() -> None:
    first, second = run(2, spans_of)
    assert first == second
    assert 0.1 <= first[0] < 0.5
