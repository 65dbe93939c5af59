"""`torch.nn.DataParallel` as a scheme of a run: what it trains, and where it is refused."""

from __future__ import annotations

import pytest
import torch

from ddpexec.capturing.models import build
from ddpexec.ddp.parameters import collect
from ddpexec.running import wrapping
from ddpexec.running.provenance import provenance
from ddpexec.running.replicated import Replicated
from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from ddpsim.common.errors import InputError
from ddpsim.trace.metrics import summarise
from tests.ddpexec.groups import ranks
from tests.ddpexec.running.runs import CPU, trained_run
from tests.ddpexec.small import small_workload

GPUS = torch.cuda.device_count()
SCHEME = {"scheme": "dataparallel"}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.skipif(GPUS > 1, reason="this machine has several GPUs")
def test_it_is_refused_where_there_are_no_several_gpus() -> None:
    message = f"scheme=dataparallel: torch.nn.DataParallel needs several GPUs in one machine, this one has {GPUS}"
    with pytest.raises(InputError, match=message):
        Run(RunSettings(**SCHEME), CPU, model="mlp")


@ranks.on(2)
def test_several_processes_are_refused_on_each(rank: int) -> None:
    with pytest.raises(InputError, match="is one process for all GPUs of a machine, and 2 started"):
        Run(RunSettings(**SCHEME), CPU, model="mlp")


@pytest.mark.usefixtures("one_rank")
def test_timed_layers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapping, "gpus_of", lambda *_: 2)
    with pytest.raises(InputError, match="timed layers keep one clock"):
        Run(RunSettings(**SCHEME), CPU, workload=small_workload())


@pytest.mark.usefixtures("one_rank")
@pytest.mark.skipif(GPUS > 0, reason="replicas would be made on the GPU")
def test_a_run_trains_as_one_process_does_and_tells_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU torch calls the module itself: what is tested is all that stands around it."""
    monkeypatch.setattr(wrapping, "gpus_of", lambda *_: 2)
    alone = trained_run(RunSettings(iterations=2, batch_size=4), model="mlp")
    found = trained_run(RunSettings(**SCHEME, iterations=2, batch_size=2), model="mlp")
    assert all(map(torch.equal, alone.parameters.tensors, found.parameters.tensors))
    assert isinstance(found.ddp, Replicated)
    trace = found.trace()
    assert trace.world_size == 2
    assert summarise(trace).iteration_s > 0
    assert all(it.forward_s > 0 and it.backward_compute_s > 0 and not it.buckets for it in trace.iterations)
    assert provenance(found, [])["implementation"] == "torch"
    assert sorted(i for b in found.plan_in_force().buckets for i in b.parameters) == list(
        range(len(found.parameters.policy))
    )


@pytest.mark.skipif(GPUS < 2, reason="replicas need two GPUs")
def test_gradients_are_those_of_the_whole_batch() -> None:
    model = build("mlp", torch.device("cuda", 0))
    batch = model.make_batch(8, "cuda", None)
    model.loss(model.module(*batch.inputs), batch).backward()
    expected = [each.grad.clone() for each in model.module.parameters()]
    model.module.zero_grad()
    model.loss(Replicated(model.module, collect(model.module), 2, None)(*batch.inputs), batch).backward()
    for parameter, wanted in zip(model.module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-5)
