"""What else a DDP must do, each against torch's own or against what it says itself."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.utils.checkpoint import checkpoint

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import NeverReadyError, OptionError
from ddpexec.groups.process_groups import round_robin
from tests.ddpexec.groups import ranks

BOTH = (DistributedDataParallel, nn.parallel.DistributedDataParallel)


@dataclass
class Output:
    main: Tensor
    rest: tuple[Tensor, ...]


class Pair(NamedTuple):
    main: Tensor
    rest: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Frozen:
    main: Tensor
    rest: tuple[Tensor, ...]


class Opaque:
    """What nobody looks into."""

    def __init__(self, main: Tensor, rest: tuple[Tensor, ...]) -> None:
        self.main, self.rest = main, rest


class Odd(nn.Module):
    """A shared weight, an unused layer where asked for, and an output of a kind of choice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.layers[3].weight = self.layers[0].weight
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor, skip: int = -1, checkpointed: str = "", form: Callable[..., Any] = Output) -> Any:
        for number, layer in enumerate(self.layers):
            if number == skip:
                continue
            x = checkpoint(layer, x, use_reentrant=checkpointed == "reentrant") if checkpointed else layer(x)
            x = x.tanh()
        self.mean += x.detach().mean(0)
        return form(x, (x * 2,))


def train(
    kind: Any,
    options: dict[str, Any],
    prepare: Callable[[Any], None] = lambda ddp: None,
    steps: int = 20,
    **forward: Any,
) -> list[Tensor]:
    torch.manual_seed(0)
    ddp = kind(Odd(), **options)
    prepare(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        optimizer.zero_grad()
        output = ddp(x.requires_grad_(), **forward)
        (output.main.square().mean() + output.rest[0].mean()).backward()
        optimizer.step()
    return [tensor.detach().clone() for tensor in (*ddp.parameters(), *ddp.buffers())]


def same(options: dict[str, Any], **others: Any) -> None:
    ours, theirs = (train(kind, options, **others) for kind in BOTH)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other), (options, others)


def kind_is_ours(ddp: Any) -> bool:
    return isinstance(ddp, DistributedDataParallel)


class Scaled(nn.Module):
    """Returns a parameter of its own beside what it computed, or what is computed from that parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor, itself: bool) -> tuple[Tensor, Tensor]:
        return self.layers[0](x), self.scale if itself else self.scale * 1


@ranks.on(2)
def test_hooks_checkpointing_shared_parameters_and_nested_outputs_equal_torch(rank: int) -> None:
    small = {"bucket_cap_mb": 0.0003}
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        for view in (False, True):
            same(
                {**small, "gradient_as_bucket_view": view}, prepare=lambda ddp, h=hook: ddp.register_comm_hook(None, h)
            )

    def power(ddp: Any) -> None:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    same({}, prepare=power)

    def bf16(ddp: Any) -> None:
        # torch's class wants a GPU for this hook, by its name; under another name it takes it on a CPU too.
        plain: Any = default_hooks.bf16_compress_hook
        ddp.register_comm_hook(None, plain if kind_is_ours(ddp) else lambda state, bucket: plain(state, bucket))

    for view in (False, True):
        same({**small, "gradient_as_bucket_view": view}, prepare=bf16)
    same({**small, "static_graph": True}, checkpointed="reentrant", form=Pair)
    same(small, checkpointed="other")
    ddp = DistributedDataParallel(Odd())
    with pytest.raises(TypeError, match="must be callable"):
        ddp.register_comm_hook(None, 3)
    bucket: Any = default_hooks.bf16_compress_hook
    ddp.register_comm_hook(None, bucket)
    with pytest.raises(
        OptionError, match=r"register_comm_hook or register_builtin_comm_hook can only be called once\."
    ):
        ddp.register_comm_hook(None, bucket)
    ddp(torch.ones(1, 8)).main.sum().backward()


@ranks.on(2)
def test_a_static_graph_is_reduced_whatever_forward_returns(rank: int) -> None:
    """torch's static graph never reduces where forward returns a dataclass; ours opens it, and refuses what is shut."""
    options = {"bucket_cap_mb": 0.0003, "static_graph": True}
    expected = train(nn.parallel.DistributedDataParallel, options, form=Pair)
    alone = train(nn.parallel.DistributedDataParallel, options, form=Output)
    assert not all(torch.equal(other, one) for other, one in zip(expected, alone, strict=True))
    for form in (Pair, Output, Frozen):
        for mine, other in zip(train(DistributedDataParallel, options, form=form), expected, strict=True):
            assert torch.equal(mine, other), form
    ddp = DistributedDataParallel(Odd(), static_graph=True)
    ddp(torch.ones(1, 8), form=Opaque).main.sum().backward()
    with pytest.raises(NeverReadyError, match=r"began at no output of forward.*; return tensors in lists, tuples"):
        ddp(torch.ones(1, 8))


@ranks.on(2)
def test_an_output_may_be_a_parameter(rank: int) -> None:
    """torch's own does not look at outputs that are parameters, so there one must be computed with."""
    results = []
    for kind in BOTH:
        ddp = kind(Scaled(), find_unused_parameters=True)
        output, scale = ddp(torch.full((2, 3), 1.0 + rank), kind is DistributedDataParallel)
        (output * scale).sum().backward()
        results.append([parameter.grad for parameter in ddp.parameters()])
    for mine, other in zip(*results, strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or torch.equal(mine, other)
    assert results[0][0] is not None


@ranks.on(1)
def test_state_dicts_pickles_and_copies(rank: int) -> None:
    ours, theirs = (kind(Odd()) for kind in BOTH)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    ours(torch.ones(1, 8)).main.sum().backward()
    again = pickle.loads(pickle.dumps(ours))
    saved = io.BytesIO()
    torch.save(ours, saved)
    for other in (again, copy.deepcopy(ours)):
        other(torch.ones(1, 8)).main.sum().backward()
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), ours.parameters(), strict=True))
    silent = DistributedDataParallel(Odd(), comm="noop")
    for other in (pickle.loads(pickle.dumps(silent)), copy.deepcopy(silent)):
        assert other.communicator.noop
    several = DistributedDataParallel(Odd(), process_group=round_robin(2))
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(OptionError, match="only supported when using DDP with the default process group"):
            copied(several)


@ranks.on(2)
def test_uneven_inputs_equal_torch(rank: int) -> None:
    cases: tuple[dict[str, Any], ...] = (
        {}, {"bucket_cap_mb": 0}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True},
        {"forward_sync_buffers": False}, {"static_graph": True}, {"batched_grad_copy": True},
    )  # fmt: skip
    for by_initial, options in itertools.product((True, False), cases):
        for longest in (0, 1):
            results = []
            for kind in BOTH:
                torch.manual_seed(0)
                ddp = kind(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), **options)
                optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
                with ddp.join(divide_by_initial_world_size=by_initial):
                    for step in range(8 if rank == longest else 3):
                        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank))
                        optimizer.zero_grad()
                        with ddp.no_sync() if step == 4 else nullcontext():
                            ddp(x).square().sum().backward()
                        optimizer.step()
                state = (*ddp.parameters(), *ddp.buffers(), *(p.grad for p in ddp.parameters()))
                results.append([t.detach() for t in state])
            assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), (by_initial, options, longest)
