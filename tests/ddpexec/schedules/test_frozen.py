"""What torch's `fully_shard` gathers and reduces of a model whose parameters are frozen in part."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddpexec.schedules.fully_sharded import FullySharded
from ddpexec.timing.clock import HostClock
from ddpexec.timing.observe import Observer
from tests.ddpexec.groups import ranks

STEPS = 3
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


KINDS = [
    "adapters", "narrow base", "some adapters", "adapters below", "backbone", "lower blocks", "between", "upper blocks",
    "tied", "embedding",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["fsdp2", "fsdp2:noreshard", "fsdp2:reshard_root,backward_prefetch=2", "hsdp:1"])
@ranks.on(2)
def test_the_bytes_and_the_order_of_collectives_are_the_schedule_s(rank: int, scheme: str) -> None:
    for kind in KINDS:
        torch.manual_seed(0)
        observer = Observer(HostClock())
        made = FullySharded(Model(kind), scheme, lambda all_: torch.optim.SGD(all_, lr=0.1), observer=observer)
        for step in range(STEPS):
            observer.begin(step, synced=True, stepped=True)
            made(torch.arange(5)).square().mean().backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        observer.close()
        planned = [(n, str(m.op), m.size_bytes, m.parameters) for n, m in enumerate(made.schedule)]
        for note in observer.notes:
            assert [(b.number, str(b.operation), b.size_bytes, b.indices) for b in note.buckets] == planned, kind
