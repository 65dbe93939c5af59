from __future__ import annotations

import doctest
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives import level_schedules, schedules, trees
from ddpsim.collectives.schedules import TransferSchedule
from ddpsim.collectives.servers import parameter_server
from ddpsim.collectives.trees import double_binary_tree
from tests.ddpsim.collectives import closed_forms
from tests.ddpsim.collectives.closed_forms import count_sent_chunks
from tests.profile import examples


def carried_out(schedule: TransferSchedule, values: np.ndarray, order: Sequence[int] | None = None) -> np.ndarray:
    """Carry out the transfers on `values`, rank by chunk, as they are listed or in an order of their numbers."""
    state = values.copy()
    for number in range(len(schedule.transfers)) if order is None else order:
        transfer = schedule.transfers[number]
        span = slice(transfer.start, transfer.stop)
        if transfer.reduce:
            state[transfer.target, span] += state[transfer.source, span]
        else:
            state[transfer.target, span] = state[transfer.source, span]
    return state


def carried_out_late(schedule: TransferSchedule, values: np.ndarray, seed: int) -> np.ndarray:
    """Carry them out in a random order that keeps `after`, each contribution read when its transfer runs."""
    random, order = np.random.default_rng(seed), list[int]()
    waiting = list(range(len(schedule.transfers)))
    while waiting:
        done = set(order)
        order.append(int(random.choice([n for n in waiting if done.issuperset(schedule.transfers[n].after)])))
        waiting.remove(order[-1])
    return carried_out(schedule, values, order)


def test_a_collective_by_hand_takes_what_its_page_says():
    failed, tried = doctest.testmod(schedules)
    assert (failed, tried > 0) == (0, True)


def random_tree(size: int, seed: int) -> list[int | None]:
    random = np.random.default_rng(seed)
    labels = random.permutation(size)
    parents: list[int | None] = [None] * size
    for place in range(1, size):
        parents[labels[place]] = int(labels[random.integers(place)])
    return parents


def two_level_tree(nodes: int, per_node: int, pieces: int = 2) -> TransferSchedule:
    return level_schedules.two_level_tree([tree.parents for tree in double_binary_tree(nodes)], per_node, pieces)


LEVELS = {4: (2, 2), 6: (3, 2), 8: (4, 2), 12: (2, 3, 2)}
BUILDERS = {
    "ring": lambda p: schedules.ring(p),
    "segmented ring": lambda p: schedules.ring(p, 3),
    "halving-doubling": schedules.halving_doubling,
    "tree": lambda p: trees.tree(random_tree(p, p), 3),
    "gather and broadcast": lambda p: parameter_server(p, [0]),
    "parameter servers": lambda p: parameter_server(p, range(0, p, 3)),
    "two-level tree": lambda p: two_level_tree(p // 2, 2) if p % 2 == 0 and p > 2 else two_level_tree(p, 1),
    "two-level": lambda p: level_schedules.decomposed((2, p // 2) if p % 2 == 0 and p > 2 else (1, p)),
    "levels": lambda p: level_schedules.decomposed(LEVELS.get(p, (p,))),
}


@pytest.mark.parametrize("name", BUILDERS)
@given(ranks=st.integers(2, 12), seed=st.integers(0, 99))
@settings(max_examples=examples(15), deadline=None)
def test_every_rank_ends_with_the_sum(name: str, ranks: int, seed: int) -> None:
    schedule = BUILDERS[name](ranks)
    values = np.random.default_rng(seed).integers(0, 1000, (ranks, schedule.chunks))
    expected = np.broadcast_to(values.sum(axis=0), values.shape)
    np.testing.assert_array_equal(carried_out(schedule, values), expected)
    np.testing.assert_array_equal(carried_out_late(schedule, values, seed), expected)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_halves_of_an_allreduce_leave_each_chunk_summed_on_one_rank_and_then_on_all(ranks: int) -> None:
    values = np.random.default_rng(ranks).integers(0, 1000, (ranks, ranks))
    for whole in (schedules.ring(ranks), schedules.halving_doubling(ranks)):
        summed = carried_out(schedules.half(whole, reduce=True), values)
        assert ((summed == values.sum(axis=0)).sum(axis=0) == 1).all()
        handed_out = carried_out(schedules.half(whole, reduce=False), summed)
        np.testing.assert_array_equal(handed_out, np.broadcast_to(values.sum(axis=0), values.shape))


@pytest.mark.parametrize(("parents", "heads"), [((None,), [0, 1, 2]), ((None, 0, 0, 2), [2, 0])])
def test_switches_that_reduce_give_every_gpu_the_sum(parents: tuple[int | None, ...], heads: list[int]) -> None:
    schedule = trees.in_switch(parents, 3, heads, pieces=2)
    gpus = [node * 5 + gpu for node in range(len(parents)) for gpu in range(3)]
    values = np.zeros((5 * len(parents), schedule.chunks), int)
    values[gpus] = np.random.default_rng(0).integers(0, 1000, (len(gpus), schedule.chunks))
    expected = np.broadcast_to(values.sum(axis=0), (len(gpus), schedule.chunks))
    np.testing.assert_array_equal(carried_out(schedule, values)[gpus], expected)


def test_closed_forms_agree_with_the_figures_of_the_aws_post() -> None:
    # 25 MB around 4 GPUs at 25 GB/s, and around 8 with a 10 GB/s bridge in the ring.
    assert schedules.ring_s(4, 25e6, 0.0, 1 / 25e9) == pytest.approx(1.5e-3)
    assert schedules.ring_s(8, 25e6, 0.0, 1 / 10e9) == pytest.approx(4.375e-3)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_closed_forms_count_the_steps_and_bytes_of_their_schedules(ranks: int) -> None:
    alpha, beta = 1.0, 1e-3
    ring = schedules.ring(ranks)
    assert schedules.ring_s(ranks, ranks, alpha, beta) == pytest.approx(
        depth(ring) * alpha + max(count_sent_chunks(ring)) * beta
    )
    doubling = schedules.halving_doubling(ranks)
    assert closed_forms.halving_doubling_s(ranks, ranks, alpha, beta) == pytest.approx(
        depth(doubling) * alpha + max(count_sent_chunks(doubling)) * beta
    )
    naive = parameter_server(ranks, [0])
    received = ranks - 1
    assert closed_forms.parameter_server_s(ranks, 1, 1, alpha, beta) == pytest.approx(
        depth(naive) * alpha + (received + count_sent_chunks(naive)[0]) * beta
    )


@pytest.mark.parametrize(("ranks", "servers"), [(4, 1), (8, 2), (8, 8)])
def test_the_servers_links_carry_what_the_closed_form_says(ranks: int, servers: int) -> None:
    schedule = parameter_server(ranks, range(servers))
    pushed = sum(t.stop - t.start for t in schedule.transfers if t.target == 0 and t.reduce)
    closed = closed_forms.parameter_server_s(ranks, servers, schedule.chunks, 1.0, 1e-3)
    assert closed == pytest.approx(depth(schedule) + 2e-3 * pushed)


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 4), (5, 2), (8, 1), (16, 4)])
def test_two_levels_with_a_tree_across_take_a_trees_hops_between_nodes(nodes: int, per_node: int) -> None:
    deepest = max(tree.depth() for tree in double_binary_tree(nodes))
    assert depth(two_level_tree(nodes, per_node, pieces=1)) == 2 * (per_node - 1) + 2 * deepest
    assert depth(level_schedules.decomposed((per_node, nodes))) == 2 * (per_node - 1) + 2 * (nodes - 1)


def depth(schedule: TransferSchedule) -> int:
    """Return the longest chain of transfers, each after the one before."""
    depths: list[int] = []
    for transfer in schedule.transfers:
        depths.append(1 + max((depths[a] for a in transfer.after), default=0))
    return max(depths)


def test_a_periodic_ring_has_the_depth_and_work_of_the_whole() -> None:
    whole, part = schedules.ring(12), schedules.periodic_ring(4, 22)
    assert depth(part) == depth(whole) == 22
    assert set(count_sent_chunks(part)) == set(count_sent_chunks(whole)) == {22}
