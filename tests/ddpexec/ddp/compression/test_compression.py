"""Compressed communication hooks: codecs, error feedback, and training with them under torch's DDP."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from ddpexec.ddp.compression import (
    AdaptiveState,
    ErrorFeedback,
    FlatLayout,
    HalfCodec,
    LinearCodec,
    OneBitCodec,
    TopKCodec,
    adaptive_hook,
    feedback_hook,
    hook_for,
)
from ddpexec.ddp.compression.feedback import CODECS as ADAPTIVE_CODECS
from ddpexec.microbench.codecs import fit
from ddpsim.bucketing import Parameter
from ddpsim.collectives.constant import Constant
from ddpsim.common.errors import InputError
from ddpsim.schedules import compression
from tests.ddpexec.groups import ranks
from tests.profile import examples

CODECS = [OneBitCodec(), LinearCodec(), HalfCodec(), TopKCodec(0.1)]
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


class Bucket:
    """What a hook needs of a GradBucket."""

    def __init__(self, parameters, gradients, index=0):
        self._parameters, self._index = parameters, index
        self._buffer = torch.cat([g.flatten() for g in gradients])

    def index(self):
        return self._index

    def buffer(self):
        return self._buffer

    def gradients(self):
        return list(self._buffer.split([p.numel() for p in self._parameters]))

    def parameters(self):
        return self._parameters


def decoded(codec, flat, lengths):
    layout = FlatLayout(lengths, flat.device)
    into = torch.zeros_like(flat)
    codec.decode(codec.encode(flat, layout), layout, into)
    return into


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 99), st.sampled_from([torch.float32, torch.float64]))
def test_one_bit_keeps_signs_and_the_sums_of_each_sign(lengths, seed, dtype):
    flat = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed), dtype=dtype)
    for piece, written in zip(flat.split(lengths), decoded(OneBitCodec(), flat, lengths).split(lengths), strict=True):
        assert torch.equal(written > 0, piece > 0)
        for sign in (piece > 0, piece <= 0):
            assert written[sign].sum().item() == pytest.approx(piece[sign].sum().item(), abs=1e-5)
            assert written[sign].unique().numel() <= 1


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 99))
def test_errors_of_the_other_codecs(lengths, seed):
    flat = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed))
    steps = torch.cat([p.abs().max().expand_as(p) / 127 if p.numel() else p for p in flat.split(lengths)])
    assert ((decoded(LinearCodec(), flat, lengths) - flat).abs() <= 0.501 * steps).all()
    assert ((decoded(HalfCodec(), flat, lengths) - flat).abs() <= flat.abs() / 256).all()
    kept = decoded(TopKCodec(0.1), flat, lengths)
    assert torch.equal(kept[kept != 0], flat[kept != 0])
    smallest_kept, largest_left = kept[kept != 0].abs().min(), (flat - kept).abs().max()
    assert smallest_kept >= largest_left


SENT = {name: hook_for(name)[0].codec for name in ("onebit", "topk:0.1")}
SENT |= {f"adaptive:{bits}": codec for bits, codec in ADAPTIVE_CODECS.items()}


@pytest.mark.parametrize("name", sorted(SENT))
def test_payloads_have_the_size_that_the_simulator_counts(name):
    lengths = [7, 64, 1, 129]
    payload = SENT[name].encode(torch.randn(sum(lengths)), FlatLayout(lengths, torch.device("cpu")))
    parameters = [Parameter(f"p{n}", (n,)) for n in lengths]
    message = compression.scheme(name).messages(parameters)[0]
    assert payload.numel() == message.size_bytes
    assert compression.scheme("adaptive:32").messages(parameters) == compression.scheme("none").messages(parameters)


def test_adaptive_precision_has_a_name():
    state, hook = hook_for("adaptive")
    assert isinstance(state, AdaptiveState)
    assert hook is adaptive_hook


@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), codec=st.sampled_from(CODECS))
def test_what_is_sent_sums_to_the_gradients_but_for_the_last_error(one_rank, data, codec):
    """sum of results = sum of gradients - last error: nothing is lost, also where buckets are rebuilt on the way."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    parameters = [nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (5, 1, 30, 8)]
    state = ErrorFeedback(codec)
    sent = {p: torch.zeros_like(p) for p in parameters}
    given = {p: torch.zeros_like(p) for p in parameters}
    for _ in range(6):
        order = data.draw(st.permutations(parameters))
        cut = data.draw(st.integers(0, 4))
        for members in filter(None, (order[:cut], order[cut:])):
            gradients = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in members]
            result = feedback_hook(state, Bucket(members, gradients)).wait()
            for p, g, r in zip(members, gradients, result.split([p.numel() for p in members]), strict=True):
                given[p] += g
                sent[p] += r
    state.codec = TopKCodec(1.0)  # sends all that there is
    last = feedback_hook(state, Bucket(parameters, [torch.zeros_like(p) for p in parameters])).wait()
    for p, error in zip(parameters, last.split([p.numel() for p in parameters]), strict=True):
        assert torch.allclose(sent[p] + error, given[p], atol=1e-5)


def test_an_infinite_gradient_is_passed_on_and_then_forgotten(one_rank):
    parameter = nn.Parameter(torch.zeros(16))
    for codec in (OneBitCodec(), HalfCodec(), TopKCodec(0.1)):
        state = ErrorFeedback(codec)
        bad = torch.ones(16)
        bad[3] = float("inf")
        assert not feedback_hook(state, Bucket([parameter], [bad])).wait().isfinite().all()
        assert feedback_hook(state, Bucket([parameter], [torch.ones(16)])).wait().isfinite().all()


def test_half_precision_gradients_keep_their_dtype(one_rank):
    parameter = nn.Parameter(torch.zeros(64, dtype=torch.bfloat16))
    state = ErrorFeedback(OneBitCodec())
    bucket = Bucket([parameter], [torch.randn(64).bfloat16()])
    assert feedback_hook(state, bucket).wait().dtype == torch.bfloat16
    layout, error = state.layout(bucket), 1 + 2.0**-12  # bfloat16 would round it to 1
    state.keep(bucket, layout, torch.full((64,), error))
    nothing = Bucket([parameter], [torch.zeros(64).bfloat16()])
    assert torch.equal(state.correct(nothing, layout), torch.full((64,), error))


@pytest.mark.parametrize(("tolerance", "bits"), [(0.9, 1), (0.05, 8), (0.004, 16), (0.0, 32)])
def test_adaptive_precision_takes_the_fewest_bits_that_the_tolerance_allows(one_rank, tolerance, bits):
    parameter = nn.Parameter(torch.zeros(1000))
    state = AdaptiveState(tolerance, every=2)
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    used = []
    for _ in range(3):
        adaptive_hook(state, Bucket([parameter], [gradient.clone()])).wait()
        used.append(state.bits[0])
    assert used == [bits] * 3
    result = adaptive_hook(state, Bucket([parameter], [torch.zeros(1000)])).wait()
    assert torch.isfinite(result).all()


def test_adaptive_precision_starts_anew_with_a_rebuilt_bucket(one_rank):
    state = AdaptiveState(0.9, every=100)
    parameters = [nn.Parameter(torch.zeros(100)) for _ in range(2)]
    adaptive_hook(state, Bucket(parameters, [torch.randn(100)] * 2)).wait()
    assert state.bits[0] == 1
    assert state.start(Bucket(parameters[:1], [torch.randn(100)])) == 32


@pytest.mark.parametrize("options", [{"tolerance": -1}, {"every": 0}])
def test_adaptive_options_out_of_range(options):
    with pytest.raises(InputError, match=next(iter(options))):
        AdaptiveState(**options)


class SquaredNorm(nn.Module):
    """A module whose forward is the squared norm of another's parameters."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        return sum(p.square().sum() for p in self.model.parameters())


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_powersgd_sends_what_torch_reports(one_rank, rank):
    scheme = compression.scheme(f"powersgd:{rank}")
    state, hook = hook_for(scheme.name)
    state.start_powerSGD_iter = 2
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 7), nn.Conv1d(1, 6, 1, bias=False), nn.LayerNorm(12))
    parameters = [Parameter(name, tuple(p.shape)) for name, p in model.named_parameters()]
    ddp = nn.parallel.DistributedDataParallel(SquaredNorm(model))
    ddp.register_comm_hook(state, hook)
    for _ in range(3):
        ddp().backward()
    _, before, after = state.compression_stats()  # of the one iteration that was compressed
    assert before == sum(p.numel for p in parameters)
    assert after == sum(message.size_bytes for message in scheme.messages(parameters)) // 4


def test_the_fit_finds_the_constants_that_made_the_times():
    made = compression.Roofline(launch_s=3e-6, memory_bandwidth=5e9)
    works = [compression.CodecWork(20 + n, 1000.0**n) for n in range(1, 4)]
    found = fit(works, [made.time_s(work) for work in works])
    assert found.launch_s == pytest.approx(made.launch_s)
    assert found.memory_bandwidth == pytest.approx(made.memory_bandwidth)


def test_a_fit_finds_no_cost_below_nothing():
    small, large = compression.CodecWork(20, 1e5), compression.CodecWork(20, 1e7)
    by_bytes = fit([small, large], [1e-5, 2e-3])  # a launch of less than nothing would explain these
    assert by_bytes.launch_s == 0
    assert 1e7 / 2e-3 < by_bytes.memory_bandwidth < 1e5 / 1e-5
    by_kernels = fit([small, large], [2e-4, 1e-4])
    assert 1e-4 < 20 * by_kernels.launch_s < 2e-4
    assert Constant("gloo.ddp.fp16_Bps", 1e9, "B/s", "").allows(by_kernels.memory_bandwidth)
    assert Constant("gloo.ddp.fp16_kernel_s", 1e-6, "s", "").allows(by_bytes.launch_s)


def gathered(tensor):
    found = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(found, tensor)
    return found


@ranks.on(2)
def test_ranks_get_the_mean_of_what_each_sends_bit_for_bit_alike(rank):
    parameter = nn.Parameter(torch.zeros(64))
    gradients = [torch.randn(64, generator=torch.Generator().manual_seed(each)) for each in range(2)]
    nothing = Bucket([parameter], [torch.zeros(64)])
    for codec in CODECS:
        means = [sum(decoded(codec, gradient, [64]) for gradient in gradients) / 2]
        means.append(torch.zeros(64))
        state = ErrorFeedback(codec, feedback=False)
        for bucket, mean in zip((Bucket([parameter], [gradients[rank]]), nothing), means, strict=True):
            one, other = gathered(feedback_hook(state, bucket).wait())
            assert torch.equal(one, other)
            torch.testing.assert_close(one, mean)
    state = AdaptiveState(0.05, every=2)
    for _ in range(4):
        one, other = gathered(adaptive_hook(state, Bucket([parameter], [gradients[rank]])).wait())
        assert torch.equal(one, other)
        assert (one - sum(gradients) / 2).norm() < 0.1 * (sum(gradients) / 2).norm()
    assert state.bits[0] < 32
