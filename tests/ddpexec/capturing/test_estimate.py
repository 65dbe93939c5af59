import functools
import gzip
import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ddpexec.__main__ import main  # noqa: E402
from ddpexec.capturing.estimate import ANCHORS, SHIPPED, carry_model, estimate_model, write_shipped  # noqa: E402
from ddpexec.capturing.models import ESTIMATED, MODELS  # noqa: E402
from ddpexec.capturing.shapes import model_shape  # noqa: E402
from ddpsim.common import shipped  # noqa: E402
from ddpsim.common.errors import WorkloadError  # noqa: E402
from ddpsim.workload.files import load_workload, save_workload  # noqa: E402
from ddpsim.workload.gpus import gpu_named, gpu_of  # noqa: E402

counted = functools.cache(model_shape)
"""Operators of shipped models, each counted once in a process: a second of a processor for the larger ones."""
# Multiply-adds of a forward pass, in units of 1e9: torchvision's model pages; BERT by 2 x parameters x tokens.
PUBLISHED_GMAC = {"resnet50": 4.09, "resnet152": 11.51, "resnext50_32x4d": 4.23, "vgg16": 15.47, "vit-b16": 17.56}


@pytest.fixture(autouse=True)
def _counted_once(monkeypatch):
    monkeypatch.setattr("ddpexec.capturing.estimate.model_shape", counted)


@pytest.mark.parametrize("name", PUBLISHED_GMAC)
def test_forward_arithmetic_is_the_published(name):
    shape = counted(name, 2)
    flops = sum(operator.flops for operator in shape.forward) / 2
    assert flops / 2e9 == pytest.approx(PUBLISHED_GMAC[name], rel=0.02)
    # Backward computes two products for each of forward's, but none for the gradient of the images.
    assert sum(operator.flops for operator in shape.backward) / 4 == pytest.approx(flops, rel=0.05)


def test_transformer_arithmetic_is_two_a_parameter_and_token():
    flops = sum(operator.flops for operator in counted("bert-base", 1).forward)
    matrices = 12 * 12 * 768**2
    attention = 12 * 4 * 128**2 * 768
    decoder = 2 * 20 * 30522 * 768
    assert flops == pytest.approx(2 * matrices * 128 + attention + decoder, rel=0.001)


LARGE = ("bert-large", "resnet152")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.needs("minutes")] * (name in LARGE)) for name in MODELS]
)
def test_every_gradient_has_its_operator(name):
    shape = counted(name, 2)
    found = [index for operator in shape.backward for index in operator.gradients]
    assert sorted(found) == list(range(len(shape.parameters)))


@pytest.mark.parametrize(
    "key", [pytest.param(key, id=key[0], marks=[pytest.mark.needs("minutes")] * (key[0] in LARGE)) for key in ANCHORS]
)
def test_published_steps_are_met(key):
    model, gpu, precision, batch_size = key
    workload, anchor = estimate_model(model, gpu_named(gpu), precision, batch_size), ANCHORS[key]
    phases = (
        [workload.backward] if anchor.phase == "backward" else [workload.forward, workload.backward, workload.optimizer]
    )
    assert sum(phase.device_s[0] for phase in phases) == pytest.approx(anchor.seconds, rel=1e-6)
    # The roofline alone was near: scaling is a correction, not the estimate.
    assert workload.provenance["scale"] == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("gpu", "precision", "images_per_s", "within"),
    # NVIDIA DeepLearningExamples, ResNet-50 v1.5, one GPU; amp with channels last, which torch does not do by itself.
    [("A100", "tf32", 938, 0.1), ("V100", "fp32", 367, 0.1), ("A100", "amp", 2470, 0.25)],
)
def test_throughput_is_near_what_was_published_and_not_used(gpu, precision, images_per_s, within):
    workload = estimate_model("resnet50", gpu_named(gpu), precision, 256)
    step = sum(phase.device_s[0] for phase in (workload.forward, workload.backward, workload.optimizer))
    assert workload.provenance["scaled_to"] is None
    assert 256 / step == pytest.approx(images_per_s, rel=within)


@pytest.mark.needs("minutes")
def test_shipped_files_are_what_the_command_makes(tmp_path):
    """Byte for byte, so that a change to the estimate is a change to the files."""
    made = {path.name: gzip.decompress(path.read_bytes()) for path in write_shipped(tmp_path)}
    assert len(made) == len(ESTIMATED) * (len(SHIPPED) + 1)
    shipped_bytes = {
        name: gzip.decompress(shipped.find("workload", name.removesuffix(".json.gz")).read_bytes()) for name in made
    }
    stale = [name for name, content in made.items() if content != shipped_bytes[name]]
    assert stale == [], "run `python -m ddpexec estimate --all -o traces/workloads`"


def test_a_bare_name_is_the_v100s():
    bare, named = load_workload("resnet50"), load_workload("resnet50@v100-fp32-b32")
    assert (bare.name, bare.device, bare.precision, bare.batch_size) == ("resnet50", "V100", "fp32", 32)
    assert (bare.gradient_ready_s == named.gradient_ready_s).all()
    assert bare.estimated


def test_the_command(tmp_path, refusal):
    path = tmp_path / "w.json"
    refusal("estimate", "--model", "mlp", "-b", 8, "-o", path)  # batch size is spelled out
    made = estimated(tmp_path, "--gpu", "a100", "--precision", "amp", "--batch-size", "8")
    assert made.name == "mlp@a100-amp-b8"
    said = refusal("estimate", "--model", "mlp", "--gpu", "V100", "--precision", "tf32", "-o", path)
    assert "V100 has no figures for precision 'tf32'" in said


@pytest.mark.parametrize("options", [["--jitter", "3%"], ["--gpu", "A100"], ["--batch-size", "8"], ["--pace-of", "w"]])
def test_all_shipped_workloads_are_as_they_are(tmp_path, refusal, options):
    said = refusal("estimate", "--all", *options, "-o", tmp_path / "w")
    assert f"--all and {options[0]} are both given" in said


def estimated(tmp_path, *options):
    path = tmp_path / "w.json"
    with pytest.raises(SystemExit) as end:
        main(["estimate", "--model", "mlp", *options, "-o", str(path)])
    assert end.value.code == (0 if path.exists() else 2)
    return load_workload(path) if path.exists() else None


def test_a_gpu_by_options_travels_with_the_workload(tmp_path, capsys):
    by_options = ["--memory-bandwidth", "1792GB/s", "--peak", "amp=504T", "--peak", "fp32=126T"]
    made = estimated(tmp_path, *by_options, "--precision", "amp")
    assert made.device == "GPU"
    assert gpu_of(made.device, made.provenance).memory_Bps == 1.792e12
    changed = estimated(tmp_path, "--gpu", "A100", "--memory-bandwidth", "2039GB/s")
    assert gpu_of(changed.device, changed.provenance).memory_Bps == 2.039e12
    (tmp_path / "w.json").unlink()
    capsys.readouterr()
    for wrong in (by_options[2:], by_options[:2], ["--gpu", "A1000"], ["--peak", "fp64=1T"], ["--memory", "96"]):
        assert estimated(tmp_path, *wrong) is None
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_anchor_is_the_whole_steps_time_and_leaves_a_named_optimizer_alone(tmp_path, capsys):
    options = ["--gpu", "V100", "--batch-size", "4096", "--optimizer", "adamw-foreach"]
    plain = estimated(tmp_path, *options)
    met = estimated(tmp_path, *options, "--one-gpu-step", "122.18ms")
    assert sum(p.device_s[0] for p in (met.forward, met.backward, met.optimizer)) == pytest.approx(0.12218, rel=1e-6)
    assert met.optimizer.device_s == plain.optimizer.device_s
    assert "times the roofline's" in capsys.readouterr().err
    (tmp_path / "w.json").unlink()
    assert estimated(tmp_path, *options, "--one-gpu-step", "10us") is None
    assert "below the roofline's floor" in capsys.readouterr().err
    assert estimated(tmp_path, "--gpu", "V100", "--clip-gradients") is None


def test_a_cpus_capture_lends_its_operators_and_a_gpus_its_times(tmp_path, capsys):
    recorded = estimated(tmp_path, "--gpu", "V100", "--batch-size", "16")
    source = tmp_path / "capture.json"
    save_workload(replace(recorded, device="cpu", name="mlp@cpu-fp32-b16"), source)
    made = carry_model(load_workload(source), gpu_named("B200").with_fitted(), precision="amp").workload
    assert (made.name, made.batch_size, made.provenance["carried_from"]) == ("mlp@b200-amp-b16", 16, "mlp@cpu-fp32-b16")
    save_workload(recorded, source)
    with pytest.raises(SystemExit) as end:
        main(["estimate", "--from", str(source), "--gpu", "B200", "-o", str(tmp_path / "b200.json")])
    assert end.value.code == 0
    carried = load_workload(tmp_path / "b200.json")
    assert carried.device == "B200"
    assert carried.forward.device_s[0] < recorded.forward.device_s[0]
    with pytest.raises(WorkloadError, match="its parameters are not those of vgg16"):
        carry_model(recorded, gpu_named("B200").with_fitted(), "vgg16")


def test_the_pace_of_an_anchored_estimate_serves_another_batch(tmp_path):
    options = ["--gpu", "V100", "--optimizer", "sgd"]
    plain = estimated(tmp_path, *options, "--batch-size", "8192")
    anchored = estimated(tmp_path, *options, "--batch-size", "4096", "--one-gpu-step", "60ms")
    (tmp_path / "w.json").rename(tmp_path / "anchored.json")
    taken = estimated(tmp_path, *options, "--batch-size", "8192", "--pace-of", str(tmp_path / "anchored.json"))
    factor = anchored.provenance["pace"]["phases"][0]
    assert taken.backward.device_s[0] == pytest.approx(plain.backward.device_s[0] * factor, rel=1e-3)


def test_an_estimate_goes_to_standard_output_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["estimate", "--model", "mlp", "--gpu", "V100", "-o", "-"])
    assert json.loads(capsys.readouterr().out)["schema"] == "ddpsim.workload/1"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_an_estimate_makes_is_announced(tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["estimate", "--model", "mlp", "--gpu", "V100", "-o", str(tmp_path / "new" / "mlp.json")])
    assert "is no folder yet" in capsys.readouterr().err


def test_for_which_gpu_is_asked_for(tmp_path, capsys):
    assert estimated(tmp_path) is None
    told = capsys.readouterr().err
    assert told.startswith("error: --gpu: for which GPU is not said; give one: A10, A100, ")
    assert " H100, " in told
    assert told.endswith("or describe it: --gpu-file, or --memory-bandwidth with --peak\n")


def test_the_pace_of_another_gpu_is_said_and_that_of_no_anchor_refused(tmp_path, capsys):
    estimated(tmp_path, "--gpu", "V100", "--optimizer", "sgd", "--batch-size", "4096", "--one-gpu-step", "60ms")
    (tmp_path / "w.json").rename(tmp_path / "anchored.json")
    estimated(tmp_path, "--gpu", "A100", "--pace-of", str(tmp_path / "anchored.json"))
    assert "anchored.json has the pace of V100, taken for A100" in capsys.readouterr().err
    estimated(tmp_path, "--gpu", "V100-32GB", "--pace-of", str(tmp_path / "anchored.json"))
    assert "the pace of" not in capsys.readouterr().err
    estimated(tmp_path, "--gpu", "V100")
    (tmp_path / "w.json").rename(tmp_path / "plain.json")
    assert estimated(tmp_path, "--gpu", "V100", "--pace-of", str(tmp_path / "plain.json")) is None
    assert "plain.json: no estimate that was scaled to a measured step" in capsys.readouterr().err


def test_an_unknown_gpu_can_be_described(tmp_path, capsys):
    for name in ("Voodoo", "B2000"):
        assert estimated(tmp_path, "--gpu", name) is None
        assert "; or describe it: --gpu-file, or --memory-bandwidth with --peak" in capsys.readouterr().err


def test_a_gpus_file_is_its_own_source(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: Mine\nmemory_bandwidth: 1792GB/s\npeaks: {fp32: 126TFLOP/s}\n")
    made = estimated(tmp_path, "--gpu-file", str(tmp_path / "mine.yaml"))
    assert made.provenance["gpu"] == "given by the user"


@pytest.mark.parametrize(
    ("factor", "model"),
    [
        *((0.5, model) for model in ("mlp", "resnet50", "bert-base-s64", "vit-b16")),
        (3, "mlp"),
        *(
            pytest.param(3, model, marks=pytest.mark.needs("minutes"))
            for model in ("resnet50", "bert-base-s64", "vit-b16")
        ),
    ],
)
def test_another_batch_is_what_counting_it_finds(model, factor):
    """Traffic of one operator may be off where a tensor of a few bytes, or of indices, does not go with the batch."""
    known = counted(model)
    batch = int(known.batch_size * factor)
    scaled, there = known.operators(known.parameters).with_batch(batch), counted(model, batch)
    for ours, theirs in ((scaled.forward, there.forward), (scaled.backward, there.backward)):
        assert [(o.kind, o.gradients) for o in ours] == [(o.kind, o.gradients) for o in theirs]
        assert [o.flops for o in ours] == pytest.approx([o.flops for o in theirs], rel=1e-12)
        whole = sum(o.traffic_bytes for o in theirs)
        assert sum(abs(o.traffic_bytes - t.traffic_bytes) for o, t in zip(ours, theirs, strict=True)) < 0.005 * whole
