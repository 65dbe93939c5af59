"""`mixed_precision` against torch's own, and against local training in the lower precision."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel.distributed import _MixedPrecision

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from tests.ddpexec.groups import ranks
from tests.ddpexec.streams import no_streams
from tests.profile import training_steps

STOCK = nn.parallel.DistributedDataParallel
WARM = 3
"""Iterations before torch's buckets are right: until it rebuilds them it reduces memory that nothing was written to."""

STEPS = training_steps(10)

DTYPES = {
    "bf16": _MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "fp16": _MixedPrecision(torch.float16, torch.float16, torch.float16),
    "bf16, sums in fp32": _MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16),
    "reduce_dtype left out": _MixedPrecision(torch.bfloat16, None, torch.bfloat16),
}


class Net(nn.Module):
    """Takes its input from a nested argument; one parameter is frozen, one buffer is a count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(6, 20), nn.Tanh(), nn.LayerNorm(20), nn.Linear(20, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)
        )
        self.layers[2].bias.requires_grad_(False)

    def forward(self, nested: dict[str, Any]) -> Any:
        return self.layers(nested["x"][0])


def gradients(kind: Any, rank: int, mixed: Any, set_to_none: bool, options: dict[str, Any]) -> list[Any]:
    """Return gradients and parameters after each of `STEPS` steps that follow `WARM` iterations without one."""
    ddp = kind(Net(), mixed_precision=mixed, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    taken = []
    for step in range(WARM + STEPS):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        ddp({"x": (x, 3)}).float().square().mean().backward()
        if step >= WARM:
            taken += [p.grad.clone() for p in ddp.parameters() if p.requires_grad]
            optimizer.step()
            taken += [p.detach().clone() for p in ddp.parameters()]
        optimizer.zero_grad(set_to_none=set_to_none)
    return taken


@pytest.mark.parametrize(
    ("world_size", "names"),
    [(2, list(DTYPES)), pytest.param(3, ["bf16, sums in fp32"], marks=pytest.mark.needs("minutes"))],
)
@ranks.on("world_size")
def test_gradients_and_parameters_equal_those_of_torch(rank: int, names: list[str]) -> None:
    no_streams()
    count = 0
    extras: tuple[dict[str, Any], ...] = ({}, {"bucket_cap_mb": 0.0002}, {"static_graph": True})
    for name, set_to_none, extra in itertools.product(names, (True, False), extras):
        if (not set_to_none or extra) and name != "bf16, sums in fp32":
            continue
        mixed = DTYPES[name]
        # With views torch's own reduces a bucket once and then sends the same again, so its copies are the oracle.
        theirs = gradients(STOCK, rank, mixed, set_to_none, extra)
        for view in (False, True):
            ours = gradients(
                DistributedDataParallel, rank, mixed, set_to_none, {**extra, "gradient_as_bucket_view": view}
            )
            for one, other in zip(ours, theirs, strict=True):
                assert one.dtype == other.dtype == torch.float32
                assert torch.equal(one, other), (name, set_to_none, extra, view)
            count += 1
    assert count == 2 * (len(names) + 5)


@ranks.on(2)
def test_the_first_gradients_are_those_of_the_lower_precision(rank: int) -> None:
    """The first iteration, in which torch's own is wrong: equal to the lower precision computed locally."""
    ddp = DistributedDataParallel(Net(), mixed_precision=DTYPES["bf16"])
    local = Net().bfloat16()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    ddp({"x": (x, 3)}).float().sum().backward()
    local({"x": (x.bfloat16(), 3)}).float().sum().backward()
    for mine, other in zip(ddp.parameters(), local.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, other.grad.float())


@ranks.on(2)
def test_where_torchs_own_gradients_are_wrong(rank: int) -> None:
    """What `docs/reference/ddp.md` says of torch's own: its first gradients, and those of views, are wrong."""
    no_streams()
    found = {}
    for kind, view in ((DistributedDataParallel, True), (STOCK, False), (STOCK, True)):
        ddp = kind(Net(), mixed_precision=DTYPES["bf16"], gradient_as_bucket_view=view)
        taken = []
        for step in range(4):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            ddp({"x": (x, 3)}).float().square().mean().backward()
            taken.append([p.grad.clone() for p in ddp.parameters() if p.requires_grad])
            ddp.zero_grad()
        found[kind, view] = taken
    ours, copies, views = found.values()

    def equal(first: list[Any], second: list[Any]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    assert [equal(a, b) for a, b in zip(ours, copies, strict=True)] == [False, True, True, True]
    assert equal(views[1], ours[1])
    assert not equal(ours[1], ours[2])
    assert equal(views[1], views[2])
    assert equal(views[2], views[3])


@ranks.on(1)
def test_what_does_not_go_together_is_refused_and_evaluation_leaves_parameters_alone(rank: int) -> None:
    bf16 = DTYPES["bf16"]
    with pytest.raises(OptionError, match="find_unused_parameters=True and mixed_precision do not go together"):
        DistributedDataParallel(Net(), mixed_precision=bf16, find_unused_parameters=True)
    with pytest.raises(OptionError, match="mixed_precision without param_dtype; give the dtype"):
        DistributedDataParallel(Net(), mixed_precision=_MixedPrecision(None, torch.float16, None))
    ddp = DistributedDataParallel(Net(), mixed_precision=bf16)
    with pytest.raises(OptionError, match=r"no_sync\(\) and mixed_precision do not go together"), ddp.no_sync():
        pass
    with pytest.raises(OptionError, match="a communication hook and mixed_precision do not go together"):
        ddp.register_comm_hook(None, lambda state, bucket: None)
    before = [p.detach().clone() for p in ddp.parameters()]
    with torch.no_grad():
        ddp.eval()({"x": (torch.ones(2, 6), 3)})
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ddp.parameters(), before, strict=True))
    ddp.eval()({"x": (torch.ones(2, 6), 3)}).float().sum().backward()
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ddp.parameters(), before, strict=True))


def stepped(ddp: Any, x: Any) -> list[Any]:
    ddp.zero_grad()
    ddp({"x": (x, 3)}).float().square().mean().backward()
    return [p.grad.clone() for p in ddp.parameters() if p.requires_grad]


@ranks.on(2)
def test_weights_that_are_exchanged_are_computed_with(rank: int) -> None:
    """Averaged weights put in by `.data` are computed with, kept, and taken out again."""
    no_streams()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    ours, theirs = (kind(Net(), mixed_precision=DTYPES["bf16"]) for kind in (DistributedDataParallel, STOCK))
    expected = stepped(ours, x)
    before = [p.data for p in ours.parameters()]
    averages = [torch.full_like(p, 0.25) for p in ours.parameters()]
    for ddp in (ours, theirs):
        for parameter, average in zip(ddp.parameters(), averages, strict=True):
            parameter.data = average
    with torch.no_grad():
        mine = ours({"x": (x, 3)})
    assert torch.equal(mine, theirs({"x": (x, 3)}))
    assert all(p.data_ptr() == average.data_ptr() for p, average in zip(ours.parameters(), averages, strict=True))
    for parameter, data in zip(ours.parameters(), before, strict=True):
        parameter.data = data
    assert all(torch.equal(a, b) for a, b in zip(stepped(ours, x), expected, strict=True))


@ranks.on(2)
def test_a_forward_without_gradients_may_come_before_backward(rank: int) -> None:
    """A forward without gradients, between a forward and its backward, leaves them the precision they began in."""
    ddp = DistributedDataParallel(Net(), mixed_precision=DTYPES["bf16"])
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    expected = stepped(ddp, x)
    ddp.zero_grad()
    loss = ddp({"x": (x, 3)}).float().square().mean()
    with torch.no_grad():
        ddp.eval()({"x": (x, 3)})
    loss.backward()
    found = [p.grad for p in ddp.parameters() if p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(p.dtype == torch.float32 for p in ddp.parameters())
    no_streams()
    with torch.no_grad(), pytest.raises(AttributeError, match="next_functions"):  # torch's own knows no such forward
        STOCK(Net(), mixed_precision=DTYPES["bf16"])({"x": (x, 3)})
