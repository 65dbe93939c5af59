from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ddpexec.ddp.buckets import ALIGN_BYTES, TOGETHER_BYTES, Buckets, ReducerOptions, runs_of
from ddpexec.ddp.flat import copy_all, reciprocal
from ddpexec.ddp.parameters import collect
from ddpsim.bucketing import BucketCaps, rebuilt_plan

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)


@given(st.lists(st.integers(1, 2 * TOGETHER_BYTES), min_size=1, max_size=30))
def test_neighbours_are_written_back_together_up_to_a_size(sizes: list[int]) -> None:
    buckets = [SimpleNamespace(size_bytes=size) for size in sizes]
    runs = list(runs_of(buckets))
    assert [bucket for run in runs for bucket in run] == buckets
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        size = sum(bucket.size_bytes for bucket in run)
        assert len(run) == 1 or size <= TOGETHER_BYTES
        assert following is None or size + following[0].size_bytes > TOGETHER_BYTES


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_a_reciprocal_rounds_as_a_python_number_does(dtype) -> None:
    values = torch.randn(1000, dtype=dtype) * 3
    for divisor in range(2, 40):
        out = torch.empty_like(values)
        torch.mul(values, reciprocal(divisor, dtype), out=out)
        assert torch.equal(out, values * (1.0 / divisor))


def test_copying_by_one_call_refuses_none_and_leaves_no_graph() -> None:
    into, value = torch.zeros(3), torch.ones(3, requires_grad=True)
    assert not copy_all([into], [None])
    assert copy_all([into], [value])
    assert into.tolist() == [1, 1, 1]
    assert not into.requires_grad


class Several(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        shapes = [(rng.randint(0, 40), rng.randint(1, 9)) for _ in range(rng.randint(1, 25))]
        tensors = [torch.zeros(shape, dtype=rng.choice(DTYPES)) for shape in shapes]
        tensors += [torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)]
        self.weights = nn.ParameterList(map(nn.Parameter, tensors))


@pytest.mark.parametrize("seed", range(8))
def test_another_plan_is_other_slices_of_the_same_memory_and_moves_gradients(seed: int) -> None:
    rng = random.Random(seed)
    model, caps = collect(Several(seed)), BucketCaps(bucket_cap_mb=0.001)
    order = list(range(len(model.tensors)))
    buckets = Buckets(model, ReducerOptions(caps=caps, gradient_as_bucket_view=True), 0)
    buckets.install(rebuilt_plan(model.policy, caps, order))
    kept = {bucket.buffer.untyped_storage().data_ptr() for bucket in buckets.all}
    for index, tensor in enumerate(model.tensors):
        tensor.grad = torch.full_like(tensor, index + 1)
    for _ in range(3):
        buckets.install(rebuilt_plan(model.policy, caps, rng.sample(order, len(order))))
        assert {bucket.buffer.untyped_storage().data_ptr() for bucket in buckets.all} <= kept
        for bucket in buckets.all:
            assert bucket.buffer.data_ptr() % ALIGN_BYTES == 0 or not bucket.buffer.numel()
            for index, view in zip(bucket.indices, bucket.views, strict=True):
                assert model.tensors[index].grad is view
                assert view.stride() == model.tensors[index].stride()
                assert torch.equal(view, torch.full_like(view, index + 1))
                view.fill_(index + 1)
