"""One wrapper carries out DDP's buckets and any scheme: torch's constructor with a scheme, and DDP with its methods."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ddpexec import DistributedDataParallel
from ddpexec.errors import OptionError
from ddpsim.bucketing import BucketCaps
from tests.ddpexec.ddp.schedules.training import (
    CAPS,
    OPTIMIZERS,
    apart,
    loss_of,
    mine,
    model_of,
    train,
    weights_of,
    wrapped,
)
from tests.ddpexec.groups import ranks

TORCHS = {"bucket_cap_mb": CAPS.bucket_cap_mb, "first_bucket_mb": CAPS.first_bucket_mb}
SCHEMES = ("ddp", "naive", "priority:256B", "dear", "zero1", "slowmo:2", "gradientflow")
STEPS = 5


def by_scheme(scheme: Any, rank: int, **options: Any) -> DistributedDataParallel:
    made = {"scheme": scheme, "make_optimizer": OPTIMIZERS["sgd"], **TORCHS, **options}
    return DistributedDataParallel(model_of(3 + rank), **made)


@ranks.on(2)
def test_a_scheme_of_torchs_constructor_ends_where_the_older_name_does(rank: int) -> None:
    for scheme in SCHEMES:
        expected = train(wrapped(rank, scheme), rank, steps=STEPS)
        made = by_scheme(scheme, rank, device_mesh=init_device_mesh("cpu", (2,)), learn=0)
        assert made.schedule is not None
        assert apart(train(made, rank, steps=STEPS), expected) == 0
        assert made.schedule.scheme.partition(":")[0] == scheme.partition(":")[0]
        made.close()


@ranks.on(2)
def test_torchs_private_methods_know_a_scheme(rank: int) -> None:
    made = by_scheme("ddp", rank, learn=2)
    train(made, rank, steps=STEPS)
    told = made._get_ddp_logging_data()
    assert told["iteration"] == STEPS - 3  # the last that is over of those after learning
    assert told["num_buckets_reduced"] == len(made.plan.buckets)
    assert {int(index) for index in str(told["prev_iteration_grad_ready_order_indices"]).split(",")} == {*range(8)}
    assert int(told["backward_comm_time"]) > 0
    with pytest.raises(OptionError, match="scheme ddp is told of a static graph when it is made"):
        made._set_static_graph()
    with pytest.raises(OptionError, match="scheme ddp has process groups of its own"):
        made._update_process_group(torch.distributed.new_group())
    with pytest.raises(OptionError, match="not pickled"):
        pickle.dumps(made)


class Counting(nn.Module):
    """Has a buffer that differs by rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("count", torch.full((2,), float(rank)))

    def forward(self, x: Any) -> Any:
        return self.layer(x) + self.count.sum()


@ranks.on(2)
def test_buffers_of_a_scheme_are_those_of_rank_0_or_a_hooks(rank: int) -> None:
    given: dict[str, Any] = {"scheme": "dear", "make_optimizer": OPTIMIZERS["sgd"]}
    module = Counting(rank)
    made = DistributedDataParallel(module, **given)
    module.count.fill_(5.0 + rank)
    made(torch.ones(1, 3)).sum().backward()
    assert module.count.tolist() == [5.0, 5.0]

    def add(state: list[str], named: dict[str, Any]) -> list[Any]:
        state += named
        work = torch.distributed.all_reduce(named["count"], async_op=True)
        return [work.get_future()]

    names: list[str] = []
    made._register_buffer_comm_hook(names, add)
    module.count.fill_(1.0 + rank)
    made(torch.ones(1, 3)).sum().backward()
    assert (module.count.tolist(), names) == ([3.0, 3.0], ["count"])


class Counts(nn.Module):
    """Notes its buffer as each forward finds it, and adds its rank to it."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer, self.rank, self.found = nn.Linear(2, 2), rank, list[float]()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.found.append(float(self.count))
        self.count += 1 + self.rank
        return self.layer(x)


@ranks.on(2)
def test_what_learns_broadcasts_buffers_to_its_end_and_what_averages_never(rank: int) -> None:
    module = Counts(rank)
    made = DistributedDataParallel(module, scheme="averaging:1", make_optimizer=OPTIMIZERS["sgd"], learn=2)
    for _ in range(5):
        made(torch.ones(1, 2)).sum().backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
    assert module.found == ([0, 1, 2, 3, 4] if rank == 0 else [0, 1, 2, 4, 6])


@ranks.on(2)
def test_ddp_clips_completes_and_closes_as_a_scheme_does(rank: int) -> None:
    found = []
    for scheme in (None, "ddp"):
        made = by_scheme(scheme, rank, **({} if scheme else {"make_optimizer": None}))
        optimizer = OPTIMIZERS["sgd"](made.parameters()) if made.optimizer is None else made.optimizer
        norms = []
        for number in range(STEPS):
            loss_of(made, *mine(number, rank)).backward()
            norms.append(float(made.clip_grad_norm_(0.1)))
            optimizer.step()
            made.zero_grad()
            assert all(each.grad is None for each in made.parameters())
        made.complete()
        assert (made.serves, made.end(), made.learns, made.wire) == (False, None, False, None)
        assert bool(made.scheme_state_dict()) == (scheme is not None)
        found.append(([*weights_of(made.module), torch.tensor(norms, dtype=torch.float64)], made))
    assert apart(found[0][0], found[1][0]) < 1e-12
    for _, made in found:
        made.close()
        made.close()
        with pytest.raises(OptionError, match="closed"):
            made(torch.ones(2, 6, dtype=torch.float64))


@ranks.on(1)
def test_ddp_takes_buckets_between_two_steps_and_no_schedule(rank: int) -> None:
    made, other = by_scheme(None, rank, make_optimizer=None), by_scheme("naive", rank)
    assert made.fixed is None
    made.use_schedule(BucketCaps(), [range(8)])
    assert made.plan.groups() == [tuple(range(8))]
    assert made.caps == BucketCaps()
    with pytest.raises(OptionError, match="scheme naive steps an optimizer, and none was given"):
        made.use_schedule(BucketCaps(), [range(8)], other.schedule)


@ranks.on(1)
def test_a_scheme_says_what_it_does_not_take(rank: int) -> None:
    with pytest.raises(OptionError, match="gradient_as_bucket_view are both given: a scheme's messages have memory"):
        by_scheme("dear", rank, gradient_as_bucket_view=True)
    with pytest.raises(OptionError, match="scheme and no make_optimizer are given"):
        by_scheme("dear", rank, make_optimizer=None)
    with pytest.raises(OptionError, match="every is given and no scheme"):
        by_scheme(None, rank, make_optimizer=None, every=2)
    with pytest.raises(OptionError, match="give a scheme's name"):
        by_scheme(3, rank)
