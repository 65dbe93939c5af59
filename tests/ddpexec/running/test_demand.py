from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpexec.running.demand import SHARE, HookCosts, demand, measure_hook_costs, require_capacity
from ddpsim.bucketing import Parameter
from ddpsim.common.errors import InputError
from ddpsim.workload import Phase, Workload
from ddpsim.workload.files import save_workload
from ddpsim.workload.replayed import single_clock
from tests import forked
from tests.ddpexec.small import small_workload

COSTS = HookCosts(hook_s=10e-6, copy_Bps=5e9)


def workload(backward_s: float) -> Workload:
    whole, ready = Phase(np.array([backward_s]), np.array([backward_s])), np.array([[backward_s, backward_s / 2]])
    parameters = Parameter("a", (1 << 20,)), Parameter("b", (1 << 18,))
    return replace(
        small_workload(2), device="V100", parameters=parameters, buffers=(), forward=whole, backward=whole,
        optimizer=whole, gradient_hook_s=ready, gradient_ready_s=ready,
    )  # fmt: skip


def test_demand_is_hooks_and_copies_over_what_the_machine_has() -> None:
    busy_s = 2 * 10e-6 + (5 << 20) / 5e9
    assert demand(workload(0.1), COSTS, 4, 2) == pytest.approx(4 * busy_s / (2 * 0.1))


@given(st.floats(1e-5, 1), st.integers(1, 8), st.integers(1, 4))
def test_the_factor_named_is_the_smallest_that_suffices(backward_s: float, ranks: int, processors: int) -> None:
    recorded = single_clock(workload(backward_s))
    if demand(recorded, COSTS, ranks, processors) < SHARE:
        require_capacity(recorded, COSTS, ranks, processors)
        return
    with pytest.raises(InputError) as refused:
        require_capacity(recorded, COSTS, ranks, processors)
    factor = float(re.findall(r"`scale_compute` by ([\d.e+]+)", str(refused.value))[0])
    require_capacity(single_clock(recorded, factor), COSTS, ranks, processors)
    assert demand(single_clock(recorded, factor * 0.9), COSTS, ranks, processors) >= SHARE


def test_a_backward_without_time_cannot_be_stretched() -> None:
    recorded = workload(0.1)
    nothing = np.zeros(1)
    empty = replace(recorded, backward=Phase(nothing, nothing), gradient_ready_s=recorded.gradient_ready_s * 0)
    with pytest.raises(InputError, match="takes none"):
        require_capacity(empty, COSTS, 1, 1)


def test_costs_of_this_machine_are_costs() -> None:
    costs = measure_hook_costs()
    assert costs.hook_s >= 0
    assert costs.copy_Bps > 0


def test_every_rank_refuses_alike(tmp_path: Path) -> None:
    save_workload(workload(1e-4), tmp_path / "fast.json")
    arguments = ["--workload", str(tmp_path / "fast.json"), "--backend", "gloo", "--out", str(tmp_path / "out")]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "ddpexec", "run"]
    result = forked.command([*torchrun, *arguments], tmp_path, {"OMP_NUM_THREADS": "1"})
    assert result.returncode != 0
    told = [line for line in result.stderr.splitlines() if "multiply --scale-compute by" in line]
    assert len(told) == 1
    assert not (tmp_path / "out").exists()
