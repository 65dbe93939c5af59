from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.ddp.fully_sharded import FullySharded
from ddpexec.errors import ModelMismatchError, OptionError
from ddpexec.timing.clock import HostClock
from ddpexec.timing.observe import Observer
from tests.ddpexec.ddp.schedules.training import OPTIMIZERS, alone, apart, batch, loss_of, mine, model_of
from tests.ddpexec.groups import ranks

STEPS = 5


def trained(rank: int, scheme: str, optimizer: str, micro: int = 1) -> tuple[list[Any], list[Any], Any]:
    """Return the whole weights after each step, what each iteration sent, and what did."""
    observer = Observer(HostClock())
    made = FullySharded(model_of(3 + rank), scheme, OPTIMIZERS[optimizer], observer=observer)
    weights = []
    for step in range(STEPS * micro):
        synced = (step + 1) % micro == 0
        observer.begin(step, synced=synced, stepped=synced)
        if synced:
            loss_of(made, *mine(step, rank)).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            weights.append([w.full_tensor().clone() for w in made.module.state_dict().values()])
        else:
            with made.no_sync():
                loss_of(made, *mine(step, rank)).backward()
    observer.close()
    return weights, sent(observer), made


def sent(observer: Observer) -> list[list[Any]]:
    return [[(b.number, str(b.operation), b.size_bytes, b.indices) for b in note.buckets] for note in observer.notes]


def planned(made: FullySharded) -> list[Any]:
    return [(n, str(m.op), m.size_bytes, m.parameters) for n, m in enumerate(made.schedule)]


@pytest.mark.parametrize(
    ("world", "schemes"),
    [
        (2, ["fsdp2", "fsdp2:noreshard", "fsdp2:reshard_root", "hsdp:2", "hsdp:1"]),
        (2, ["fsdp2:offload", "hsdp:2,offload,noreshard"]),
        (2, ["fsdp2:wrap=0+2.*+4,forward_prefetch=2,backward_prefetch=2"]),
        pytest.param(4, ["hsdp:2"], marks=pytest.mark.needs("minutes")),
    ],
)
@ranks.on("world")
def test_steps_end_with_the_weights_of_one_process(rank: int, schemes: list[str]) -> None:
    world, found = torch.distributed.get_world_size(), {}
    for scheme in schemes:
        for optimizer in OPTIMIZERS:
            for micro in (1, 2):
                weights, _, _ = trained(rank, scheme, optimizer, micro)
                expected = alone(optimizer, world, every=micro)
                far = max(apart(some, others) for some, others in zip(weights, expected[:STEPS], strict=True))
                found[f"{scheme} {optimizer} {micro}"] = far
    assert len(found) == len(schemes) * 2 * len(OPTIMIZERS)
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@pytest.mark.parametrize(
    ("world", "scheme"),
    [(2, "fsdp2"), (2, "fsdp2:noreshard"), (2, "fsdp2:reshard_root"), (2, "hsdp:1"), (2, "fsdp2:gather=fp32"),
     (2, "fsdp2:gather=bf16,reduce=fp32"), (4, "hsdp:2"), (2, "fsdp2:forward_prefetch=2"),
     (2, "fsdp2:backward_prefetch=2"), (2, "fsdp2:wrap=0+2.0+4"), (2, "fsdp2:wrap=2.*,forward_prefetch=1"),
     (2, "fsdp2:wrap=0+2.*,forward_prefetch=2,backward_prefetch=2,reshard_root")],
)  # fmt: skip
@ranks.on("world")
def test_the_bytes_and_the_order_of_collectives_are_the_schedule_s(rank: int, scheme: str) -> None:
    _, found, made = trained(rank, scheme, "sgd")
    assert found == [planned(made)] * STEPS


class Unlike(torch.nn.Module):
    """Two blocks of one layer, or modules that cannot be sharded."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        if kind == "two types":
            self.layers[1].bias = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        if kind == "sparse":
            self.words = torch.nn.Embedding(4, 4, sparse=True)
        if kind == "ModuleList":
            self.layers = torch.nn.ModuleList(torch.nn.ModuleList([torch.nn.Linear(4, 4)]) for _ in range(2))
        if kind == "needs a gradient":
            self.requires_grad_(False)


KINDS = ["two types", "sparse", "ModuleList", "needs a gradient"]


@ranks.on(2)
def test_what_cannot_be_sharded_is_named_on_every_rank(rank: int) -> None:
    for kind in KINDS:
        with pytest.raises(OptionError, match=kind):
            FullySharded(Unlike(kind), "fsdp2", OPTIMIZERS["sgd"])
    with pytest.raises(ModelMismatchError, match="rank 1"):
        FullySharded(model_of(), ["fsdp2", "fsdp2:noreshard"][rank], OPTIMIZERS["sgd"])


@pytest.mark.parametrize("scheme", ["fsdp2", "hsdp:1"])
@ranks.on(2)
def test_gradients_in_single_precision_are_means_too(rank: int, scheme: str) -> None:
    """As in one process: gloo then averages by itself, instead of sums."""
    made, plain = FullySharded(model_of().float(), scheme, OPTIMIZERS["sgd"]), model_of().float()
    for model, (inputs, targets) in ((made, mine(0, rank)), (plain, batch(0, 2))):
        loss_of(model, inputs.float(), targets.float()).backward()
    gradients = [parameter.grad.full_tensor() for parameter in made.module.parameters()]
    assert apart(gradients, [parameter.grad for parameter in plain.parameters()]) < 1e-6


WIDTH = 8


class Adapted(nn.Module):
    """A frozen linear with an adapter beside it, both trained with their bias."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, dtype=dtype).requires_grad_(False)
        self.a, self.b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        low: torch.Tensor = self.base(values.to(self.base.weight.dtype))
        return low.float() + self.b(self.a(values))


class Model(nn.Module):
    """An embedding, four blocks and a head, of which `kind` says what is frozen."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        dtype = torch.bfloat16 if kind == "narrow base" else torch.float32
        adapted = {"adapters": "0123", "narrow base": "0123", "some adapters": "02", "adapters below": "01"}.get(
            kind, ""
        )
        frozen = {
            "backbone": "0123", "lower blocks": "01", "between": "12", "upper blocks": "23", "some adapters": "13",
            "adapters below": "23",
        }.get(kind, "")  # fmt: skip
        self.words = nn.Embedding(5, WIDTH)
        self.h = nn.ModuleList(Adapted(dtype) if str(k) in adapted else nn.Linear(WIDTH, WIDTH) for k in range(4))
        self.head = nn.Linear(WIDTH, 5, bias=False)
        for number in frozen:
            self.h[int(number)].requires_grad_(False)
        if kind == "tied":
            self.head.weight = self.words.weight
        if kind in ("tied", "embedding", "backbone", "lower blocks") or adapted:
            self.words.requires_grad_(False)
        if adapted:
            self.head.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.words(tokens)
        for block in self.h:
            values = block(values).tanh()
        out: torch.Tensor = self.head(values)
        return out


FROZEN = [
    "adapters", "narrow base", "some adapters", "adapters below", "backbone", "lower blocks", "between", "upper blocks",
    "tied", "embedding",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["fsdp2", "fsdp2:noreshard", "fsdp2:reshard_root,backward_prefetch=2", "hsdp:1"])
@ranks.on(2)
def test_frozen_parameters_are_gathered_and_reduced_as_the_schedule_says(rank: int, scheme: str) -> None:
    for kind in FROZEN:
        torch.manual_seed(0)
        observer = Observer(HostClock())
        made = FullySharded(Model(kind), scheme, lambda all_: torch.optim.SGD(all_, lr=0.1), observer=observer)
        for step in range(3):
            observer.begin(step, synced=True, stepped=True)
            made(torch.arange(5)).square().mean().backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        observer.close()
        assert sent(observer) == [planned(made)] * 3, kind
