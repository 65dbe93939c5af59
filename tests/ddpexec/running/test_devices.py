"""Ranks of several GPUs: where layers are put, what is refused without them, and a run where there are some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.capturing.models import build
from ddpexec.capturing.models.training import classifier
from ddpexec.ddp.parameters import collect
from ddpexec.running import devices, run
from ddpexec.running.run import Run
from ddpexec.running.settings import IMPLEMENTATIONS, RunSettings
from ddpsim.common.errors import InputError
from ddpsim.trace.metrics import summarise
from tests.ddpexec.running.runs import CPU, trained_run
from tests.ddpexec.small import small_workload

META = torch.device("meta")
GPUS = torch.cuda.device_count()


@pytest.mark.usefixtures("one_rank")
def test_a_rank_on_a_cpu_is_refused() -> None:
    with pytest.raises(InputError, match="a rank of 2 devices computes on GPUs, this one is on cpu") as error:
        Run(RunSettings(devices=2), CPU, model="mlp")
    assert error.value.place == "devices"


@pytest.mark.skipif(GPUS > 1, reason="this machine has several GPUs")
def test_the_command_names_how_many_gpus_it_needs(
    refusal: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    said = refusal("run", "--model", "mlp", "--devices", 2, "--out", tmp_path / "out")
    assert f"--devices: ranks of 2 devices need 2 GPUs on this machine, it has {GPUS}" in " ".join(said.split())


@pytest.mark.usefixtures("one_rank")
def test_timed_layers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "rank_devices", lambda count, first: [first] * count)
    with pytest.raises(InputError, match="timed layers wait on one host"):
        Run(RunSettings(devices=2), CPU, workload=small_workload())


def test_more_devices_than_layers_and_a_parameter_of_two_modules_are_refused() -> None:
    with pytest.raises(InputError, match="99 devices for a model of"):
        devices.put_on_devices(build("mlp", "meta"), [META] * 99)
    tied = nn.Linear(4, 4, device="meta")
    module = nn.Sequential(tied, nn.Linear(4, 4, device="meta"))
    module[1].weight = tied.weight
    model = classifier("tied", module, 1, (4,), 4)
    with pytest.raises(InputError, match=r"0.weight and 1.weight of tied are one parameter"):
        devices.put_on_devices(model, [META] * 2)


@pytest.mark.parametrize("name", ["mlp", "resnet50"])
def test_layers_of_a_model_go_to_the_devices_in_order_and_what_passes_is_copied_there(name: str) -> None:
    """`cpu` stands for the first device and `meta` for the second: a copy that were left out would not compute."""
    model = devices.put_on_devices(build(name, CPU), [CPU, META])
    where = [each.device.type for each in collect(model.module).tensors]
    assert where == sorted(where)
    assert {"cpu", "meta"} == set(where)
    sizes = [sum(p.nbytes for p in model.module.parameters() if p.device.type == kind) for kind in ("cpu", "meta")]
    assert max(sizes) < 0.95 * sum(sizes)
    batch = model.make_batch(2, CPU, None)
    output = model.module(*batch.inputs)
    assert output.device == META
    assert model.loss(output, batch).device == META


@pytest.mark.usefixtures("one_rank")
def test_a_run_trains_as_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pretended devices that are one: what is tested is all that stands around the copies."""
    monkeypatch.setattr(run, "rank_devices", lambda count, first: [first] * count)
    monkeypatch.setattr(run, "clock_of", lambda found, *rest: CLOCK(found[:1], *rest))
    made = [trained_run(RunSettings(iterations=2, batch_size=2, devices=count), model="mlp") for count in (1, 2)]
    assert all(map(torch.equal, *(each.parameters.tensors for each in made)))


CLOCK = run.clock_of


@pytest.mark.usefixtures("one_rank")
def test_a_module_of_ones_own_is_on_all_devices_of_its_rank() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    devices.check_module(collect(module), [CPU, META], "--step")
    with pytest.raises(InputError, match="the module is on cpu, the rank has cpu, meta"):
        devices.check_module(collect(module[0]), [CPU, META], "--step")


@pytest.mark.skipif(GPUS < 2, reason="a rank of two GPUs needs two")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_rank_of_two_gpus_trains_as_one_of_one_does_and_tells_its_phases(implementation: str) -> None:
    first = torch.device("cuda", 0)
    torch.cuda.set_device(first)
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    made = []
    for count in (1, 2):
        settings = RunSettings(iterations=3, batch_size=4, devices=count, implementation=implementation)
        one = Run(settings, first, model="mlp")
        one.train()
        made.append(one)
    alone, several = made
    assert [each.index for each in several.parameters.devices] == [0, 1]
    for expected, found in zip(alone.parameters.tensors, several.parameters.tensors, strict=True):
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-5)
    summary = summarise(several.trace())
    assert summary.forward_s > 0
    assert all(bucket.finished_s >= bucket.started_s for it in several.trace().iterations for bucket in it.buckets)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["vgg16", "vit-b16"])
def test_models_whose_layers_compute_with_their_own_parameters_are_cut(name: str) -> None:
    assert devices.put_on_devices(build(name, CPU), [CPU, META]).name == name


@pytest.mark.parametrize("name", ["bert-base", "gpt2-small"])
def test_a_model_whose_last_layer_is_its_embedding_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} computes with what is on two devices: .*found at least two devices"):
        devices.put_on_devices(build(name, CPU), [CPU, META])
