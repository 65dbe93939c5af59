import pytest
import torch

from ddpexec.capturing.describe import describe_buffers
from ddpexec.capturing.models import LONGEST, MODELS, build, flush_denormals
from ddpexec.ddp.parameters import collect
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.common.errors import InputError
from ddpsim.common.units import MIB

# torchvision's model pages and Hugging Face's `num_parameters()`; the MLP's is 6 x (2048 x 2048 + 2048).
PUBLISHED = {
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2-small": 124_439_808,
    "gpt2-mini": 5_853_184,
    "vgg16": 138_357_544,
    "vit-b16": 86_567_656,
    "mlp": 25_178_112,
}


def test_every_model_has_a_published_count():
    assert set(PUBLISHED) == set(MODELS)
    counts = {name: sum(p.numel() for p in build(name, "meta").module.parameters()) for name in MODELS}
    assert counts == PUBLISHED


def test_resnet50_gives_the_five_buckets_of_a_real_run():
    plan = rebuilt_plan(collect(build("resnet50", "meta").module).policy, BucketCaps())
    # A Kineto trace of torch's own DDP on two A100: float32 elements of its five allreduces.
    elements = [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
    assert [bucket.size_bytes for bucket in plan.buckets] == [4 * count for count in elements]
    assert [round(bucket.size_bytes / MIB, 2) for bucket in plan.buckets] == [7.82, 30.04, 25.04, 25.32, 9.27]
    assert [len(bucket.parameters) for bucket in plan.buckets] == [2, 15, 12, 51, 81]


def test_resnet_buffers_are_three_a_batch_norm():
    buffers = describe_buffers(build("resnet50", "meta").module)
    assert len(buffers) == 3 * 53
    assert buffers[0].name == "bn1.running_mean"
    assert sum(b.size_bytes for b in buffers) == 2 * 4 * 26_560 + 53 * 8


def test_registration_order_is_torchvisions_and_hugging_faces():
    def names(model):
        return [name for name, _ in build(model, "meta").module.named_parameters()]

    assert names("resnet50")[-2:] == ["fc.weight", "fc.bias"]
    assert names("vit-b16")[:5] == [
        "class_token",
        "conv_proj.weight",
        "conv_proj.bias",
        "encoder.pos_embedding",
        "encoder.layers.encoder_layer_0.ln_1.weight",
    ]
    assert names("bert-base")[5] == "encoder.layer.0.attention.self.query.weight"
    assert names("gpt2-small")[2] == "transformer.h.0.ln_1.weight"
    assert names("vgg16")[26] == "classifier.0.weight"


def test_batches_repeat_with_their_seed():
    model = build("mlp", "meta")
    batches = [model.make_batch(3, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(batches[0].inputs[0], batches[1].inputs[0])
    assert batches[0].inputs[0].shape == (3, 2048)


@pytest.mark.parametrize("name", LONGEST)
def test_a_shorter_sequence_leaves_the_parameters_as_they_are(name):
    usual, short = build(name, "meta"), build(f"{name}-s64", "meta")
    assert (short.name, short.sample) == (f"{name}-s64", "sequence of 64 tokens")
    assert short.make_batch(2, "meta").inputs[0].shape == (2, 64)
    assert usual.make_batch(2, "meta").inputs[0].shape[1] > 64
    shapes = [[(n, p.shape) for n, p in model.module.named_parameters()] for model in (usual, short)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", LONGEST)
def test_a_models_own_length_is_its_own_name(name):
    length = build(name, "meta").make_batch(1, "meta").inputs[0].shape[1]
    assert build(f"{name}-s{length}", "meta").name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vgg16-s64", "vgg16 has no sequences, but 'vgg16-s64' gives a length; write vgg16"),
        ("gpt2-small-s1025", "'gpt2-small-s1025' has sequences of 1025 tokens; give 1 to 1024 tokens"),
        ("bert-base-s0", "'bert-base-s0' has sequences of 0 tokens; give 1 to 512 tokens"),
        ("resnet5", "unknown model 'resnet5'; did you mean .*resnet50"),
        ("gpt3-s64", "unknown model 'gpt3-s64'"),
    ],
)
def test_a_name_or_a_length_that_cannot_be_is_refused(name, message):
    with pytest.raises(InputError, match=f"^{message}"):
        build(name)


def test_denormal_gradients_of_a_batch_that_a_model_knows_are_zero_while_it_trains_and_no_longer() -> None:
    tiny = torch.full((4,), 1e-38)
    with flush_denormals():
        assert not (tiny * 1e-2).any()
        with flush_denormals():
            pass
        assert not (tiny * 1e-2).any()
    assert (tiny * 1e-2).all()
