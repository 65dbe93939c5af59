from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from ddpexec.capturing.models import MODELS
from ddpexec.capturing.models.training import TrainingModel, classifier
from ddpexec.running.provenance import provenance
from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.trace.metrics import PARTS, summarise
from tests.ddpexec.groups import ranks
from tests.ddpexec.running.runs import trained_run
from tests.ddpexec.small import small_workload

RUNS: list[dict[str, Any]] = [
    {"scheme": "fsdp2"}, {"scheme": "fsdp2:noreshard"}, {"scheme": "hsdp:2"}, {"scheme": "hsdp:1"},
    {"scheme": "fsdp2", "accumulate": 2}, {"scheme": "fsdp2", "implementation": "torch"},
    {"scheme": "fsdp2:gather=bf16,reduce=fp32"}, {"scheme": "fsdp2:gather=fp16"},
]  # fmt: skip


def tiny() -> TrainingModel:
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU())]
    return classifier("tiny", nn.Sequential(nn.Linear(8, 32), *layers), 4, (8,), 32)


def ran(rank: int, options: dict[str, Any], **subject: Any) -> Run:
    run = trained_run(RunSettings(iterations=4, **options), **(subject or {"model": "tiny"}))
    run.provenance = provenance(run, [])
    return run


@pytest.fixture(autouse=True)
def a_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpexec.capturing.models.MODELS", {**MODELS, "tiny": tiny})


def traced(rank: int) -> list[Any]:
    found = []
    for options in RUNS:
        run = ran(rank, options)
        trace = run.trace()
        found.append((trace, run.gather(trace), list(run.ddp.schedule), run.provenance))
    return found


def test_a_run_under_fully_shard_leaves_a_trace() -> None:
    for options, (trace, gathered, messages, told) in zip(RUNS, ranks.run_own(2, traced)[0], strict=True):
        summary = summarise(gathered)
        assert sum(getattr(summary, part) for part in PARTS) == pytest.approx(summary.iteration_s)
        assert told["implementation"] == "torch"
        for it in trace.iterations:
            sent = [(bucket.index, bucket.operation, bucket.size_bytes, bucket.parameters) for bucket in it.buckets]
            due = [m for m in enumerate(messages) if it.synced or m[1].op is Operation.ALL_GATHER]
            assert sent == [(number, m.op, m.size_bytes, m.parameters) for number, m in due], options
            assert len(it.gradients) == 10
            assert min(it.forward_s, it.backward_compute_s, it.optimizer_s) > 0
            in_waits = sum(bucket.finished_s - bucket.launched_s for bucket in it.buckets)
            assert it.exposed_comm_s == pytest.approx(in_waits)
            for bucket in it.buckets:
                assert it.start_s < bucket.launched_s <= bucket.finished_s <= bucket.written_s <= it.end_s
                if bucket.operation.reduces and it.synced:
                    assert bucket.ready_s <= bucket.launched_s
            in_forward = [bucket for bucket in it.buckets if bucket.finished_s < it.gradients[0].hook_s]
            assert in_forward or options["scheme"] == "hsdp:1"


def refused(rank: int) -> list[str]:
    found = []
    for options, subject in (
        ({"scheme": "fsdp2", "stragglers": {0: 2.0}}, {"model": "tiny"}),
        ({"scheme": "fsdp2", "scale_compute": 2.0}, {"model": "tiny"}),
        ({"scheme": "fsdp2"}, {"step": "tests.ddpexec.capturing.own_steps:tied"}),
        ({"scheme": "hsdp:3"}, {"model": "tiny"}),
        ({"scheme": "fsdp2:gather=int64"}, {"model": "tiny"}),
    ):
        with pytest.raises(InputError) as caught:
            ran(rank, options, **subject)
        found.append(str(caught.value))
    return found


def test_every_rank_says_what_cannot_be_sharded() -> None:
    for straggler, slower, step, shards, dtype in ranks.run_own(2, refused):
        assert "`stragglers`" in straggler
        assert "`scale_compute`" in slower
        assert "drop one" in step
        assert "3 shards do not divide a world of 2" in shards
        assert "no int64" in dtype


def timed(rank: int, scheme: str) -> tuple[Any, ...]:
    names = ("stem.weight", "h.0.weight", "h.0.bias", "h.1.weight", "h.1.bias", "head.weight")
    source = small_workload(len(names), step_s=0.005)
    parameters = tuple(replace(each, name=name) for each, name in zip(source.parameters, names, strict=True))
    run = ran(rank, {"scheme": scheme}, workload=replace(source, parameters=parameters))
    return run.trace().iterations, list(run.ddp.schedule)


@pytest.mark.parametrize("scheme", ["fsdp2", "fsdp2:noreshard", "fsdp2:gather=bf16", "hsdp:2", "hsdp:1"])
def test_timed_layers_are_sharded_and_stand_still_while_a_collective_is_waited_for(scheme: str) -> None:
    computed_s = 0.005 * (1 + 6) + 0.005 / (1 if scheme == "hsdp:1" else 2)
    for iterations, messages in ranks.run(2, timed, scheme):
        for it in iterations:
            sent = [(bucket.index, bucket.operation, bucket.size_bytes, bucket.parameters) for bucket in it.buckets]
            assert sent == [(number, m.op, m.size_bytes, m.parameters) for number, m in enumerate(messages)]
            assert [gradient.parameter for gradient in it.gradients] == [5, 4, 3, 2, 1, 0]
            assert it.end_s - it.start_s > computed_s + it.exposed_comm_s
            assert it.exposed_comm_s > 0
