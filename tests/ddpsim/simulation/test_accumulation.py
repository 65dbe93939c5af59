"""Gradients accumulated over micro-batches: which of them reduce, what adding costs, and what a step is then."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.prediction.predict import predict
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate, simulate_local
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.rank_config import ADDED
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from tests.ddpsim.simulation.builders import ALIKE, workload

FOUR = {"accumulate": 4, "caps": BucketCaps(bucket_cap_mb=2)}
HOSTLESS = 1e-3
"""Share of the device's time that the host needs: it never holds the device up."""


def periods(source, **options):
    return [it.iteration_s for it in simulate_local(source, Options(**options))]


def test_all_but_the_last_micro_batch_run_under_no_sync_or_each_reduces():
    placement = load_topology("dgx-1v").place()
    source = workload(device="V100", buffers=2)
    for sync, reducing in (("last", [False, False, False, True]), ("every", [True] * 4)):
        trace = simulate(source, placement, Options(**FOUR, sync=sync, iterations=3))
        iterations = trace.of_rank(0)
        assert [it.synced for it in iterations] == reducing * 3
        assert [it.stepped for it in iterations] == [False, False, False, True] * 3
        assert all(bool(it.buckets) == it.synced for it in iterations)
        assert [it.buffer_broadcast_s > 0 for it in iterations] == [True, *reducing[:3]] * 3
        assert summarise(trace).iteration_statistic == "median of cycle means"
        sent = sum(bucket.size_bytes for it in iterations for bucket in it.buckets)
        assert sent == 3 * sum(reducing) * source.gradient_bytes


@pytest.mark.parametrize("device", ["V100", "cpu"])
def test_adding_to_gradients_that_exist_reads_both_and_writes_one(device):
    source = workload(device=device, host_share=HOSTLESS)
    costs = Costs.of("gloo" if device == "cpu" else "nccl", None, device)
    if device == "cpu":
        added_s = source.gradient_bytes / costs.copy_Bps
    else:
        # A copy reads and writes at the achieved bandwidth; an addition reads twice.
        bandwidth = 2 * costs.copy_Bps
        added_s = 3 * source.gradient_bytes / bandwidth + len(source.parameters) * costs.copy_s
        assert ADDED == 3 / 2
    first, *others, last = periods(source, **FOUR, iterations=1)
    [plain] = set(periods(source, iterations=1))
    update_s = 0.01
    assert first == pytest.approx(plain - update_s, rel=1e-3)
    assert others == pytest.approx([plain - update_s + added_s] * 2, rel=1e-3)
    assert last == pytest.approx(plain + added_s, rel=1e-3)


def test_an_addition_costs_the_host_a_launch_where_the_host_is_the_bound():
    source = workload(device="V100", size=1000, host_share=3.0)
    costs = Costs.of("nccl", None, "V100")
    with_four, plain = fmean(periods(source, **FOUR, iterations=1)), periods(source, iterations=1)[0]
    host_s = 3 / 4 * len(source.parameters) * costs.hook_s
    assert with_four - (plain - 3 / 4 * 0.03) == pytest.approx(host_s, rel=0.01)


def test_reducing_every_micro_batch_costs_its_collectives_and_no_more():
    source, machine = workload(device="V100", size=4_000_000, host_share=HOSTLESS), load_topology("dgx-1v")

    def step_s(**given):
        found = predict(Job(source, machine, options=Options(**given), calibration=ALIKE), band=False)
        assert found.document()["step_s"] == pytest.approx(found.document()["micro_batch_s"] * found.options.accumulate)
        return found.document()["step_s"]

    last, every, plain = step_s(**FOUR), step_s(**FOUR, sync="every"), step_s(caps=FOUR["caps"])
    local_s = predict(Job(source, machine, options=Options(**FOUR), calibration=ALIKE), band=False).local_s * 4
    alone_s = predict(Job(source, machine, options=Options(), calibration=ALIKE), band=False).local_s
    assert last - local_s == pytest.approx(plain - alone_s, rel=0.02), "one reduction a step"
    assert every - local_s == pytest.approx(4 * (plain - alone_s), rel=0.02), "four"


def test_a_step_that_accumulates_nothing_is_its_micro_batch():
    found = predict(Job(workload(device="V100"), load_topology("dgx-1v")), band=False)
    document = found.document()
    assert document["step_s"] == document["micro_batch_s"] == document["iteration_s"]
    assert (document["accumulate"], document["sync"]) == (1, "last")


def test_sync_says_nothing_without_accumulation():
    assert Options(sync="every").sync_every == 1
    assert replace(Options(accumulate=4), sync="every").sync_every == 1
