from __future__ import annotations

import numpy as np
import pytest

from ddpsim.collectives import schedules as made
from ddpsim.common.operation import Operation
from tests.ddpsim.collectives import closed_forms
from tests.ddpsim.collectives.closed_forms import count_sent_chunks
from tests.ddpsim.collectives.test_schedules import carried_out_late, depth

RANKS = [2, 3, 5, 8]


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("ranks", RANKS)
def test_each_rank_ends_with_the_sum_of_its_part(ranks: int, segments: int) -> None:
    schedule = made.scattering_ring(ranks, segments)
    values = np.random.default_rng(1).integers(0, 1000, (ranks, ranks * segments))
    found, wanted = carried_out_late(schedule, values, 1), values.sum(axis=0)
    for rank in range(ranks):
        own = slice(rank * segments, (rank + 1) * segments)
        np.testing.assert_array_equal(found[rank, own], wanted[own])


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_ends_with_all_parts(ranks: int, segments: int) -> None:
    schedule = made.gathering_ring(ranks, segments)
    parts = np.random.default_rng(2).integers(1, 1000, ranks * segments)
    values = np.zeros((ranks, ranks * segments), int)
    for rank in range(ranks):
        values[rank, rank * segments : (rank + 1) * segments] = parts[rank * segments : (rank + 1) * segments]
    np.testing.assert_array_equal(carried_out_late(schedule, values, 2), np.broadcast_to(parts, values.shape))


@pytest.mark.parametrize("ranks", RANKS)
def test_chains_end_with_the_roots_message_everywhere_and_the_sum_at_the_root(ranks: int) -> None:
    values = np.random.default_rng(3).integers(0, 1000, (ranks, 4))
    sent = carried_out_late(made.chain(ranks, 4, reduce=False), values, 3)
    np.testing.assert_array_equal(sent, np.broadcast_to(values[0], values.shape))
    np.testing.assert_array_equal(carried_out_late(made.chain(ranks, 4, reduce=True), values, 3)[0], values.sum(axis=0))


@pytest.mark.parametrize("operation", [o for o in Operation if o is not Operation.ALLREDUCE])
@pytest.mark.parametrize("ranks", RANKS)
def test_schedules_have_the_steps_and_bytes_of_their_operation(ranks: int, operation: Operation) -> None:
    schedule = made.build_ring(operation, ranks)
    assert depth(schedule) == operation.steps(ranks)
    assert max(count_sent_chunks(schedule)) / schedule.chunks == pytest.approx(operation.sent(ranks))


@pytest.mark.parametrize("ranks", RANKS)
def test_closed_forms_count_the_steps_and_bytes_of_their_schedules(ranks: int) -> None:
    alpha, beta, size, pieces = 1.0, 1e-3, 600.0, 5
    half = made.gathering_ring(ranks)
    part = size / half.chunks
    assert closed_forms.half_ring_s(ranks, size, alpha, beta) == pytest.approx(depth(half) * (alpha + part * beta))
    # The last piece leaves the root when all others have, and then takes every hop.
    piece_s = size / pieces * beta
    assert closed_forms.chain_s(ranks, pieces, size, alpha, beta) == pytest.approx(
        pieces * piece_s + alpha + (depth(made.chain(ranks, pieces, reduce=False)) - 1) * (alpha + piece_s)
    )
