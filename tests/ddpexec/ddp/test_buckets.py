from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddpexec.ddp.buckets import TOGETHER_BYTES, runs_of
from ddpexec.ddp.flat import copy_all, reciprocal


@given(st.lists(st.integers(1, 2 * TOGETHER_BYTES), min_size=1, max_size=30))
def test_neighbours_are_written_back_together_up_to_a_size(sizes: list[int]) -> None:
    buckets = [SimpleNamespace(size_bytes=size) for size in sizes]
    runs = list(runs_of(buckets))
    assert [bucket for run in runs for bucket in run] == buckets
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        size = sum(bucket.size_bytes for bucket in run)
        assert len(run) == 1 or size <= TOGETHER_BYTES
        assert following is None or size + following[0].size_bytes > TOGETHER_BYTES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
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
