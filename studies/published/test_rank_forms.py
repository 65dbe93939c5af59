"""Forms in which ranks wait: each constant is found again from losses that it made."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from studies.published.many_ranks import Loss, series
from studies.published.rank_forms import by_collective, by_nodes, collectives, fitted


@pytest.fixture(scope="module")
def alike() -> list[Loss]:
    return [Loss("mpt-a100-125m", gpus, 16, 0.0, 0.01 * gpus / 128) for gpus in (32, 64, 128)]


def test_either_constant_is_found_again_from_the_losses_that_it_makes(alike: list[Loss]) -> None:
    [one] = (each for each in series() if each.name == "mpt-a100-125m")
    for form, constant in ((by_nodes, 0.03), (partial(by_collective, {one.name: 38}), 0.001)):
        made = [replace(loss, measured=form(one, loss, constant)) for loss in alike]
        assert fitted(form, [0.0, 0.001, 0.03], [(one, made)]) == constant
        assert form(one, alike[0], 0.0) == pytest.approx(alike[0].predicted)
        assert form(one, alike[-1], constant) > form(one, replace(alike[-1], gpus=32), constant)


def test_a_sharded_layer_is_gathered_twice_and_reduced_once() -> None:
    [one] = (each for each in series() if each.name == "mpt-a100-125m")
    assert collectives(one) == 38
