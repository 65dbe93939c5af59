from __future__ import annotations

import pytest

from ddpsim.common.operation import Operation


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_an_allreduce_is_its_two_halves(ranks: int) -> None:
    halves = (Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
    assert sum(half.steps(ranks) for half in halves) == Operation.ALLREDUCE.steps(ranks)
    assert sum(half.sent(ranks) for half in halves) == pytest.approx(Operation.ALLREDUCE.sent(ranks))


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        # Of nccl-tests' own pages and logs: size, time in us, algbw, busbw, on 8 GPUs.
        ((1073741824, 105301.0, 10.2, 17.84), Operation.ALLREDUCE),
        ((1073741824, 49338.9, 21.76, 19.04), Operation.ALL_GATHER),
    ],
)
def test_bus_bandwidth_is_as_published(line: tuple[int, float, float, float], operation: Operation) -> None:
    size, time_us, algbw, busbw = line
    assert size / time_us / 1e3 == pytest.approx(algbw, rel=2e-3)
    assert size / time_us / 1e3 * operation.sent(8) == pytest.approx(busbw, rel=2e-3)


@pytest.mark.parametrize("name", ["all_reduce", "allreduce", "AllReduce", "all-reduce"])
def test_every_spelling_names_it(name: str) -> None:
    assert Operation.named(name) is Operation.ALLREDUCE
