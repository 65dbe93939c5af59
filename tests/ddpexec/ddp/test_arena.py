from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from ddpexec.ddp.buckets import ALIGN_BYTES, Buckets
from ddpexec.ddp.flat import views_of
from ddpexec.ddp.parameters import collect
from ddpexec.ddp.reducer_options import ReducerOptions
from ddpsim.bucketing import BucketCaps, rebuilt_plan

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)


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


def test_views_of_a_slice_lie_in_it() -> None:
    flat, parameter = torch.arange(10.0), nn.Parameter(torch.zeros(2, 2))
    assert views_of(flat[3:7], [parameter])[0].tolist() == [[3, 4], [5, 6]]
