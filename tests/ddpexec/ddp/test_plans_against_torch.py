"""Plans held against the buckets on which torch's reducer really settles, one rank and two."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ddpsim.bucketing import BucketCaps, Parameter, initial_plan, rebuilt_plan, unused_plan
from ddpsim.bucketing.plan import custom_plan
from tests import strategies
from tests.ddpexec.groups import ranks
from tests.profile import examples

STOCK = nn.parallel.DistributedDataParallel


class Tower(nn.Module):
    """Layers used in an order that is not the one of registration; a shared one; one that may go unused."""

    def __init__(self, unused: bool = False, sparse: bool = False, double: bool = False, flip: bool = False):
        super().__init__()
        self.flip = flip
        self.head = nn.Linear(64, 32)
        self.embedding = nn.Embedding(40, 64, sparse=sparse)
        self.shared = nn.Linear(64, 64)
        self.body = nn.ModuleList([nn.Linear(64, 64) for _ in range(5)])
        self.spare = nn.Linear(16, 16) if unused else None
        self.wide = nn.Linear(32, 24, dtype=torch.float64) if double else None

    def forward(self, tokens):
        hidden = self.shared(self.embedding(tokens).mean(0, keepdim=True))
        for i in (3, 0, 4, 1, 2) if self.flip else (2, 1, 4, 0, 3):
            hidden = self.body[i](hidden).relu()
        out = self.head(self.shared(hidden))
        return self.wide(out.double()) if self.wide else out


MODELS = {
    "plain": {},
    "flipped": {"flip": True},
    "sparse": {"sparse": True},
    "double": {"double": True},
    "everything": {"sparse": True, "double": True, "flip": True},
}
CAPS = {
    "default": BucketCaps(),
    "explicit": BucketCaps(bucket_cap_mb=0.02),
    "zero": BucketCaps(bucket_cap_mb=0),
    "large": BucketCaps(bucket_cap_mb=25),
    "first": BucketCaps(first_bucket_mb=0.01, bucket_cap_mb=0.04),
    "list": BucketCaps(bucket_cap_mb_list=(0.03, 0.005, 0.05)),
}


def described(model):
    sparse = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and m.sparse}
    return [
        Parameter(name, tuple(p.shape), str(p.dtype).removeprefix("torch."), str(p.device), id(p) in sparse)
        for name, p in model.named_parameters()
    ]


def groups_of(ddp):
    index = {id(p): i for i, p in enumerate(ddp.module.parameters())}
    return [tuple(index[id(p)] for p in b.parameters()) for b in ddp.reducer._get_zeros_like_grad_buckets()]


def train(ddp, iterations=4):
    """Run some iterations; return the arrival order of the first backward, by our own hooks."""
    order = []
    for index, parameter in enumerate(ddp.module.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
    for _ in range(iterations):
        ddp(torch.arange(5)).sum().backward()
        ddp.zero_grad()
    arrived = list(dict.fromkeys(order))
    return arrived + [i for i in range(len(list(ddp.module.parameters()))) if i not in arrived]


def sizes(text):
    return [int(size) for size in text.split(", ")]


@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_initial_and_rebuilt_buckets(one_rank, options, caps):
    model = Tower(**options)
    parameters = described(model)
    ddp = STOCK(model, **caps.torch_arguments())
    initial = initial_plan(parameters, caps)
    order = train(ddp, 1)
    assert groups_of(ddp) == initial.groups()
    rebuilt = rebuilt_plan(parameters, caps, order)
    train(ddp)
    assert groups_of(ddp) == rebuilt.groups()
    logged = ddp._get_ddp_logging_data()
    assert sizes(logged["bucket_sizes"]) == [b.size_bytes for b in initial.buckets]
    assert sizes(logged["rebuilt_bucket_sizes"]) == [b.size_bytes for b in rebuilt.buckets]


@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
@pytest.mark.parametrize("options", [{"unused": True}, {"unused": True, "sparse": True, "double": True}])
def test_find_unused_parameters_keeps_its_first_buckets(one_rank, options, caps):
    model = Tower(**options)
    plan = unused_plan(described(model), caps)
    ddp = STOCK(model, find_unused_parameters=True, **caps.torch_arguments())
    for _ in range(3):
        train(ddp, 1)
        assert groups_of(ddp) == plan.groups()
    assert not ddp._get_ddp_logging_data()["has_rebuilt_buckets"]


@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
def test_static_graph_appends_unused_parameters_and_rebuilds(one_rank, caps, find_unused):
    """static_graph rebuilds even beside find_unused_parameters; what never arrived comes last, as registered."""
    model = Tower(unused=True, sparse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"static_graph": True, "find_unused_parameters": find_unused}
        ddp = STOCK(model, **options, **caps.torch_arguments())
    order = train(ddp, 1)
    assert groups_of(ddp) == initial_plan(described(model), caps).groups()
    train(ddp)
    assert [list(dict(model.named_parameters()))[i] for i in order[-2:]] == ["spare.weight", "spare.bias"]
    assert groups_of(ddp) == rebuilt_plan(described(model), caps, order).groups()


@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
def test_the_printed_constructor_call_gives_stock_torch_the_plan(one_rank, caps):
    model = Tower(double=True)
    order = train(STOCK(Tower(double=True)))
    for plan in (rebuilt_plan(described(model), caps, order), unused_plan(described(model), caps)):
        ddp = eval(plan.torch, {"DistributedDataParallel": STOCK, "model": model})
        train(ddp)
        assert groups_of(ddp) == plan.groups()


def assigned(plan, parameters, order):
    """Return torch's own buckets of parameters in `order`, by the caps of the call that `plan` prints."""
    caps = eval(plan.torch, {"DistributedDataParallel": lambda _, bucket_cap_mb_list: bucket_cap_mb_list, "model": 0})
    tensors = [torch.empty(parameters[i].shape, dtype=getattr(torch, parameters[i].dtype)) for i in order]
    return dist._compute_bucket_assignment_by_size(tensors, [int(cap * (1 << 20)) for cap in caps], [], order)[0]


@settings(max_examples=examples(200), deadline=None)
@given(strategies.groups(), st.randoms(use_true_random=False))
def test_a_custom_plans_caps_give_torchs_assignment(groups, rng):
    order = [index for group in groups for index in group]
    parameters = [Parameter(f"p{i}", (rng.randint(1, 99),)) for i in range(len(order))]
    plan = custom_plan(parameters, groups)
    assert assigned(plan, parameters, order) == [list(group) for group in groups]


def test_a_custom_plan_of_two_dtypes_shares_one_list_of_caps():
    """float32 closes at 40 and 80 bytes, float16 at 48 and then is left over: the k-th cap must suit both."""
    dtypes = ["float32", "float32", "float16", "float32", "float32", "float16", "float16", "float16"]
    parameters = [Parameter(f"p{i}", (10 if d == "float32" else 12,), d) for i, d in enumerate(dtypes)]
    groups = [(0,), (1, 3), (2, 5), (4,), (6, 7)]
    order = [0, 1, 2, 3, 5, 4, 6, 7]
    assert assigned(custom_plan(parameters, groups), parameters, order) == [list(group) for group in groups]


def settled(rank):
    """Train with each rank's own order; return arrival orders and the buckets settled on."""
    results = []
    for caps in CAPS.values():
        ddp = STOCK(Tower(flip=rank == 0), **caps.torch_arguments())
        results.append((train(ddp), groups_of(ddp)))
    return results


def test_rank_0s_arrival_order_wins():
    parameters = described(Tower())
    for caps, (order, groups), (other_order, other_groups) in zip(CAPS.values(), *ranks.run(2, settled), strict=True):
        assert order != other_order
        assert groups == other_groups == rebuilt_plan(parameters, caps, order).groups()
