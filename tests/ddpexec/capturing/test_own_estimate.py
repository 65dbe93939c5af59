"""Estimates of one's own step, against closed forms, against real captures, and against a real step's memory."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddpexec.capturing.capture import CaptureSettings, capture_step
from ddpexec.capturing.estimate import estimate_module, estimate_step
from ddpexec.capturing.models import build
from ddpexec.capturing.shapes import FAKE, REAL, module_shape, shape_of, step_shape
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.workload.expert_parallel import experts_on_ranks
from ddpsim.workload.files import load_workload
from tests.ddpexec.capturing import own_steps
from tests.ddpexec.capturing.own_steps import BATCH, LAYERS, TOKENS, VOCABULARY, WIDTH, Transformer

STEPS = "tests.ddpexec.capturing.own_steps"
QUICK = CaptureSettings(iterations=1, warm_up=1, threads=1)
ON_FAKES = (
    "tied", "checkpointed", "reentrant", "weighted_experts", "two_losses", "convolutional", "recurrent", "autocast",
    "narrow", "sparse", "loaded",
)  # fmt: skip


def flops(operators):
    return sum(operator.flops for operator in operators)


@pytest.mark.parametrize("name", [*ON_FAKES, "one_expert_each", "conditional"])
def test_gradients_come_in_the_order_of_a_real_capture(name):
    notes = []
    estimated = estimate_step(f"{STEPS}:{name}", "A100", note=notes.append)
    captured = capture_step(f"{STEPS}:{name}", QUICK)
    assert estimated.arrival_order() == captured.arrival_order()
    missing = np.isnan(captured.gradient_hook_s[0])
    assert np.array_equal(np.isnan(estimated.gradient_hook_s[0]), missing)
    assert [(p.name, p.shape, p.dtype, p.sparse) for p in estimated.parameters] == [
        (p.name, p.shape, p.dtype, p.sparse) for p in captured.parameters
    ]
    assert (estimated.buffers, estimated.batch_size) == (captured.buffers, captured.batch_size)
    assert (estimated.precision, estimated.estimated) == (captured.precision, True)
    assert estimated.provenance["counted"].startswith(FAKE if name in ON_FAKES else REAL)
    assert len(notes) == (name not in ON_FAKES)


def transformer_flops(tokens):
    """Return multiply-adds, twice, of one forward: four WIDTH x WIDTH products a layer for attention, eight for the
    perceptron, attention itself, and the head."""
    layer = 12 * WIDTH**2 * tokens + 2 * tokens * TOKENS * WIDTH
    return 2 * (LAYERS * layer + WIDTH * VOCABULARY * tokens)


def attention_flops(tokens):
    return 2 * 2 * tokens * TOKENS * WIDTH * LAYERS


def test_arithmetic_of_a_transformer_is_the_closed_form():
    shape = step_shape(own_steps.tied).shape
    tokens = BATCH * TOKENS
    assert flops(shape.forward) == transformer_flops(tokens)
    # Two products backward for each one forward; attention computes its scores again: five for two.
    assert flops(shape.backward) == 2 * transformer_flops(tokens) + attention_flops(tokens) / 2


@pytest.mark.parametrize("step", [own_steps.checkpointed, own_steps.reentrant])
def test_a_checkpointed_forward_is_counted_again_in_backward(step):
    plain, again = step_shape(own_steps.tied).shape, step_shape(step).shape
    assert flops(again.forward) == flops(plain.forward)
    head = 2 * WIDTH * VOCABULARY * BATCH * TOKENS
    recomputed = flops(again.backward) - flops(plain.backward)
    # The last layer of a block need not be computed again: what it saves is there before it.
    assert 0.6 * (flops(plain.forward) - head) <= recomputed <= flops(plain.forward) - head


def test_a_shipped_model_as_ones_own_step_has_the_same_operators():
    made = build("resnet50")

    def train():
        batch = made.make_batch(2)
        return made.module, lambda: made.loss(made.module(*batch.inputs), batch).backward()

    own, shipped = step_shape(train).shape, shape_of(build("resnet50", "meta"), 2)
    assert own.parameters[0].shape == (64, 3, 7, 7)
    for phase in ("forward", "backward"):
        assert flops(getattr(own, phase)) == flops(getattr(shipped, phase))
        assert len(getattr(own, phase)) == len(getattr(shipped, phase))
    assert flops(own.forward) / 4 == pytest.approx(4.09e9, rel=0.01)  # torchvision: 4.09 GMAC an image


def test_transposed_and_recurrent_arithmetic_is_the_closed_form():
    # 8 channels of 3x3x3 at 6x6 places, then 2x2 weights at the same places from 8 channels to 4; a batch of 2.
    shape = step_shape(own_steps.convolutional).shape
    assert flops(shape.forward) == 2 * 2 * 36 * (8 * 27 + 8 * 4 * 4)
    # Four gates, each of input and hidden state, for 5 steps of a batch of 2.
    shape = step_shape(own_steps.recurrent).shape
    assert flops(shape.forward) == 2 * 5 * 2 * 4 * (8 * 8 + 8 * 8)
    assert flops(shape.backward) == 2 * flops(shape.forward)


def test_real_and_fake_steps_count_the_same_arithmetic():
    _module, step = own_steps.weighted_experts()
    with FlopCounterMode(display=False) as counter:
        step()
    shape = step_shape(own_steps.weighted_experts).shape
    assert flops(shape.forward) + flops(shape.backward) == counter.get_total_flops()


def test_experts_of_ones_own_step_are_spread_over_ranks():
    # All tokens by each of four experts, or each token by one: a rank computes as many, whatever its experts got.
    for make, rows in ((own_steps.weighted_experts, 4 * 16), (own_steps.one_expert_each, 16)):
        shape = step_shape(make).shape
        phases = shape.forward, shape.backward
        part = experts_on_ranks(*phases, shape.forward_use, shape.parameters, 2, "fp32")
        assert [each.size_bytes for each in part.forward_messages] == [rows * WIDTH * 4] * 2
        assert flops(part.forward) == pytest.approx(flops(shape.forward))
        assert len(part.parameters) == len(shape.parameters) - 2 * 4


def real_peak(make):
    """Return the bytes that one real step allocates at its peak, by the profiler: tensors made since forward began."""
    module, step = make()
    for parameter in module.parameters():
        parameter.grad = None
    live = peak = 0
    module.register_forward_pre_hook(lambda *_: None)
    with torch.profiler.profile(profile_memory=True) as profiled:
        step()
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def without_optimizer(reentrant):
    def make():
        net, given = Transformer(reentrant=reentrant, dropout=0.0), own_steps.tokens()
        return net, lambda: net(given).square().mean().backward()

    return make


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_activations_at_the_peak_are_those_of_a_real_step(reentrant):
    made = without_optimizer(reentrant)
    measured = real_peak(made)
    shape = step_shape(made).shape
    gradients = sum(p.size_bytes for p in shape.parameters)
    counted = shape.activations.in_precision("fp32")
    # The real peak has in it the gradients that are complete by then.
    assert counted <= measured * 1.02
    assert measured <= (counted + gradients) * 1.02


def test_forward_use_is_the_first_operator_that_reads_a_parameter():
    shape = step_shape(own_steps.tied).shape
    names = [parameter.name for parameter in shape.parameters]
    use = dict(zip(names, shape.forward_use, strict=True))
    assert use["embedding.weight"] == 0
    assert use["unused"] is None
    layers = [use[f"blocks.{i}.{name}"] for i in range(LAYERS) for name in ("self_attn.in_proj_weight", "norm1.bias")]
    assert layers == sorted(layers)
    assert shape.forward[layers[0]].kind == "gemm"
    workload = estimate_step(own_steps.tied, "A100")
    assert np.isnan(workload.forward_use_s.device_s).sum() == 1
    assert np.nanmax(workload.forward_use_s.host_s) < workload.forward.host_s[0]


def used(net, x):
    shape = module_shape(net, x).shape
    return dict(zip((parameter.name for parameter in shape.parameters), shape.forward_use, strict=True))


def test_a_sequential_model_needs_its_parameters_in_the_order_of_registration():
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64))]
    workload = estimate_module(nn.Sequential(*layers), torch.ones(8, 64), "H100")
    for times in (workload.forward_use_s.host_s, workload.forward_use_s.device_s):
        by_layer = times.reshape(-1, 2)  # each has a weight and a bias, which one operator reads
        assert (by_layer[:, 0] == by_layer[:, 1]).all()
        assert (np.diff(by_layer[:, 0]) > 0).all()
        assert times[0] == 0


def test_views_transposes_casts_and_queries_of_a_parameter_are_uses_of_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            names = ("late", "transposed", "cast", "query", "detached", "left_alone")
            shapes = ((8, 4), (4, 8), (4, 4), (1, 2, 6, 4), (4,), (4,))
            for name, shape in zip(names, shapes, strict=True):
                self.register_parameter(name, nn.Parameter(torch.ones(shape)))

        def forward(self, x):
            x = x + self.detached.detach()
            x = x @ self.cast.to(torch.float64).to(x.dtype)
            x = x @ self.transposed.t().reshape(4, 8)[:, :4]
            x = x @ self.late.view(4, 8)[:, :4]
            key = x.expand(1, 2, len(x), 4)
            return nn.functional.scaled_dot_product_attention(self.query, key, key)

    use = used(Net(), torch.ones(3, 4))
    assert use.pop("left_alone") is None
    assert sorted(use, key=use.get) == ["detached", "cast", "transposed", "late", "query"]
    assert use["transposed"] < use["late"] < use["query"]


def test_layers_that_are_deep_copies_are_counted_as_if_they_were_real():
    # TransformerEncoder copies the layer it is given: of fakes where the step makes it.
    def make():
        layer = nn.TransformerEncoderLayer(WIDTH, own_steps.HEADS, batch_first=True)
        return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), torch.ones(2, 5, WIDTH)

    def step():
        net, x = make()
        return net, lambda: net(x).sum().backward()

    fake, real = step_shape(step).shape, module_shape(*make()).shape
    assert fake.forward_use == real.forward_use
    assert None not in fake.forward_use
    assert (fake.forward, fake.backward) == (real.forward, real.backward)


@pytest.mark.parametrize(
    ("make", "kind", "synchronises"),
    [
        (own_steps.tied, "adamw-foreach", ()),
        (own_steps.two_losses, "momentum", ()),
        (own_steps.sparse, "sgd", ()),
        (own_steps.autocast, "adamw-fused+clip", ("after_optimizer",)),
        (own_steps.conditional, "adamw", ("after_forward",)),
    ],
)
def test_the_optimizer_and_where_the_host_waits_are_seen(make, kind, synchronises):
    shape = step_shape(make).shape
    assert (shape.optimizer_kind, shape.synchronises) == (kind, synchronises)


def test_nothing_of_a_count_stays_behind():
    backward, attention = torch.autograd.backward, nn.functional.scaled_dot_product_attention
    swap = torch.utils.swap_tensors
    for make in (own_steps.tied, own_steps.conditional):
        step_shape(make)
    with pytest.raises(InputError):
        step_shape(own_steps.raising)
    assert (torch.autograd.backward, nn.functional.scaled_dot_product_attention) == (backward, attention)
    assert torch.utils.swap_tensors is swap
    assert type(torch.ones(1)) is torch.Tensor


def test_a_module_with_a_batch():
    net = Transformer(dropout=0.0)
    weight = net.head.weight
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    workload = estimate_module(net, own_steps.tokens(), "H100", "bf16", optimizer=optimizer, name="mine")
    assert (workload.name, workload.optimizer_kind) == (f"mine@h100-bf16-b{BATCH}", "sgd")
    assert workload.arrival_order() == capture_step(f"{STEPS}:tied", QUICK).arrival_order()
    assert net.head.weight is weight
    assert weight.grad is None
    # A fake copy of it shares what it shares.
    assert len(workload.parameters) == len(list(net.parameters()))
    assert "embedding.weight" in {p.name for p in workload.parameters}
    assert "head.weight" not in {p.name for p in workload.parameters}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_a_batch_and_a_loss_may_be(device):
    net = nn.Bilinear(4, 4, 2, device=device)
    x, y = torch.ones(3, 4, device=device), torch.ones(3, 4, device=device)
    given = [(x, y), [x, y], {"input1": x, "input2": y}]
    shapes = [module_shape(net, each, loss=lambda out: out.square().sum()).shape for each in given]
    assert {shape.batch_size for shape in shapes} == {3}
    assert len({flops(shape.forward) for shape in shapes}) == 1
    with pytest.raises(InputError, match="the module returns tuple, without a loss; give loss="):
        module_shape(nn.LSTM(4, 4, device=device), x)


def test_a_precision_that_the_step_has_not_is_refused():
    assert estimate_step(own_steps.autocast, "A100").precision == "amp"
    assert estimate_step(own_steps.autocast_on_gpus, "A100").precision == "amp"  # without a GPU torch does without
    assert estimate_step(own_steps.tied, "A100", "amp").precision == "amp"
    with pytest.raises(InputError, match="--precision: the step computes in amp, not in bf16; leave it out"):
        estimate_step(own_steps.autocast, "A100", "bf16")
    with pytest.raises(WorkloadError, match="GP100 has no figures for precision 'amp'"):
        estimate_step(own_steps.autocast, "GP100")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raising", r"error: --step \S+:raising: own_steps.py:\d+: RuntimeError: mat1 and mat2 shapes cannot be mult"),
        ("raising_at_once", r"own_steps.py:\d+: ValueError: no data here; mend the step"),
        ("on_a_gpu", r"own_steps.py:\d+: \w+: .*; leave `.cuda\(\)` out, .*: an estimate needs no GPU"),
        ("nothing", r"error: --step: \S+:nothing returned NoneType; return \(module, step\)"),
        ("no_backward", "error: iteration 0: no backward; give a step with one forward of the module"),
        ("elsewhere", "error: backward: no gradient came to any parameter of the module; let backward"),
        ("frozen", "error: estimate: no parameter of the module needs a gradient"),
        ("absent", "error: --step: .* cannot be imported: module .* has no attribute 'absent'"),
    ],
)
def test_bad_steps_are_one_message(name, message, tmp_path, refusal):
    error = refusal("estimate", "--step", f"{STEPS}:{name}", "--gpu", "A100", "-o", tmp_path / "w.json")
    assert len(error.strip().splitlines()) == 1, error
    assert re.search(message, error), error
    assert not list(tmp_path.iterdir())


@pytest.mark.needs("wait")
def test_the_command_says_where_it_took_a_real_step(tmp_path):
    path = tmp_path / "w.json"
    asked = ["estimate", "--step", f"{STEPS}:conditional", "--gpu", "V100", "-o", str(path)]
    command = [sys.executable, "-m", "ddpexec", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith(
        "note: the step needs real tensors (aten._local_scalar_dense.default): counted in one"
    )
    workload = load_workload(path)
    assert workload.name == f"{STEPS}.conditional@v100-fp32-b2"
    assert workload.provenance["counted"].startswith(REAL)
