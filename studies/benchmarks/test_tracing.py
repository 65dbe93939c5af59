from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from studies.benchmarks.tracing import BACKWARD_S, GRADIENTS, cost, layers


def test_a_cost_is_the_median_of_pairs_with_an_interval_around_it() -> None:
    shares = np.random.default_rng(1).normal(0.003, 0.001, 48)
    middle, low, high = cost(list(shares))
    assert middle == np.median(shares)
    assert low < middle < high
    # A median of n normal values is off by about sqrt(pi / 2n) of their deviation.
    assert high - low == pytest.approx(2 * 1.96 * 0.001 * np.sqrt(np.pi / 2 / 48), rel=0.5)
    assert cost([0.01] * 40) == (0.01, 0.01, 0.01)


def test_layers_come_evenly_and_the_last_registered_first() -> None:
    ready_s = layers().gradient_ready_s[0]
    assert len(ready_s) == GRADIENTS
    assert ready_s[0] == pytest.approx(BACKWARD_S)
    assert np.diff(ready_s) == pytest.approx(-BACKWARD_S / GRADIENTS)
