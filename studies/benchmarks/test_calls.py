from __future__ import annotations

import pytest

pytest.importorskip("torch")

from studies.benchmarks.calls import COUNTED, PARAMETERS, counted
from tests.ddpexec.groups import ranks


@pytest.mark.parametrize(
    ("scheme", "most"),
    [("DistributedDataParallel", 6), ("ddp", 6), ("zero1", 15), ("naive", 15), ("priority:1KiB", 20)],
)
def test_a_gradient_costs_the_thread_that_trains_few_calls_of_our_code(scheme: str, most: int) -> None:
    for calls in ranks.run_own(2, counted, scheme):
        assert 1 < calls.total() / COUNTED / PARAMETERS <= most, calls.most_common(10)
