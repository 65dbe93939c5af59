"""The assignment held against torch's own binding. Fake tensors stand for devices that are not there."""

from __future__ import annotations

import random
import sys

import pytest
import torch
import torch.distributed as dist

from ddpsim.bucketing import Parameter, assign_buckets
from ddpsim.bucketing.assign import DTYPE_BYTES, closing_order

SIZES = (0, 1, 7, 64, 250)
DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "int8")
DEVICES = ("cpu", "meta", *(f"cuda:{i}" for i in range(8)))


@pytest.fixture(scope="module")
def pool():
    """Fake tensors by (elements, dtype, device); made once, since each takes a while."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    made = {}
    with FakeTensorMode():

        def get(parameter):
            key = (parameter.numel, parameter.dtype, parameter.device)
            if key not in made:
                made[key] = torch.empty(key[0], dtype=getattr(torch, key[1]), device=key[2])
            return made[key]

        yield get


def theirs(pool, parameters, limits, order):
    visited = [parameters[i] for i in (range(len(parameters)) if order is None else order)]
    limits = [sys.maxsize if limit is None else limit for limit in limits]
    sparse = [p.sparse for p in parameters]
    return dist._compute_bucket_assignment_by_size([pool(p) for p in visited], limits, sparse, order or [])


def ours(parameters, limits, order):
    buckets = assign_buckets(parameters, limits, order)
    limits = [0 if parameters[b.parameters[0]].sparse else b.limit_bytes for b in buckets]
    return [list(b.parameters) for b in buckets], [sys.maxsize if limit is None else limit for limit in limits]


def test_4000_random_cases_equal_torchs_assignment(pool):
    rng = random.Random(2020)
    for case in range(4000):
        dtypes = rng.sample(DTYPES, rng.randint(1, len(DTYPES)))
        devices = rng.sample(DEVICES, rng.choice((1, 1, 2, 4)))
        sparse = rng.choice((0.0, 0.2))
        parameters = [
            Parameter(f"p{i}", (rng.choice(SIZES),), rng.choice(dtypes), rng.choice(devices), rng.random() < sparse)
            for i in range(rng.randint(1, 25))
        ]
        limits = [rng.choice((0, 1, 200, 1000, 4000, 1 << 40, None)) for _ in range(rng.randint(1, 4))]
        order = rng.sample(range(len(parameters)), len(parameters)) if rng.random() < 0.7 else None
        assert ours(parameters, limits, order) == theirs(pool, parameters, limits, order), case


@pytest.mark.parametrize("keys", [2, 3, 7, 13, 14, 30, 60])
def test_left_over_buckets_close_in_the_order_of_torchs_map(pool, keys):
    rng = random.Random(keys)
    for _ in range(20):
        seen = rng.sample([(dtype, device) for dtype in DTYPES for device in DEVICES], keys)
        parameters = [Parameter(f"p{i}", (1,), *key) for i, key in enumerate(seen)]
        groups, _ = theirs(pool, parameters, [None], list(range(keys)))
        assert closing_order(seen) == [seen[group[0]] for group in groups]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", sorted(DTYPE_BYTES))
def test_bytes_of_each_dtype_are_torchs(name):
    assert torch.empty(1, dtype=getattr(torch, name)).element_size() == DTYPE_BYTES[name]
