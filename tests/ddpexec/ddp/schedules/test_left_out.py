"""Parameters that iterations leave out, and times that are learned, against one process; what is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.ddp.compression import hook_for
from ddpexec.ddp.fully_sharded import FullySharded
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import NeverReadyError, OptionError
from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError, PlanError
from tests.ddpexec.ddp.schedules.training import OPTIMIZERS, apart, wrapped
from tests.ddpexec.groups import ranks

ALONE = BucketCaps(bucket_cap_mb=0)
"""A message a parameter."""


class Branches(nn.Module):
    """Uses the layers that a call names, and a scale without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3)).double()

    def forward(self, x: Any, used: tuple[int, ...]) -> Any:
        for number in used:
            x = torch.tanh(self.layers[number](x)) * self.scale
        return x


class Scaled(Branches):
    """Uses its scale whatever layers it uses, for nothing."""

    def forward(self, x: Any, used: tuple[int, ...]) -> Any:
        return super().forward(x, used) + 0 * self.scale


def data(number: int, rank: int) -> Any:
    return torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * number + rank))


Use = Callable[[int, int, int], tuple[int, ...]]
"""From step, micro-batch and rank to the layers that are used."""


def far(
    rank: int,
    scheme: str,
    optimizer: str,
    use: Use,
    micros: int = 1,
    steps: int = 4,
    to_none: bool = True,
    **options: Any,
) -> float:
    """Return how far a rank ends from one process; a server's is 0."""
    world = torch.distributed.get_world_size()
    made = ScheduledDataParallel(Branches(), scheme, OPTIMIZERS[optimizer], **{"caps": ALONE, **options})
    if made.serves:
        made.serve()
        return 0.0
    model = Branches()
    plain = OPTIMIZERS[optimizer](model.parameters())
    workers = world - made.schedule.sharding.servers
    for step in range(steps):
        for micro in range(micros):
            for place in range(workers):
                x, used = data(step * micros + micro, place), use(step, micro, place)
                (model(x, used).square().mean() / workers).backward()
                if place == rank:
                    made(x, used).square().mean().backward()
        for updating in (plain, made.optimizer):
            updating.step()
            updating.zero_grad(set_to_none=to_none)
    made.end()
    return apart(made.module.state_dict().values(), [p.detach() for p in model.parameters()])


@pytest.mark.parametrize("world", [2, 3])
@ranks.on("world")
def test_what_is_left_out_stays_and_its_update_from_before_is_not_lost(rank: int) -> None:
    """Leave layers out on all ranks alike, of buckets that are sent all the same, and on each rank others."""
    alike: Use = lambda step, micro, place: (0, 1) if step % 2 else (0,)  # noqa: E731
    by_rank: Use = lambda step, micro, place: (0, 1, 2) if (step + place) % 2 else (0, 2)  # noqa: E731
    found = {
        f"{scheme} {optimizer}": far(rank, scheme, optimizer, used, steps=8, caps=caps, find_unused_parameters=True)
        for used, caps, optimizer in ((alike, BucketCaps(), "adamw"), (by_rank, ALONE, "sgd"))
        for scheme in ("naive", "flat", "priority", "dear")
    }
    assert {name: off for name, off in found.items() if off > 1e-10} == {}
    made = ScheduledDataParallel(Branches(), "dear", OPTIMIZERS["adamw"])
    with pytest.raises(NeverReadyError, match=r"layers\.1\.weight"):
        made(data(0, rank), (0, 2)).sum().backward()


@ranks.on(2)
def test_a_gradient_that_later_micro_batches_leave_out_is_kept(rank: int) -> None:
    """Use a layer in the first of three micro-batches, all of which send."""
    used: Use = lambda step, micro, place: (0, 1, 2) if micro == 0 else (0, 2)  # noqa: E731
    schemes = ("ddp", "dear", "priority", "zero1")
    found = {s: far(rank, s, "sgd", used, 3, find_unused_parameters=True) for s in schemes}
    assert {scheme: off for scheme, off in found.items() if off > 1e-10} == {}


@ranks.on(3)
def test_servers_take_no_part_in_telling_what_was_used(rank: int) -> None:
    used: Use = lambda step, micro, place: (0, 1, 2) if (step + place) % 2 or step == 0 else (0, 2)  # noqa: E731
    assert far(rank, "parameter-server", "sgd", used, find_unused_parameters=True) < 1e-10


@ranks.on(2)
def test_flat_parts_take_over_the_state_of_their_parameters(rank: int) -> None:
    """Let ZeRO take over what optimizers of whole parameters know, a scalar's among them."""
    used: Use = lambda step, micro, place: (0, 1, 2)  # noqa: E731
    found = {f"{s} {o}": far(rank, s, o, used, learn=2) for s in ("zero1", "zero2") for o in OPTIMIZERS}
    found["in the midst"] = far(rank, "averaging:1", "sgd", used, 2, 1, learn=1, accumulate=2)
    assert {scheme: off for scheme, off in found.items() if off > 1e-10} == {}


@ranks.on(2)
def test_what_was_never_used_gets_no_gradient_of_zeros(rank: int) -> None:
    """Reset gradients to zeros: a layer that was never used has none, so that its weights do not decay."""
    used: Use = lambda step, micro, place: (0, 2)  # noqa: E731
    schemes = ("naive", "dear", "ddp")
    found = {s: far(rank, s, "adamw", used, to_none=False, find_unused_parameters=True) for s in schemes}
    assert {scheme: off for scheme, off in found.items() if off > 1e-10} == {}


@ranks.on(2)
def test_chunks_that_are_sent_later_are_not_lost_where_their_parameter_is_not_used_then(rank: int) -> None:
    """Sent chunk by chunk, beside what plain SGD makes of its gradient."""
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    scheme = "gradientflow:density=0.2,chunk=1"
    made = ScheduledDataParallel(Scaled(), scheme, sgd, find_unused_parameters=True)
    model = Branches()
    for place in range(2):
        (model(data(0, place), (1,)).square().mean() / 2).backward()
    for step in range(8):
        made(data(step, rank), (1,) if step == 0 else ()).square().mean().backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
    assert apart([made.module.layers[1].weight], [model.layers[1].weight - 0.1 * model.layers[1].weight.grad]) < 1e-10


@ranks.on(2)
def test_a_step_alone_does_not_take_the_place_of_one_that_is_pending(rank: int) -> None:
    """Step under `no_sync` while the step before is still to be carried out in a layer that is left out."""
    made = ScheduledDataParallel(Branches(), "priority", OPTIMIZERS["sgd"], caps=ALONE, find_unused_parameters=True)
    model = Branches()
    plain = OPTIMIZERS["sgd"](model.parameters())
    for place in range(2):
        (model(data(0, place), (0, 1)).square().mean() / 2).backward()
    made(data(0, rank), (0, 1)).square().mean().backward()
    for updating in (made.optimizer, plain):
        updating.step()
        updating.zero_grad()
    model(data(1, rank), (0,)).square().mean().backward()
    with made.no_sync():
        made(data(1, rank), (0,)).square().mean().backward()
        made.optimizer.step()
    plain.step()
    assert apart([made.module.layers[1].weight], [model.layers[1].weight.detach()]) < 1e-10


@ranks.on(2)
def test_learning_rates_are_those_that_are_set_after_a_sharded_state_is_loaded(rank: int) -> None:
    """A step of rate zero moves no weight."""
    made = wrapped(rank, "zero1")
    made.optimizer.load_shard_state_dict(made.optimizer.shard_state_dict())
    before = [parameter.detach().clone() for parameter in made.module.parameters()]
    for group in made.optimizer.param_groups:
        group["lr"] = 0.0
    made(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
    made.optimizer.step()
    made.complete()
    assert apart(made.module.state_dict().values(), before) == 0


class Complex(nn.Linear):
    """Returns sizes."""

    def forward(self, x: Any) -> Any:
        return super().forward(x).abs()


@ranks.on(2)
def test_what_a_scheme_cannot_do_is_refused_before_it_trains(rank: int) -> None:
    empty = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Embedding(0, 2)})
    shared = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shared[1].bias = shared[0].bias
    model = DistributedDataParallel(Complex(3, 2, dtype=torch.complex64))
    model.register_comm_hook(*hook_for("topk:0.5"))
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (PlanError, "micro-batches a step", lambda: wrapped(rank, "gradientflow", learn=2, accumulate=2)),
        (OptionError, "threads", lambda: wrapped(rank, "dataparallel", learn=2)),
        (OptionError, "left out of", lambda: wrapped(rank, "zero1", learn=2, find_unused_parameters=True)),
        (OptionError, "a step is of 3", lambda: wrapped(rank, "ddp", every=2, accumulate=3)),
        (OptionError, "no elements", lambda: FullySharded(empty, "fsdp2", OPTIMIZERS["sgd"])),
        (OptionError, "0.bias of 0 and 1.bias of 1", lambda: FullySharded(shared, "hsdp:1", OPTIMIZERS["sgd"])),
        (InputError, "codecs write real", lambda: model(torch.ones(1, 3, dtype=torch.complex64)).sum().backward()),
    ]
    for kind, said, make in refused:
        with pytest.raises(kind, match=said):
            make()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@ranks.on(2)
def test_a_layer_that_no_rank_uses_is_updated_by_the_zeros_that_zero_grad_leaves(rank: int, optimizer: str) -> None:
    """Leave layers out after they were used, before they ever were, in one of two steps, and in two in a row."""
    uses = [(0, 2), (0, 1, 2), (0, 2), (0, 2), (0, 1, 2), (0,), (0, 1)]
    used: Use = lambda step, micro, place: uses[(step + micro) % len(uses)]  # noqa: E731
    ways: list[dict[str, Any]] = [{}, {"overlap": False}, {"learn": 2}, {"micros": 2, "accumulate": 2}]
    found = {
        f"{scheme} {way}": far(
            rank, scheme, optimizer, used, steps=8, to_none=False, find_unused_parameters=True, **way
        )
        for scheme in ("ddp", "naive", "flat", "priority", "dear")
        for way in ways
    }
    assert {scheme: off for scheme, off in found.items() if off > 1e-10} == {}


@ranks.on(2)
def test_a_static_graph_that_sends_every_second_time_leaves_what_no_rank_uses_alone(rank: int) -> None:
    """Let weight decay move what has a gradient of zero, and not what has none."""
    used: Use = lambda step, micro, place: (0, 2)  # noqa: E731
    ways: list[dict[str, Any]] = [{}, {"learn": 3}]
    found = {
        f"{scheme} {way}": far(rank, scheme, "adamw", used, 2, static_graph=True, every=2, **way)
        for scheme in ("ddp", "naive", "flat", "priority", "dear")
        for way in ways
    }
    assert {scheme: off for scheme, off in found.items() if off > 1e-10} == {}
