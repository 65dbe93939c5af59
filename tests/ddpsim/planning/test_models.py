"""Whose pace a model has on each machine, and what its file has to hold for that."""

from dataclasses import replace

import pytest

from ddpsim.errors import InputError, UnknownNameError, WorkloadError
from ddpsim.planning.models import Model
from ddpsim.prediction.carry import carried
from ddpsim.topology.spec import load_topology
from ddpsim.workload.estimate import ModelShape, estimate
from ddpsim.workload.files import load_workload, save_workload
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.single_clock import single_clock

V100S, A100S, CPUS = (load_topology(name) for name in ("dgx-1v", "dgx-a100", "loopback"))


def test_a_bare_name_is_estimated_for_each_machines_gpu_and_stays_on_its_own():
    model, source = Model.of("resnet50"), load_workload("resnet50")
    assert model.on(V100S) == source
    there = model.on(A100S)
    assert (there.device, there.precision, there.batch_size) == ("A100", "fp32", 32)
    assert there == estimate(ModelShape.of(source, source.operators), gpu_named("A100").fitted(), "fp32")
    assert model.on(A100S) is there


def test_recorded_and_whole_names_keep_their_pace_and_a_gpu_behind_the_name_is_taken_everywhere():
    assert Model.of("resnet50@recorded").on(A100S) == load_workload("resnet50")
    assert Model.of("resnet50@a100-amp-b32").on(V100S) == load_workload("resnet50@a100-amp-b32")
    assert Model.of("resnet50@H200").on(V100S).device == "H200"
    with pytest.raises(UnknownNameError, match="unknown GPU 'H2000'"):
        Model.of("resnet50@H2000")


def test_other_batches_and_precisions_are_estimated_from_the_operators():
    model = Model.of("resnet50")
    small, large = (model.on(A100S, batch, "amp") for batch in (8, 64))
    assert [each.batch_size for each in (small, large)] == [8, 64]
    assert {each.precision for each in (small, large)} == {"amp"}
    assert small.activations_bytes < large.activations_bytes
    assert sum(small.forward.device_s) < sum(large.forward.device_s) < 8.5 * sum(small.forward.device_s)


def test_a_measured_pace_is_kept_for_other_batches_of_its_own_gpu():
    """The file of ResNet-50 is scaled to a published step; twice the batch takes its scale along."""
    source = load_workload("resnet50")
    scale = source.provenance["scale"]
    assert scale != 1
    doubled = Model.of("resnet50").on(V100S, 64)
    assert doubled.provenance["scale"] == scale
    assert doubled.forward.device_s[0] == pytest.approx(2 * source.forward.device_s[0], rel=0.02)


def bare(tmp_path, **changes):
    path = tmp_path / "bare.json"
    save_workload(replace(load_workload("resnet50"), operators=None, **changes), path)
    return Model.of(str(path))


def test_a_file_without_operators_is_carried_and_asked_for_no_other_batch(tmp_path):
    model = bare(tmp_path)
    assert model.on(A100S) == carried(model.source, gpu_named("A100").fitted()).workload
    with pytest.raises(WorkloadError, match="without the operators that batch 8 in fp32 needs") as caught:
        model.on(A100S, 8)
    assert "ddpexec estimate" in caught.value.remedy


def test_what_keeps_its_pace_has_no_other_batch():
    with pytest.raises(WorkloadError, match="keeps the pace of its file"):
        Model.of("resnet50@recorded").on(A100S, 8)
    with pytest.raises(InputError, match="no figures for precision 'bf16'"):
        Model.of("resnet50").on(V100S, None, "bf16")


def test_a_processors_times_say_nothing_of_a_gpu(tmp_path):
    path = tmp_path / "cpu.json"
    save_workload(replace(single_clock(load_workload("resnet50")), operators=None), path)
    with pytest.raises(WorkloadError, match="it has no operators"):
        Model.of(str(path)).on(A100S)
    assert Model.of(str(path)).on(CPUS) == load_workload(path)
