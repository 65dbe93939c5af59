"""Whose pace a model has on each machine, and what its file has to hold for that."""

from dataclasses import replace

import pytest

from ddpsim import Options, load_topology, load_workload, predict, save_workload
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError, UnknownNameError, WorkloadError
from ddpsim.prediction.carry import carry_workload
from ddpsim.prediction.models import Model
from ddpsim.workload.anchors import Anchor, RooflineFactors
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.on_gpu import is_superseded

V100S, A100S, CPUS = (load_topology(name) for name in ("dgx-1v", "dgx-a100", "loopback"))


def test_a_bare_name_is_estimated_for_each_machines_gpu_and_stays_on_its_own():
    model, source = Model.of("resnet50"), load_workload("resnet50")
    assert model.on(V100S) == replace(source, operators=None)
    there = model.on(A100S)
    assert (there.device, there.precision, there.batch_size) == ("A100", "fp32", 32)
    made = estimate(ModelShape.of(source, source.operators), gpu_named("A100").with_fitted(), "fp32")
    assert there == replace(made, operators=None)
    assert model.on(A100S) is there


def test_what_is_asked_to_keep_its_pace_keeps_it_and_a_gpu_behind_the_name_is_taken_everywhere():
    source = replace(load_workload("resnet50"), operators=None)
    assert Model.of("resnet50@recorded").on(A100S) == source
    assert Model.of("resnet50", Options(keep_pace=True)).on(A100S) == source
    assert Model.of("resnet50@H200").on(V100S).device == "H200"
    with pytest.raises(UnknownNameError, match="unknown GPU 'H2000'"):
        Model.of("resnet50@H2000")
    with pytest.raises(UnknownNameError, match="resnet50"):
        Model.of("resnet5O@H200")


def test_a_shipped_file_without_operators_is_estimated_by_those_of_its_model():
    """`resnet50@a100-amp-b32` is ResNet-50 in amp with 32 samples: on a V100 that is what the bare name gives there."""
    model = Model.of("resnet50@a100-amp-b32")
    assert model.on(A100S) == Model.of("resnet50@h100-amp-b32").on(A100S)
    assert model.on(V100S) == Model.of("resnet50").on(V100S, 32, "amp")
    halves = Model.of("bert-base@h100-bf16-b32").on(A100S)
    assert (halves.device, {p.dtype for p in halves.parameters}) == ("A100", {"bfloat16"})


def test_a_gpu_behind_a_name_or_a_file_is_taken_wherever_workloads_are_read(tmp_path):
    path = tmp_path / "mine.json"
    save_workload(load_workload("resnet50"), path)
    there = load_workload("resnet50@A100")
    assert load_workload(f"{path}@A100") == there
    assert replace(there, operators=None) == Model.of("resnet50").on(A100S)
    assert load_workload("resnet50@recorded") == load_workload("resnet50")
    save_workload(replace(load_workload("resnet50"), operators=None, name="mine"), path)
    with pytest.raises(WorkloadError, match="without the operators that batch 32 in fp32 on A100 needs"):
        load_workload(f"{path}@A100")


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


def test_a_step_that_its_user_measured_elsewhere_is_said_to_be_taken_over():
    source = load_workload("resnet50@A100")
    anchor = Anchor("step", 0.05)
    paced = estimate(
        ModelShape.of(source, source.operators),
        gpu_named("A100").with_fitted(),
        "fp32",
        EstimateOptions(anchors=(anchor,)),
    )
    there = predict(paced, load_topology("dgx-h100"), band=False)
    assert [note for note in there.notes if note.startswith("no step was measured on H100: ")]
    for other, machine in ((paced, A100S), (source, load_topology("dgx-h100")), (load_workload("resnet50"), A100S)):
        assert not [
            note
            for note in predict(other, machine, band=False).notes
            if "was measured on" in note or "measured on A100" in note
        ]


def test_a_calibration_of_another_machine_is_said_to_be_taken_over():
    given = Calibration.priors("nccl")
    given = replace(given, provenance={**given.provenance, "topology": "dgx-a100"})
    note = "the calibration was fitted to dgx-a100: its constants are used for dgx-h100 too"
    for machine, expected in (("dgx-h100", [note]), ("dgx-a100", [])):
        found = predict("resnet50", load_topology(machine), calibration=given, band=False)
        assert [each for each in found.notes if "calibration" in each] == expected
    assert not [each for each in predict("resnet50", V100S, band=False).notes if "calibration" in each]


def bare(tmp_path, **changes):
    path = tmp_path / "bare.json"
    save_workload(replace(load_workload("resnet50"), operators=None, name="mine", **changes), path)
    return path


def test_a_file_without_operators_keeps_its_pace_where_no_gpu_is_asked_for(tmp_path):
    path = bare(tmp_path)
    model = Model.of(str(path))
    assert model.on(A100S) == load_workload(path)
    assert Model.of(f"{path}@A100").on(V100S) == carry_workload(model.source, gpu_named("A100").with_fitted()).workload
    with pytest.raises(WorkloadError, match="without the operators that batch 8 in fp32 on A100 needs") as caught:
        model.on(A100S, 8)
    assert "ddpexec estimate" in caught.value.remedy


def test_a_recorded_step_of_a_shipped_model_is_carried_operator_by_operator(tmp_path):
    """What was measured counts: its times are scaled by what the roofline says of its model on both GPUs."""
    source = replace(load_workload("resnet50"), operators=None, estimated=False)
    shape = ModelShape.of(source, load_workload("resnet50").operators)
    made = carry_workload(source, gpu_named("A100").with_fitted(), shape).workload
    assert Model.of(source).on(A100S) == made
    assert made.provenance["how"] == "carried from V100: operator by operator, between gradients"


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_precision_that_a_gpu_lacks_keeps_its_pace(precision):
    source = Model.of("resnet50").on(A100S, None, precision)
    assert Model.of(source).on(V100S) == source


def test_what_keeps_its_pace_has_no_other_batch():
    with pytest.raises(WorkloadError, match="keeps the pace of its file"):
        Model.of("resnet50@recorded").on(A100S, 8)
    with pytest.raises(InputError, match="no figures for precision 'bf16'"):
        Model.of("resnet50").on(V100S, None, "bf16")


def test_a_processors_times_say_nothing_of_a_gpu(tmp_path):
    source = replace(load_workload("resnet50"), operators=None)
    path = bare(tmp_path, device="cpu", forward=source.forward)
    assert Model.of(str(path)).on(CPUS) == load_workload(path)
    with pytest.raises(InputError, match=r"recorded on a CPU, dgx-a100 has GPUs .*estimate.*--from.*backend=gloo"):
        predict(str(path), A100S)
    under_gloo = Options(backend="gloo")
    assert Model.of(str(path)).on(A100S, options=under_gloo) == load_workload(path)


@pytest.mark.parametrize("model", ["bert-large@{}-amp-b8", "resnet50@{}-amp-b32"])
def test_a_step_has_one_time_on_a_machine_by_whatever_shipped_name_it_is_asked_for(model):
    for machine in ("dgx-a100", "dgx-h100", "dgx-b200"):
        topology = load_topology(machine)
        made = [Model.of(model.format(gpu)).on(topology) for gpu in ("a100", "h100", "b200")]
        assert made[0] == made[1] == made[2]
        assert made[0].provenance["shares_source"] == gpu_named(made[0].device).with_fitted().achieved.source


def test_an_estimate_is_made_anew_only_where_nothing_measured_stands_behind_it():
    assert Model.of("bert-large@v100-fp32-b8").on(V100S) == load_workload("bert-large@v100-fp32-b8")
    shipped = load_workload("bert-large@a100-amp-b8")
    assert Model.of("bert-large@a100-amp-b8@recorded").on(A100S) == shipped
    scaled = replace(
        shipped, provenance={**shipped.provenance, "scaled_to": "a step", "pace": RooflineFactors().document()}
    )
    assert not is_superseded(replace(scaled, operators=load_workload("bert-large").operators))
