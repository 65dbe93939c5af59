from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ddpexec.running.provenance import provenance
from ddpexec.running.run import Run
from ddpexec.running.settings import IMPLEMENTATIONS, RunSettings
from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace, write_rank, write_trace
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import Trace
from ddpsim.workload.files import save_workload
from tests import forked
from tests.ddpexec.groups import ranks
from tests.ddpexec.running.runs import CPU, trained_run
from tests.ddpexec.small import small_workload
from tests.traces import example_trace

CAPS = BucketCaps(bucket_cap_mb=0.02)
LOOPBACK = load_topology("loopback")


def train(settings: RunSettings) -> tuple[Trace, Trace | None, dict[str, object]]:
    run = trained_run(settings)
    trace = run.trace()
    return trace, run.gather(trace), provenance(run, [])


@ranks.on(2)
def test_without_stamps_both_implementations_tell_their_buckets(rank: int) -> None:
    for name in IMPLEMENTATIONS:
        provenance_of: Any = train(RunSettings(implementation=name, iterations=2, caps=CAPS, observe=False))[2]
        first = provenance_of["first"]
        assert first["construction_s"] > 0
        assert len(first["iterations_s"]) == 5
        assert min(first["iterations_s"]) > 0
        assert [bucket["parameters"] for bucket in provenance_of["plan"]["buckets"]] == [[5, 4], [3, 2], [1, 0]]


def both(rank: int) -> list[Any]:
    found = [train(RunSettings(implementation=name, iterations=3, caps=CAPS)) for name in ("ddpexec", "torch")]
    found.append(train(RunSettings(iterations=4, caps=CAPS, accumulate=2, process_groups=2)))
    return [(trace, gathered, plan["plan"]) for trace, gathered, plan in found]


def test_both_implementations_leave_the_same_kind_of_trace() -> None:
    rank_zero, rank_one = ranks.run(2, both)
    for (trace, gathered, plan), (other, nothing, _) in zip(rank_zero[:2], rank_one[:2], strict=True):
        assert nothing is None
        assert [it.rank for it in gathered.iterations] == [0] * 3 + [1] * 3
        assert [b["parameters"] for b in plan["buckets"]] == [[5, 4], [3, 2], [1, 0]]
        assert plan["buckets"][0]["size_bytes"] == 24000
        for it in (*trace.iterations, *other.iterations):
            assert [bucket.parameters for bucket in it.buckets] == [(5, 4), (3, 2), (1, 0)]
            assert sorted(gradient.parameter for gradient in it.gradients) == list(range(6))
            for bucket in it.buckets:
                assert it.start_s < bucket.ready_s <= bucket.launched_s <= bucket.started_s <= bucket.finished_s
                assert bucket.finished_s <= bucket.written_s < it.end_s
            assert it.backward_compute_s > 0
            assert it.iteration_s > it.forward_s + it.backward_compute_s + it.optimizer_s
        summary = summarise(gathered)
        assert summary.iteration_s > 8e-3
        assert summary.world_size == 2
    accumulated = rank_zero[2][0].iterations
    assert [it.synced for it in accumulated] == [False, True, False, True]
    assert [len(it.buckets) for it in accumulated] == [0, 3, 0, 3]


def dies(rank: int, folder: str, implementation: str) -> str:
    settings = RunSettings(implementation=implementation, iterations=50, caps=CAPS)
    run = Run(settings, CPU, workload=small_workload())
    if rank == 1:
        steps = 0

        def die(*_: object) -> None:
            nonlocal steps
            steps += 1
            if steps == 9:
                os._exit(17)

        run.parameters.tensors[2].register_post_accumulate_grad_hook(die)
    try:
        run.train()
    except InputError as error:
        write_rank(run.trace(), rank, folder)
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("implementation", "what"), [("ddpexec", "the allreduce of bucket"), ("torch", "a collective")]
)
def test_a_rank_that_dies_is_noticed_and_the_survivor_s_trace_can_be_read(
    tmp_path: Path, implementation: str, what: str
) -> None:
    survivor, dead = ranks.outcomes(2, dies, str(tmp_path), implementation, group_timeout_s=10)
    assert dead.exit_code == 17
    assert f"rank 0: {what}" in survivor.value
    assert "rank 1 (process" in survivor.value
    trace = read_trace(tmp_path)
    assert trace.ranks == [0]
    assert len(trace.iterations) >= 3


def test_the_command_prints_one_document_and_writes_every_rank(tmp_path: Path) -> None:
    save_workload(small_workload(), tmp_path / "w.json")
    write_trace(example_trace(3), tmp_path / "out")  # of an earlier run of more ranks
    command = [*forked.TORCHRUN, "2", "-m", "ddpexec", "run"]
    options = ["--workload", str(tmp_path / "w.json"), "--iterations", "4", "--out", str(tmp_path / "out"), "--json"]
    done = forked.command([*command, *options], tmp_path, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["world_size"] == 2
    trace = read_trace(tmp_path / "out")
    assert trace.ranks == [0, 1]
    assert trace.provenance["plan_fingerprint"] == document["plan_fingerprint"]
    assert summarise(trace).iteration_s == pytest.approx(document["iteration_s"])


def test_a_model_cannot_be_made_faster() -> None:
    with pytest.raises(InputError, match=r"scale_compute: 0\.5 is below 1; .*timed layers"):
        Run(RunSettings(scale_compute=0.5), CPU, model="mlp")


@ranks.on(2)
def test_timed_layers_are_compressed_where_the_machine_can(rank: int) -> None:
    slow = small_workload(step_s=0.05)
    run = trained_run(RunSettings(iterations=5, scale_compute=0.25), workload=slow)
    recorded_s = sum(float(phase.device_s.mean()) for phase in (slow.forward, slow.backward, slow.optimizer))
    assert recorded_s / 4 <= min(it.iteration_s for it in run.trace().iterations) < recorded_s


def test_the_hooks_beside_stock_torch_are_counted_as_perturbation() -> None:
    def cost(rank: int, implementation: str) -> float:
        run = trained_run(RunSettings(implementation=implementation, iterations=3))
        stamping = mock.patch.multiple(
            "ddpexec.timing.stamping", gradient_s=lambda clock: 1e-6, bucket_s=lambda clock: 7e-6
        )
        with stamping, mock.patch("ddpexec.running.run.hook_cost_s", return_value=2e-6):
            return run.stamping_s()  # as measured, without its noise

    ours, theirs = (ranks.run(1, cost, name)[0] for name in ("ddpexec", "torch"))
    assert 0 < ours < theirs


def alone(rank: int) -> list[tuple[int, float | None, Any]]:
    """Return, of several runs, how many iterations count, this rank's time alone, and the run's."""
    found = []
    slow = small_workload(step_s=0.004)
    for implementation, options in (
        ("ddpexec", {}),
        ("torch", {}),
        ("ddpexec", {"accumulate": 2}),
        ("torch", {"stragglers": {0: 1.5}}),
        ("torch", {"local_iterations": 0}),
    ):
        settings = RunSettings(implementation=implementation, **{"iterations": 2, "local_iterations": 3, **options})
        run = trained_run(settings, workload=slow)
        gathered = run.gather(run.trace())
        known = None if gathered is None else gathered.provenance.get("local_s")
        found.append((len(run.trace().iterations), run.local_s(), known))
    return found


def test_steps_without_communication_time_one_process_and_do_not_count() -> None:
    (*timed, slowed, unasked), (*others, usual, _) = ranks.run(2, alone)
    recorded_s = 8 * 0.004
    for cycle, (mine, theirs) in zip((1, 1, 2), zip(timed, others, strict=True), strict=True):
        assert mine[0] == theirs[0] == 2
        assert mine[1] >= recorded_s - 0.004 * (cycle - 1) / cycle
        assert min(mine[1], theirs[1]) <= mine[2] <= max(mine[1], theirs[1])
        assert theirs[2] is None
    assert slowed[1] is None, "a straggler's own time is not that of one process"
    assert slowed[2] == usual[1]
    assert unasked[1:] == (None, None)


def accumulated(rank: int) -> list[Any]:
    """Return each run's trace, and what it reduced, seen where collectives are handed to the backend."""
    found = []
    for implementation in IMPLEMENTATIONS:
        for sync in ("last", "every"):
            given = RunSettings(implementation=implementation, iterations=6, caps=CAPS, accumulate=3, sync=sync)
            run = trained_run(given)
            found.append((implementation, sync, run.trace(), run.gather(run.trace())))
    return found


def test_a_run_reduces_after_the_last_micro_batch_or_after_each_as_predicted() -> None:
    workload, size = small_workload(), small_workload().gradient_bytes
    for implementation, sync, trace, gathered in ranks.run(2, accumulated)[0]:
        reducing = [sync == "every", sync == "every", True] * 2
        assert [it.synced for it in trace.iterations] == reducing, implementation
        assert [it.stepped for it in trace.iterations] == [False, False, True] * 2
        predicted = predict(
            Job(
                workload, LOOPBACK, gpus_per_node=2, options=Options(caps=CAPS, accumulate=3, sync=sync, backend="gloo")
            )
        )
        simulated = predicted.trace.of_rank(0)
        for real, told in zip(trace.iterations, simulated, strict=True):
            assert [b.parameters for b in real.buckets] == [b.parameters for b in told.buckets]
            assert sum(b.size_bytes for b in real.buckets) == (size if real.synced else 0)
        summary = summarise(gathered)
        assert summary.iterations == 2
        assert summary.iteration_statistic == predicted.summary.iteration_statistic == "median of cycle means"
