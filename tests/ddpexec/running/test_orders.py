"""Order traces run for real: every arm sees the same steps, and the oracle's buckets are those of what comes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ddpexec.errors import OptionError  # noqa: E402
from ddpexec.groups.process_groups import Communicator, round_robin  # noqa: E402
from ddpexec.running.orders import BLOCK, NEVER, ORACLE, TORCH, Arm, measure_arms, run_orders  # noqa: E402
from ddpsim.bucketing import BucketCaps  # noqa: E402
from ddpsim.simulation.jobs.job_options import JobOptions  # noqa: E402
from ddpsim.workload.order_trace import load_order_trace  # noqa: E402
from tests.ddpexec.groups.ranks import run  # noqa: E402

ARMS = (Arm(TORCH), Arm("drift:1:1", "context"), Arm(ORACLE))


def trace(ranks=2):
    return load_order_trace(f"tests/ddpexec/running/orders/generated-{ranks}.json.gz")


def trained(rank):
    communicator = Communicator(round_robin(1))
    taken = run_orders(trace(), ARMS, communicator, JobOptions(caps=BucketCaps(bucket_cap_mb=0.004)), rounds=1)
    with pytest.raises(OptionError, match="generated-3 has 3 ranks, 2 were started"):
        run_orders(trace(3), ARMS, communicator, JobOptions(), rounds=1)
    return {arm.name: steps for arm, steps in taken.items()}


def test_arms_take_turns_over_the_same_steps():
    for answer in run(2, trained):
        assert list(answer) == ["torch", "drift:1:1, context", "oracle"]
        assert {len(steps) for steps in answer.values()} == {2 * (BLOCK - 1)}
        assert all(step > 1e-3 for steps in answer.values() for step in steps)


def test_gains_are_over_torch():
    rows = measure_arms({Arm(TORCH): [2.0] * 20, Arm(ORACLE): [1.5] * 20})
    assert [row["gain"] for row in rows] == pytest.approx([0, 0.25])
    assert rows[1]["gain_low"] == rows[1]["gain_high"] == pytest.approx(0.25)
    assert rows[1]["gain_over_never"] is None
    rows = measure_arms({Arm(TORCH): [2.0] * 20, NEVER: [1.6] * 20, Arm(ORACLE): [1.2] * 20})
    assert [row["gain_over_never"] for row in rows] == pytest.approx([-0.25, 0, 0.25])
