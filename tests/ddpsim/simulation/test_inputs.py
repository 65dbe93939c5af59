"""The input stage in a simulated step, against closed forms; without it nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.common.errors import InputError
from ddpsim.common.options.input_stage import InputStage
from ddpsim.prediction.predict import predict
from ddpsim.simulation.engine import simulate, simulate_local
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from tests.ddpsim.simulation.builders import ALIKE, workload

BATCH = 60e6
SLOT = 12e9
"""Bytes of a batch; bytes per second of a slot of PCIe 3, as the machine has it."""
STEP = 0.12
HOSTLESS = {"host_share": 1e-3}


def period(topology, text, ranks=None, source=None, costs=ALIKE, **options):
    placement = load_topology(topology).place(gpus_per_node=ranks)
    source = source or workload(device="V100", **HOSTLESS)
    trace = simulate(source, placement, Options(input_stage=text, **options), costs)
    return summarise(trace)


@pytest.mark.parametrize(
    ("text", "extra_s"),
    [
        ("copy=60MB,pinned", BATCH / SLOT),
        ("copy=60MB,queued", BATCH / SLOT),
        ("copy=60MB,rate=3GB/s", BATCH / 3e9),
        ("copy=60MB,pipelined", 0.0),
        ("load=50ms,workers=1", 0.0),
        ("load=500ms,workers=2", 0.25 - STEP),
        ("load=500ms,workers=2,copy=60MB,pipelined", 0.25 - STEP),
    ],
)
def test_one_rank_alone_waits_for_what_nothing_hides(text, extra_s):
    source = workload(device="V100", **HOSTLESS)
    [*_, without] = simulate_local(source, Options())
    plain = without.iteration_s
    [*_, last] = simulate_local(source, Options(input_stage=text))
    assert plain == pytest.approx(STEP, rel=2e-3)
    assert last.iteration_s == pytest.approx(plain + extra_s, abs=3e-4)
    assert last.input_s == pytest.approx(extra_s, abs=3e-4)


def test_the_thread_that_trains_loads_while_the_device_works_where_nothing_makes_it_wait():
    free, held = (workload(device="V100", synchronises=points, **HOSTLESS) for points in ((), ("after_optimizer",)))
    [*_, hidden] = simulate_local(free, Options(input_stage="load=50ms"))
    [*_, exposed] = simulate_local(held, Options(input_stage="load=50ms"))
    assert hidden.iteration_s == pytest.approx(STEP, rel=2e-3)
    assert exposed.iteration_s == pytest.approx(STEP + 0.05, rel=2e-3)
    assert exposed.input_s == pytest.approx(0.05, rel=2e-2)


def test_a_cpu_loads_on_its_own_thread_and_copies_nothing():
    source = workload()
    for text, wait_s in (("load=40ms,copy=1GB", 0.04), ("load=40ms,workers=1", 0.0), ("load=1s,workers=5", 0.2 - STEP)):
        [*_, last] = simulate_local(source, Options(input_stage=text))
        assert last.input_s == pytest.approx(wait_s, abs=1e-9)
        assert last.iteration_s == pytest.approx(STEP + wait_s)


def test_gpus_below_one_switch_share_its_way_up():
    """Four V100 below one switch: copies to all four at once take four times as long as one."""
    waits = [period("4xv100-pcie", "copy=60MB,queued", ranks).input_s for ranks in (1, 2, 4)]
    assert waits == pytest.approx([ranks * BATCH / SLOT for ranks in (1, 2, 4)], rel=1e-3)


def test_copies_take_links_from_the_messages_that_meet_them():
    """A copy that lasts all of backward slows the sums on the same links; on links of its own it does not."""
    shared = [period("4xv100-pcie", text).iteration_s for text in ("none", "copy=600MB,pipelined")]
    apart = [period("dgx-1v", text, 4).iteration_s for text in ("none", "copy=600MB,pipelined")]
    assert shared[1] > shared[0] * 1.0005
    assert apart[1] == pytest.approx(apart[0], rel=1e-6)


def test_a_batch_s_copy_is_no_collective_that_computation_slows():
    """Behind the copies of all of a machine's GPUs, however much longer a collective takes beside computation."""
    slowed = ALIKE.with_values({"nccl.ddp.communication_slowdown": 3.0}, source="test")
    waits = [period("4xv100-pcie", "copy=600MB,pipelined", costs=costs).input_s for costs in (ALIKE, slowed)]
    assert waits[0] > 0
    assert waits[1] == pytest.approx(waits[0], rel=1e-6)


def test_latest_ranks_copy_to_the_gpus_that_the_first_does_not():
    source = workload(device="V100", iterations=3, jitter=1e-6, **HOSTLESS)
    alike, several = (period("4xv100-pcie", "copy=60MB,queued", source=each) for each in (None, source))
    assert several.input_s == pytest.approx(alike.input_s, rel=1e-3)


def test_parts_sum_to_the_step_and_are_six_without():
    prediction = predict(
        Job(workload(device="V100"), load_topology("4xv100-pcie"), options=Options(input_stage="copy=9MB"))
    )
    assert sum(prediction.summary.parts.values()) == pytest.approx(prediction.iteration_s)
    assert prediction.document()["input_s"] == prediction.summary.input_s > 0
    plain = predict(Job(workload(device="V100"), load_topology("4xv100-pcie")))
    assert len(plain.summary.parts) == 6
    assert "input_s" not in plain.document()
    assert "input_s" not in plain.summary.document()


def test_what_was_recorded_is_taken_from_the_workload():
    stage = InputStage(copy_bytes=60_000_000, queued=True)
    source = replace(workload(device="V100", **HOSTLESS), input_stage=stage)
    recorded, written = (period("dgx-1v", text, source=source) for text in ("recorded", "copy=60MB,queued"))
    assert recorded == written
    assert period("dgx-1v", "none", source=source).input_s is None
    with pytest.raises(InputError, match="no input stage recorded"):
        period("dgx-1v", "recorded")
