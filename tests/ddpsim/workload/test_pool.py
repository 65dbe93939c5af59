from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpsim.common.errors import WorkloadError
from ddpsim.workload.pool import pool_captures
from tests.ddpsim.simulation.builders import workload


def test_iterations_of_all_captures_follow_each_other() -> None:
    one, two = (workload(iterations=n, jitter=0.1, seed=n) for n in (2, 3))
    both = pool_captures([one, two])
    assert both.iterations == 5
    assert both.backward.device_s.tolist() == [*one.backward.device_s, *two.backward.device_s]
    assert np.array_equal(both.gradient_ready_s[2:], two.gradient_ready_s)
    assert both.provenance["processes"] == 2
    assert pool_captures([both, one]).provenance["processes"] == 3
    assert pool_captures([one]).forward.host_s.tolist() == one.forward.host_s.tolist()


def test_captures_of_different_steps_are_refused() -> None:
    with pytest.raises(WorkloadError, match="captures differ in batch_size"):
        pool_captures([workload(), replace(workload(), batch_size=7)])
    with pytest.raises(WorkloadError, match="captures differ in ranks"):
        pool_captures([workload(), replace(workload(), ranks=2)])
