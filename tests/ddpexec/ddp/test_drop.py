"""Layer dropping in the executor, held against stock torch that searches for what went unused, and one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from ddpsim.bucketing import Parameter
from ddpsim.bucketing.drop import aligned_plan
from ddpsim.common.errors import PlanError
from tests.ddpexec.groups import ranks

BLOCKS = {f"blocks.{i}": 0.5 for i in range(4)}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value):
        return value + torch.tanh(self.linear(value))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Residual() for _ in range(4)])
        self.head = nn.Linear(8, 3)

    def forward(self, value):
        value = self.stem(value)
        for block in self.blocks:
            value = block(value)
        return self.head(value)


def aligned(model, drop):
    parameters = [Parameter(name, tuple(p.shape)) for name, p in model.named_parameters()]
    order = range(len(parameters) - 1, -1, -1)
    return aligned_plan(parameters, drop.plan.layers, [1 << 20], order)


def batch(rank, iteration):
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(100 * rank + iteration))


def agree(mine, theirs):
    """Return whether gradients are alike bit for bit, and the same ones are None."""
    pairs = [pair for both in zip(mine, theirs, strict=True) for pair in zip(*both, strict=True)]
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def trained(rank, ddp, before=lambda iteration: None, accumulate=False):
    """Train; return gradients by iteration."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.005)
    taken = []
    for iteration in range(1, 9):
        before(iteration)
        generator = torch.Generator().manual_seed(100 * rank + iteration)
        optimizer.zero_grad()
        if accumulate:
            with ddp.no_sync():
                ddp(torch.randn(5, 8, generator=generator)).square().sum().backward()
        ddp(torch.randn(5, 8, generator=generator)).square().sum().backward()
        taken.append([None if p.grad is None else p.grad.clone() for p in ddp.parameters()])
        optimizer.step()
    return taken


def both(rank, accumulate, options):
    model = Stack()
    stock_model = copy.deepcopy(model)
    drop, stock_drop = LayerDrop(model, BLOCKS, seed=3), LayerDrop(stock_model, BLOCKS, seed=3)
    options = {**options, "plan": aligned(model, drop)} if options.pop("aligned", False) else options
    ours = DistributedDataParallel(model, drop=drop, **options)
    stock = nn.parallel.DistributedDataParallel(stock_model, find_unused_parameters=True)
    sent = []
    all_reduce = ours.communicator.all_reduce
    ours.communicator.all_reduce = lambda tensor, number: sent.append(tensor.numel()) or all_reduce(tensor, number)
    mine = trained(rank, ours, accumulate=accumulate)
    theirs = trained(rank, stock, stock_drop.start, accumulate)
    dropped = [len(drop.plan.layers_dropped(iteration)) for iteration in range(1, 9)]
    return agree(mine, theirs), sum(sent), dropped


@ranks.on(2)
def test_gradients_equal_those_of_torch_that_searches_and_whole_buckets_are_spared(rank):
    options = [
        {},
        {"bucket_cap_mb": 0.0001},
        {"gradient_as_bucket_view": True},
        {"remap_dropped": True},
        {"aligned": True},
    ]
    found = [both(rank, accumulate, dict(some)) for some in options for accumulate in (False, True)]
    assert [same for same, _, _ in found] == [True] * 10
    assert found[-4][1] == found[-1][1]  # what moves up leaves nothing to send either
    _, sent, dropped = found[-1]
    assert 0 < sum(dropped) < 32
    stem, block, head = 72, 72, 27
    assert sent == 8 * (stem + head) + block * (32 - sum(dropped))  # aligned buckets send what is left, no more


@pytest.mark.parametrize("options", [{}, {"remap_dropped": True}])
@ranks.on(2)
def test_weights_are_those_of_one_process_that_leaves_out_the_same_layers(rank, options):
    model, alone = Stack(), Stack()
    ddp = DistributedDataParallel(model, drop=LayerDrop(model, BLOCKS, seed=9), bucket_cap_mb=0.0005, **options)
    drop = LayerDrop(alone, BLOCKS, seed=9)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (model, alone)]
    for iteration in range(1, 31):
        drop.start(iteration)
        for optimizer in optimizers:
            optimizer.zero_grad()
        ddp(batch(rank, iteration)).square().mean().backward()
        alone(torch.cat([batch(each, iteration) for each in range(2)])).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(alone.parameters()), rtol=1e-4, atol=1e-5)
    assert not torch.equal(model.head.weight, Stack().head.weight)


@ranks.on(1)
def test_nothing_is_left_out_in_evaluation(rank):
    model = Stack()
    ddp = DistributedDataParallel(model, drop=LayerDrop(model, dict.fromkeys(BLOCKS, 1.0)))
    value = torch.ones(1, 8)
    trained_output = ddp(value)
    ddp.eval()
    assert not torch.equal(trained_output, ddp(value))
    assert torch.equal(ddp(value), Stack()(value))


@ranks.on(2)
def test_parameters_that_are_ignored_are_not_counted(rank):
    """A parameter that DDP ignores shifts the indices of those behind it."""
    answers = []
    for kind in (DistributedDataParallel, nn.parallel.DistributedDataParallel):
        model = Stack()
        kind._set_params_and_buffers_to_ignore_for_model(model, ["stem.weight"])
        drop = LayerDrop(model, BLOCKS, seed=3)
        ours = kind is DistributedDataParallel
        ddp = kind(model, **({"drop": drop, "bucket_cap_mb": 0} if ours else {"find_unused_parameters": True}))
        answers.append(trained(rank, ddp, (lambda iteration: None) if ours else drop.start))
    assert agree(*answers)
    model = Stack()
    drop = LayerDrop(model, BLOCKS)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["stem.weight"])
    with pytest.raises(OptionError, match=r"drop was made with other parameters than are trained: stem\.weight;"):
        DistributedDataParallel(model, drop=drop)


@ranks.on(1)
def test_contradictions_are_refused(rank):
    model = Stack()
    drop = LayerDrop(model, BLOCKS)
    with pytest.raises(OptionError, match="drop and static_graph=True are both given; leave static_graph out"):
        DistributedDataParallel(model, drop=drop, static_graph=True)
    with pytest.raises(OptionError, match="remap_dropped=True and no drop are both given; give drop"):
        DistributedDataParallel(model, remap_dropped=True)
    with pytest.raises(OptionError, match="remap_dropped=True and gradient_as_bucket_view=True are both given"):
        DistributedDataParallel(model, drop=drop, remap_dropped=True, gradient_as_bucket_view=True)
    ddp = DistributedDataParallel(model, drop=drop)
    with pytest.raises(OptionError, match=r"drop and join\(\) do not go together"), ddp.join():
        ddp(torch.ones(1, 8))
    with ddp.join(enable=False):
        ddp(torch.ones(1, 8)).sum().backward()
    with pytest.raises(PlanError, match=r"no parameter is below 'blocks\.7'"):
        LayerDrop(Stack(), {"blocks.7": 0.1})


class Experts(Stack):
    """Beside the stack each rank uses an expert of its own in each iteration."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, value):
        return super().forward(self.experts[int(value.sum() * 100) % 3](value))


@pytest.mark.parametrize("options", [{"bucket_cap_mb": 0}, {"bucket_cap_mb": 0.0005, "remap_dropped": True}])
@ranks.on(2)
def test_what_ranks_search_for_beside_what_all_leave_out(rank, options):
    model = Experts()
    stock_model = copy.deepcopy(model)
    drop, stock_drop = LayerDrop(model, BLOCKS, seed=3), LayerDrop(stock_model, BLOCKS, seed=3)
    ours = DistributedDataParallel(model, drop=drop, find_unused_parameters=True, **options)
    stock = nn.parallel.DistributedDataParallel(stock_model, find_unused_parameters=True)
    mine, theirs = trained(rank, ours), trained(rank, stock, stock_drop.start)
    assert agree(mine, theirs)
    assert len({sum(g is None for g in gradients) for gradients in mine}) > 1


@ranks.on(2)
def test_a_drop_plan_that_leaves_nothing_says_so_on_every_rank(rank):
    model = nn.Sequential(Residual(), Residual())
    ddp = DistributedDataParallel(model, drop=LayerDrop(model, {"0": 1.0, "1": 1.0}))
    said = (
        "drop: iteration 1 leaves out all 4 parameters: nothing is left to train; keep a layer that is never left out"
    )
    with pytest.raises(PlanError, match=f"^{said}$"):
        ddp(torch.ones(1, 8))
